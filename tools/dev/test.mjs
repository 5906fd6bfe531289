/**
 * Runs the compiled tests with node:test. Arguments are parts of file names: `npm test -- layer` runs the test
 * files whose path contains "layer". (Node 20 takes no globs, and a folder argument would also run helpers.)
 *
 * --rerun-failed  run files with failed tests once more, alone: a test that only failed because the machine was
 *                 busy is listed as unstable and does not fail the run
 * --times         list the files that took the most CPU time, with their processes
 *
 * Files that took longest in the last run start first, so that none is left at the end.
 */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism, tmpdir } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { finished } from 'node:stream/promises';
import { run } from 'node:test';
import { spec, tap } from 'node:test/reporters';
import { fileURLToPath } from 'node:url';

const RERUN_OPTION = '--rerun-failed';
const TIMES_OPTION = '--times';
/** More failed files than these are not the machine's fault. */
const RERUN_MAX = 5;
/** Test files that run at a time: one more than processors, because files wait for processes and timers. */
const CONCURRENCY = Math.min(4, availableParallelism() + 1);
const FILE_TIMEOUT_MS = 900_000;
/** Files listed by --times. */
const SLOW_FILES = 40;
const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const preload = join(root, 'tools', 'dev', 'test-preload.cjs');
/** CPU seconds of each file in its last run. */
const timesFile = join(root, 'dist', '.test-times.json');

/** @returns paths relative to the root */
function listFiles(parts) {
  return readdirSync(join(root, 'dist', 'test'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.test.js'))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)))
    .filter((path) => parts.length === 0 || parts.some((part) => path.includes(part)))
    .sort();
}

function readTimes() {
  return existsSync(timesFile) ? JSON.parse(readFileSync(timesFile, 'utf8')) : {};
}

/** Keeps the CPU times of the files that ran. */
function saveTimes(path) {
  const lines = existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n') : [];
  const seconds = lines.map((line) => line.split('\t'));
  const ran = Object.fromEntries(
    seconds.map(([file, text]) => [relative(root, file), Math.round(Number(text) * 100) / 100]),
  );
  writeFileSync(timesFile, JSON.stringify({ ...readTimes(), ...ran }, null, 1));
  return ran;
}

/** @returns the files with failed tests, and the CPU seconds of each file */
async function runFiles(files, concurrency) {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-test-'));
  const times = join(folder, 'times');
  // node:test gives these to the processes of the files.
  process.execArgv.push('--require', preload);
  process.env.HYPERCUBE_TEST_TIMES = times;
  process.chdir(root);
  const failed = new Set();
  try {
    const events = run({
      files: files.map((file) => resolve(root, file)),
      concurrency,
      timeout: FILE_TIMEOUT_MS,
    });
    // A file that ends before its first test, or runs too long, is reported by its name.
    events.on('test:fail', ({ file, name }) =>
      failed.add(relative(root, resolve(root, file ?? name))),
    );
    const output = process.stdout.isTTY ? events.compose(new spec()) : events.compose(tap);
    output.pipe(process.stdout, { end: false });
    await finished(output);
    return { failed: [...failed], seconds: saveTimes(times) };
  } finally {
    process.execArgv.splice(process.execArgv.indexOf('--require'), 2);
    rmSync(folder, { recursive: true, force: true });
  }
}

/** @returns whether every failed file passes alone */
async function rerun(failed) {
  if (failed.length > RERUN_MAX) return false;
  console.log(`# running again, alone: ${failed.join(', ')}`);
  const second = await runFiles(failed, 1);
  const unstable = failed.filter((path) => !second.failed.includes(path));
  if (unstable.length > 0) console.log(`# unstable, passed when run alone: ${unstable.join(', ')}`);
  return second.failed.length === 0;
}

function printTimes(seconds) {
  const slowest = Object.entries(seconds).sort(([, a], [, b]) => b - a);
  const total = slowest.reduce((sum, [, value]) => sum + value, 0);
  console.log(`# CPU time of ${slowest.length} files: ${total.toFixed(0)} s; the slowest:`);
  for (const [file, value] of slowest.slice(0, SLOW_FILES)) {
    console.log(`# ${value.toFixed(1).padStart(6)} s  ${file}`);
  }
}

const parameters = process.argv.slice(2);
const parts = parameters.filter((value) => value !== RERUN_OPTION && value !== TIMES_OPTION);
const known = readTimes();
const files = listFiles(parts).sort((a, b) => (known[b] ?? 0) - (known[a] ?? 0));
if (files.length === 0) {
  console.error(`no test file matches: ${parts.join(' ')}`);
  process.exit(1);
}
const { failed, seconds } = await runFiles(files, CONCURRENCY);
const mayRerun = failed.length > 0 && parameters.includes(RERUN_OPTION);
const passed = failed.length === 0 || (mayRerun && (await rerun(failed)));
if (parameters.includes(TIMES_OPTION)) printTimes(seconds);
process.exitCode = passed ? 0 : 1;
