/** Runs littering-process.ts as `npm run bench` runs benchmarks. */
import { join } from 'node:path';
import { runScripts } from '../../../bench/support/contained-run.ts';

const script = join(import.meta.dirname, 'littering-process.js');
const args = [script, ...process.argv.slice(2)];
process.exitCode = await runScripts([{ args }, { title: 'next', args }]);
