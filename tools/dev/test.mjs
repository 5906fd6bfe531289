/**
 * Runs the compiled tests with node:test. Arguments are parts of file names: `npm test -- layer` runs the test
 * files whose path contains "layer". (Node 20 takes no globs, and a folder argument would also run helpers.)
 * With --rerun-failed, files with failed tests run once more, alone: a test that only failed because the machine
 * was busy is listed as unstable and does not fail the run.
 */
import { spawnSync } from 'node:child_process';
import { mkdtempSync, readdirSync, readFileSync, rmSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { fileURLToPath } from 'node:url';

const RERUN_OPTION = '--rerun-failed';
/** More failed files than these are not the machine's fault. */
const RERUN_MAX = 5;
/** Test files that run at a time: one more than processors, because files wait for processes and timers. */
const CONCURRENCY = Math.min(4, availableParallelism() + 1);
const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');

/** @returns paths relative to the root */
function listFiles(parts) {
  return readdirSync(join(root, 'dist', 'test'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.test.js'))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)))
    .filter((path) => parts.length === 0 || parts.some((part) => path.includes(part)))
    .sort();
}

/** @returns whether all tests passed, and the files with failed tests */
function runFiles(files, concurrency) {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-test-'));
  const failedList = join(folder, 'failed');
  const args = [
    '--test',
    `--test-concurrency=${concurrency}`,
    '--test-timeout=900000',
    `--test-reporter=${process.stdout.isTTY ? 'spec' : 'tap'}`,
    '--test-reporter-destination=stdout',
    `--test-reporter=${join(root, 'tools', 'dev', 'failed-files.mjs')}`,
    `--test-reporter-destination=${failedList}`,
  ];
  try {
    const { status } = spawnSync(process.execPath, [...args, ...files], {
      cwd: root,
      stdio: 'inherit',
    });
    const lines = readFileSync(failedList, 'utf8').split('\n').filter(Boolean);
    const failed = [...new Set(lines.map((path) => relative(root, resolve(root, path))))];
    return { passed: status === 0, failed };
  } finally {
    rmSync(folder, { recursive: true, force: true });
  }
}

/** @returns whether every failed file passes alone */
function rerun(failed) {
  if (failed.length === 0 || failed.length > RERUN_MAX) return false;
  console.log(`# running again, alone: ${failed.join(', ')}`);
  const second = runFiles(failed, 1);
  const unstable = failed.filter((path) => !second.failed.includes(path));
  if (unstable.length > 0) console.log(`# unstable, passed when run alone: ${unstable.join(', ')}`);
  return second.passed;
}

const parameters = process.argv.slice(2);
const parts = parameters.filter((value) => value !== RERUN_OPTION);
const files = listFiles(parts);
if (files.length === 0) {
  console.error(`no test file matches: ${parts.join(' ')}`);
  process.exit(1);
}
const first = runFiles(files, CONCURRENCY);
const passed = first.passed || (parameters.includes(RERUN_OPTION) && rerun(first.failed));
process.exitCode = passed ? 0 : 1;
