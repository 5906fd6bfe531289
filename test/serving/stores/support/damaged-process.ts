/**
 * A process that reads all rows of a LOCAL store with damaged files for each message it gets:
 * `fork('damaged-process.js', [folder])`, where the folder is that of a TestRepository. It sends
 * "right", "rebuilt" (right after the store was filled again), or the unexpected result; and then
 * "closed".
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

async function readAll(): Promise<void> {
  const warnings: string[] = [];
  const logger = {
    info: () => undefined,
    warn: (_: object, text: string) => warnings.push(text),
  } as unknown as Logger;
  let store: LocalStore | undefined;
  try {
    store = await LocalStore.open({ repository, folder: join(folder, 'local'), logger });
    process.send?.(await read(store, warnings));
  } catch (error) {
    process.send?.(String(error));
  }
  await store?.close();
  process.send?.('closed');
}

async function read(store: LocalStore, warnings: readonly string[]): Promise<string> {
  const manifest = await repository.readManifest('ctr', '1');
  await store.prepare(manifest);
  const group = createGroup(table, keys);
  const summary = await store.lookup(manifest, [group], 10_000);
  assertLookup(version, [{ table, keys, group }], summary);
  if (warnings.length === 0) return 'right';
  assert.match(warnings.join(), /^the local store is damaged; it is removed and filled again/);
  return 'rebuilt';
}

process.on('message', () => void readAll());
