/**
 * Stands for a benchmark: makes a folder, starts a process that ignores SIGTERM, prints its id, and
 * then prints lines for ever, or with `end` ends and leaves both behind.
 */
import { spawn } from 'node:child_process';
import { makeTemporaryFolder } from '../../../lib/platform/files.ts';

const script = "process.on('SIGTERM', () => {}); setInterval(() => {}, 1e6); console.log('up')";
const folder = makeTemporaryFolder('hypercube-bench-');
const child = spawn(process.execPath, ['-e', script, folder], {
  stdio: ['ignore', 'pipe', 'ignore'],
});
child.stdout.once('data', () => {
  process.stdout.write(`${child.pid}\n`);
  if (process.argv[2] === 'end') process.exit(0);
  setInterval(() => process.stdout.write('measuring\n'), 10);
});
