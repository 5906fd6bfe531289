/**
 * Runs the compiled tests with node:test. Arguments are parts of file names: `npm test -- layer` runs the test
 * files whose path contains "layer". (Node 20 takes no globs, and a folder argument would also run helpers.)
 * Without arguments, files that take long (*.long.test.ts) are left out.
 *
 * --all           also the files that take long
 * --rerun-failed  run files with failed tests once more, alone: a test that only failed because the machine was
 *                 busy is listed as unstable and does not fail the run
 * --times         list the files that took the most CPU time, with their processes
 *
 * Files share processes (test-group.mjs): starting one and loading the modules takes longer than most
 * files' tests. Each process takes one group of files after another, first those that took longest in
 * the last run, so that none is left at the end; before a file's first run, test-seconds.json says
 * roughly how long it takes.
 */
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { availableParallelism } from 'node:os';
import { dirname, join, relative, resolve } from 'node:path';
import { finished } from 'node:stream/promises';
import { run } from 'node:test';
import { spec, tap } from 'node:test/reporters';
import { fileURLToPath, pathToFileURL } from 'node:url';
import { makeTestFolder } from './test-folder.mjs';
import { QUEUE_FILE, TAKEN_PREFIX } from './test-group.mjs';

const RERUN_OPTION = '--rerun-failed';
const TIMES_OPTION = '--times';
const ALL_OPTION = '--all';
const LONG_SUFFIX = '.long.test.js';
/** More failed files than these are not the machine's fault. */
const RERUN_MAX = 5;
/** Processes: more than processors, because tests wait for processes and timers. */
const PROCESSES = Math.min(5, availableParallelism() + 3);
const PROCESS_TIMEOUT_MS = 1_800_000;
/** Most files of a group: of neighbouring folders, which load the same modules. */
const GROUP_FILES = 12;
/** Estimated duration of files that are not in test-seconds.json. */
const ESTIMATE_SECONDS = 2;
/** Duration of a group: longer files have their own. */
const GROUP_SECONDS = 40;
/** Files listed by --times. */
const SLOW_FILES = 40;
const root = join(dirname(fileURLToPath(import.meta.url)), '..', '..');
const groupRunner = join(root, 'tools', 'dev', 'test-group.mjs');
const preload = join(root, 'tools', 'dev', 'test-preload.cjs');
/** Durations of files that take long, in seconds, roughly: --times lists candidates. */
const roughSecondsFile = join(root, 'tools', 'dev', 'test-seconds.json');
/** Duration of each file in its last run, in seconds. */
const timesFile = join(root, 'dist', '.test-times.json');

