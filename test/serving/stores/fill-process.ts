/**
 * A process that fills a LOCAL store and says how far it is, to be killed: `node fill-process.js <folder> <version>`,
 * where the folder is a test repository's. Prints one line for each step, then holds the store open.
 */
import { join } from 'node:path';
import { openRepository } from '../../../lib/repository/repository.ts';
import { LocalStore } from '../../../serving/stores/local-store.ts';

const [folder, version] = process.argv.slice(2);
const repository = openRepository(join(folder!, 'repo'));
const store = await LocalStore.open({
  repository,
  folder: join(folder!, 'local'),
  onProgress: (rows, rowsTotal) => process.stdout.write(`rows ${rows} of ${rowsTotal}\n`),
});
process.stdout.write('open\n');
if (version !== undefined) await store.prepare(await repository.manifest('ctr', version));
process.stdout.write('prepared\n');
setInterval(() => undefined, 1_000);
