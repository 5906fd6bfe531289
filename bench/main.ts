/**
 * Runs the benchmarks, each in a process of its own: all of them, or those whose name contains one of the arguments.
 * `npm run bench -- lookup-kernel`; flags are the benchmark's own: `npm run bench -- rollouts --rounds 3`. They print ratios and never judge: a number from another machine is another number.
 */
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';

const words = process.argv.slice(2);
const firstFlag = words.findIndex((word) => word.startsWith('-'));
const parts = firstFlag < 0 ? words : words.slice(0, firstFlag);
const flags = words.slice(parts.length);
const files = readdirSync(import.meta.dirname)
  .filter((name) => name.endsWith('.bench.js'))
  .filter((name) => parts.length === 0 || parts.some((part) => name.includes(part)))
  .sort();
if (files.length === 0) {
  process.stderr.write(`no benchmark matches: ${parts.join(' ')}\n`);
  process.exitCode = 1;
}
for (const file of files) {
  process.stdout.write(`\n# ${file.replace('.bench.js', '')}\n\n`);
  const path = join(import.meta.dirname, file);
  const { status } = spawnSync(process.execPath, [path, ...flags], { stdio: 'inherit' });
  if (status !== 0) process.exitCode = 1;
}
