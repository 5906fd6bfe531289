/**
 * A process that reads all rows of a LOCAL store with damaged files: `node damaged-process.js
 * <folder>`, where the folder is that of a TestRepository. Prints "right", "rebuilt" (right after
 * the store was filled again), or the unexpected result.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import type { Logger } from '../../../../lib/platform/logs.ts';
import { openRepository } from '../../../../lib/repository/repository.ts';
import { LocalStore } from '../../../../serving/stores/local-store.ts';
import { assertLookup, createGroup, createOracleTable } from '../../../client/support/oracle.ts';

const folder = process.argv[2]!;
const repository = openRepository(join(folder, 'repo'));
const keys = Array.from({ length: 3_500 }, (_, i) => BigInt(i));
const table = createOracleTable('t', 5, keys.slice(0, 3_000));
const version = { bundle: 'ctr', version: '1', shardNum: 2, tables: [table] };

const warnings: string[] = [];
const logger = {
  info: () => undefined,
  warn: (_: object, text: string) => warnings.push(text),
} as unknown as Logger;

async function readAll(): Promise<string> {
  try {
    const store = await LocalStore.open({ repository, folder: join(folder, 'local'), logger });
    const manifest = await repository.readManifest('ctr', '1');
    await store.prepare(manifest);
    const group = createGroup(table, keys);
    const summary = await store.lookup(manifest, [group], 10_000);
    assertLookup(version, [{ table, keys, group }], summary);
    if (warnings.length === 0) return 'right';
    assert.match(warnings.join(), /^the local store is damaged; it is removed and filled again/);
    return 'rebuilt';
  } catch (error) {
    return String(error);
  }
}

process.stdout.write(await readAll(), () => process.exit());
