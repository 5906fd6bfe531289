/**
 * Runs the compiled tests with node:test. Arguments are parts of file names: `npm test -- layer` runs the test
 * files whose path contains "layer". (Node 20 takes no globs, and a folder argument would also run helpers.)
 * `npm run soak` runs the long ones instead (`*.soak.ts`).
 */
import { spawnSync } from 'node:child_process';
import { readdirSync } from 'node:fs';
import { dirname, join, relative } from 'node:path';
import { fileURLToPath } from 'node:url';

const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const soak = process.argv.includes('--soak');
const suffix = soak ? '.soak.js' : '.test.js';
const parts = process.argv.slice(2).filter((part) => part !== '--soak');
const files = readdirSync(join(root, 'dist', 'test'), { recursive: true, withFileTypes: true })
  .filter((entry) => entry.isFile() && entry.name.endsWith(suffix))
  .map((entry) => relative(root, join(entry.parentPath, entry.name)))
  .filter((path) => parts.length === 0 || parts.some((part) => path.includes(part)))
  .sort();
if (files.length === 0) {
  console.error(`no test file matches: ${parts.join(' ')}`);
  process.exit(1);
}
const reporter = process.stdout.isTTY ? 'spec' : 'tap';
const args = [
  '--test',
  `--test-concurrency=${soak ? 1 : 2}`,
  '--test-timeout=900000',
  `--test-reporter=${reporter}`,
];
const result = spawnSync(process.execPath, [...args, ...files], { cwd: root, stdio: 'inherit' });
process.exitCode = result.status ?? 1;
