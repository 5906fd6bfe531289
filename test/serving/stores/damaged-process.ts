/**
 * A process that reads all rows of a LOCAL store whose files were damaged, and says how that ended:
 * `node damaged-process.js <folder>`, where the folder is a test repository's. Prints "right", "refused", or what went wrong.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { LocalStore } from '../../../serving/stores/local-store.ts';
import { assertAnswered, groupOf, tableWith } from '../../client/oracle.ts';

const folder = process.argv[2]!;
const repository = openRepository(join(folder, 'repo'));
const keys = Array.from({ length: 3_500 }, (_, i) => BigInt(i));
const table = tableWith('t', 5, keys.slice(0, 3_000));
const version = { bundle: 'ctr', version: '1', shardNum: 2, tables: [table] };

async function readAll(): Promise<string> {
  try {
    const store = await LocalStore.open({ repository, folder: join(folder, 'local') });
    const manifest = await repository.manifest('ctr', '1');
    await store.prepare(manifest);
    const group = groupOf(table, keys);
    const summary = await store.lookup(manifest, [group], 10_000);
    assertAnswered(version, [{ table, keys, group }], summary);
    return 'right';
  } catch (error) {
    if (!(error instanceof CubeError)) return String(error);
    assert.match(error.message, /local store is damaged .* remove the folder/);
    return error.code === 'CORRUPT' ? 'refused' : error.message;
  }
}

process.stdout.write(await readAll(), () => process.exit());