/** @returns paths relative to the root */
function listFiles(parts, isAll) {
  const isChosen = (path) =>
    parts.length === 0
      ? isAll || !path.endsWith(LONG_SUFFIX)
      : parts.some((part) => path.includes(part));
  return readdirSync(join(root, 'dist', 'test'), { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile() && entry.name.endsWith('.test.js'))
    .map((entry) => relative(root, join(entry.parentPath, entry.name)))
    .filter(isChosen)
    .sort();
}

const readJson = (path) => (existsSync(path) ? JSON.parse(readFileSync(path, 'utf8')) : {});

/** Keeps the durations of the files that ran. @returns their CPU seconds */
function saveTimes(path) {
  const lines = existsSync(path) ? readFileSync(path, 'utf8').trim().split('\n') : [];
  const known = readJson(timesFile);
  const cpu = {};
  for (const line of lines) {
    const [file, cpuSeconds, seconds] = line.split('\t');
    known[relative(root, file)] = Number(seconds);
    cpu[relative(root, file)] = Number(cpuSeconds);
  }
  writeFileSync(timesFile, JSON.stringify(known, null, 1));
  return cpu;
}

/** @returns a function that estimates the duration of a file, in seconds */
function createEstimate() {
  const known = readJson(timesFile);
  const rough = readJson(roughSecondsFile);
  return (file) => {
    const name = file.replaceAll('\\', '/').slice('dist/test/'.length, -'.test.js'.length);
    return known[file] ?? rough[name] ?? ESTIMATE_SECONDS;
  };
}

/** @returns files of neighbouring folders together; the groups that take longest first */
function makeGroups(files) {
  const estimate = createEstimate();
  const groups = [];
  let group;
  for (const file of files) {
    const seconds = estimate(file);
    if (seconds >= GROUP_SECONDS) {
      groups.push({ files: [file], seconds });
      continue;
    }
    if (!group || group.files.length === GROUP_FILES || group.seconds + seconds > GROUP_SECONDS) {
      group = { files: [], seconds: 0 };
      groups.push(group);
    }
    group.files.push(file);
    group.seconds += seconds;
  }
  return groups.sort((a, b) => b.seconds - a.seconds).map((one) => one.files);
}

/** Writes the script of a process. @returns its path */
function writeScript(folder, index) {
  const path = join(folder, `process-${index + 1}.test.mjs`);
  const [runner, queue] = [pathToFileURL(groupRunner).href, folder].map((one) =>
    JSON.stringify(one),
  );
  writeFileSync(path, `import { runGroups } from ${runner};\nawait runGroups(${queue});\n`);
  return path;
}

/** @returns the files with failed tests, those that did not run, and the CPU seconds of each file */
async function runGroups(groups, processes) {
  const folder = mkdtempSync(join(testFolder, 'run-'));
  const times = join(folder, 'times');
  const paths = groups.map((files) => files.map((file) => resolve(root, file)));
  writeFileSync(join(folder, QUEUE_FILE), JSON.stringify(paths));
  const count = Math.min(processes, groups.length);
  const scripts = Array.from({ length: count }, (_, index) => writeScript(folder, index));
  // node:test gives these to the processes.
  process.execArgv.push('--require', preload);
  process.env.HYPERCUBE_TEST_TIMES = times;
  process.chdir(root);
  const passed = new Set();
  const failed = new Set();
  try {
    const events = run({ files: scripts, concurrency: count, timeout: PROCESS_TIMEOUT_MS });
    events.on('test:pass', ({ nesting, name }) => nesting === 0 && passed.add(name));
    events.on('test:fail', ({ nesting, name }) => nesting === 0 && failed.add(name));
    const output = process.stdout.isTTY ? events.compose(new spec()) : events.compose(tap);
    output.pipe(process.stdout, { end: false });
    await finished(output);
    const taken = groups.map((_, index) => readTaken(folder, index));
    return { ...sortResults(groups, taken, passed, failed), seconds: saveTimes(times) };
  } finally {
    process.execArgv.splice(process.execArgv.indexOf('--require'), 2);
    rmSync(folder, { recursive: true, force: true });
  }
}

/** @returns the script of the process that took a group; undefined when none did */
function readTaken(folder, group) {
  const path = join(folder, `${TAKEN_PREFIX}${group}`);
  return existsSync(path) ? readFileSync(path, 'utf8') : undefined;
}

/**
 * @param taken the script whose process took each group
 * @param passed, failed the names of suites, which are files, and of scripts whose process failed
 */
function sortResults(groups, taken, passed, failed) {
  const bad = [];
  const notRun = [];
  /** Scripts whose process failed because of a file. */
  const explained = new Set();
  groups.forEach((files, index) => {
    const failures = files.filter((file) => failed.has(file));
    const missing = files.filter((file) => !failed.has(file) && !passed.has(file));
    // The first file without a result is the one that ended the process.
    if (taken[index] !== undefined && missing.length > 0) failures.push(missing.shift());
    if (failures.length > 0) explained.add(taken[index]);
    bad.push(...failures);
    notRun.push(...missing);
  });
  // What else a process failed for is not known: each of its files may be the reason.
  const mayBeBad = groups.filter((_, i) => failed.has(taken[i]) && !explained.has(taken[i]));
  return { failed: [...bad, ...mayBeBad.flat()], notRun };
}

/** @returns whether every failed file passes alone, and those that did not run pass */
async function rerun({ failed, notRun }) {
  if (failed.length > RERUN_MAX) return false;
  console.log(`# running again, alone: ${failed.join(', ')}`);
  const bad = [];
  for (const groups of [...failed.map((file) => [[file]]), makeGroups(notRun)]) {
    if (groups.length === 0) continue;
    const second = await runGroups(groups, 1);
    bad.push(...second.failed, ...second.notRun);
  }
  const unstable = failed.filter((path) => !bad.includes(path));
  if (unstable.length > 0) console.log(`# unstable, passed when run alone: ${unstable.join(', ')}`);
  return bad.length === 0;
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
const OPTIONS = [ALL_OPTION, RERUN_OPTION, TIMES_OPTION];
const unknown = parameters.find((value) => value.startsWith('-') && !OPTIONS.includes(value));
if (unknown !== undefined) {
  console.error(`unknown option ${unknown}; options: ${OPTIONS.join(', ')}`);
  process.exit(1);
}
const parts = parameters.filter((value) => !OPTIONS.includes(value));
const files = listFiles(parts, parameters.includes(ALL_OPTION));
if (files.length === 0) {
  console.error(`no test file matches: ${parts.join(' ')}`);
  process.exit(1);
}
const testFolder = makeTestFolder();
process.env.TMPDIR = testFolder;
// Each Node process parses them at its start, which takes as long as all else that an empty one
// does. Tests talk to this machine only.
delete process.env.NODE_EXTRA_CA_CERTS;
const result = await runGroups(makeGroups(files), PROCESSES);
const { failed, notRun, seconds } = result;
if (failed.length > 0) console.log(`# failed: ${failed.join(', ')}`);
if (notRun.length > 0) console.log(`# not run: ${notRun.join(', ')}`);
const mayRerun = failed.length > 0 && parameters.includes(RERUN_OPTION);
const isPassed = failed.length + notRun.length === 0 || (mayRerun && (await rerun(result)));
if (parameters.includes(TIMES_OPTION)) printTimes(seconds);
process.exitCode = isPassed ? 0 : 1;
