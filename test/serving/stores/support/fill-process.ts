/**
 * A process that fills a LOCAL store, and that the test kills: `node fill-process.js <folder>
 * <version>`, where the folder is that of a TestRepository. Prints a line for each step, then keeps
 * the store open.
 */
import { join } from 'node:path';
import { openRepository } from '../../../../lib/repository/repository.ts';
import { LocalStore } from '../../../../serving/stores/local-store.ts';

const [folder, version] = process.argv.slice(2);
const repository = openRepository(join(folder!, 'repo'));
const store = await LocalStore.open({
  repository,
  folder: join(folder!, 'local'),
  onProgress: (rows, rowsTotal) => process.stdout.write(`rows ${rows} of ${rowsTotal}\n`),
});
process.stdout.write('open\n');
if (version !== undefined) await store.prepare(await repository.readManifest('ctr', version));
process.stdout.write('prepared\n');
setInterval(() => undefined, 1_000);
