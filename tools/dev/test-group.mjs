/**
 * Runs test files in one process, one after another: modules are loaded once and stay compiled. The
 * process takes groups of files from a folder that it shares with others, until none is left. The
 * tests that a file registers while it is imported become children of a test with the file's name,
 * so that its hooks hold for them only.
 *
 * HYPERCUBE_TEST_TIMES names a file to which the CPU time of each is appended, with that of its child
 * processes, and its duration, both in seconds.
 */
import { appendFileSync, readFileSync, writeFileSync } from 'node:fs';
import { createRequire, syncBuiltinESMExports } from 'node:module';
import { join, relative } from 'node:path';
import { pathToFileURL } from 'node:url';
import { setFlagsFromString } from 'node:v8';

/** In the folder that processes share: the groups, as a list of lists of paths. */
export const QUEUE_FILE = 'groups.json';
/** Followed by the index of a group: a file with the script whose process took it. */
export const TAKEN_PREFIX = 'taken-';
const TICKS_PER_SECOND = 100;
/**
 * V8 optimizes functions that have run nine times as long as usual: most functions of tests run so
 * shortly that compiling them takes longer than they gain by it. Processes that tests start are not
 * affected. Newer versions of V8 do not have the flag.
 */
const OPTIMIZE_LATER = '--interrupt-budget=600000';
const HOOKS = ['before', 'after', 'beforeEach', 'afterEach'];
/** The time for a test to end after an uncaught error. */
const END_MS = 20_000;
/** The time for what failed tests left open to be closed. */
const CLOSE_MS = 10_000;
const times = process.env.HYPERCUBE_TEST_TIMES;
const runner = createRequire(import.meta.url)('node:test');
const { test } = runner;

/** Calls of the file that is being imported; undefined while tests run. */
let registrations;
/** The test that has the running file's tests as children. */
let fileTest;
/** The first uncaught error since the last file ended, and the timer that ends the process. */
let uncaught;

/**
 * Makes the test functions keep their calls while a file is imported. A call in a running test, such
 * as `after`, belongs to its file.
 */
function deferCalls() {
  for (const name of ['test', ...HOOKS]) {
    const original = runner[name];
    const deferred = (...args) => {
      if (registrations === undefined) return (fileTest?.[name] ?? original).apply(fileTest, args);
      registrations.push({ name, args });
      return undefined;
    };
    runner[name] = Object.assign(deferred, original);
  }
  syncBuiltinESMExports();
}

/** CPU seconds of this process and of its children that have ended; these only where there is /proc. */
function readSeconds() {
  const { user, system } = process.cpuUsage();
  return (user + system) / 1e6 + readChildSeconds();
}

function readChildSeconds() {
  try {
    // The name of the program, in parentheses, may have spaces.
    const [, fields = ''] = readFileSync('/proc/self/stat', 'utf8').split(/\) (?!.*\) )/);
    const [user, system] = fields.split(' ').slice(13, 15).map(Number);
    return (user + system) / TICKS_PER_SECOND;
  } catch {
    return 0;
  }
}

async function importFile(file) {
  const startMs = performance.now();
  const startSeconds = readSeconds();
  const calls = [];
  registrations = calls;
  try {
    await import(pathToFileURL(file).href);
  } catch (error) {
    const fail = () => {
      throw error;
    };
    calls.push({ name: 'test', args: ['the file can be imported', fail] });
  }
  registrations = undefined;
  return { file, calls, startMs, loadSeconds: readSeconds() - startSeconds };
}

/**
 * An uncaught error fails the file whose tests run. The test that waits in vain for what threw may
 * never end, so the process ends after a time in which it could.
 */
function watchErrors() {
  const report = (error) => {
    process.stderr.write(`uncaught: ${error?.stack ?? error}\n`);
    uncaught ??= { error, timer: setTimeout(() => process.exit(1), END_MS) };
    uncaught.timer.unref();
  };
  process.on('uncaughtExceptionMonitor', report).on('unhandledRejection', report);
}

function throwUncaught() {
  if (uncaught === undefined) return;
  const { error, timer } = uncaught;
  uncaught = undefined;
  clearTimeout(timer);
  throw error;
}

/** Tests are children of an explicit parent: without async_hooks, `describe` would not find its own. */
async function runFile({ file, calls, startMs, loadSeconds }) {
  const startSeconds = readSeconds();
  await test(relative(process.cwd(), file), async (parent) => {
    fileTest = parent;
    const isHook = ({ name }) => HOOKS.includes(name);
    for (const { name, args } of calls.filter(isHook)) parent[name](...args);
    for (const { args } of calls.filter((call) => !isHook(call))) await parent.test(...args);
    throwUncaught();
  });
  fileTest = undefined;
  const seconds = readSeconds() - startSeconds + loadSeconds;
  if (times === undefined) return;
  const values = [seconds, (performance.now() - startMs) / 1e3].map((value) => value.toFixed(2));
  appendFileSync(times, `${[file, ...values].join('\t')}\n`);
}

/** @returns whether no other process has taken the group */
function take(folder, group) {
  try {
    writeFileSync(join(folder, `${TAKEN_PREFIX}${group}`), process.argv[1], { flag: 'wx' });
    return true;
  } catch (error) {
    if (error.code === 'EEXIST') return false;
    throw error;
  }
}

/** @param folder has the file QUEUE_FILE, with absolute paths of test files */
export async function runGroups(folder) {
  if (process.version.startsWith('v20.')) setFlagsFromString(OPTIMIZE_LATER);
  deferCalls();
  watchErrors();
  // A test may wait for timers that do not keep a process running.
  const keepRunning = setInterval(() => undefined, CLOSE_MS);
  const groups = JSON.parse(readFileSync(join(folder, QUEUE_FILE), 'utf8'));
  for (const [index, files] of groups.entries()) {
    if (!take(folder, index)) continue;
    for (const file of files) await runFile(await importFile(file));
  }
  clearInterval(keepRunning);
  setTimeout(() => {
    console.error(`# still open after the tests: ${process.getActiveResourcesInfo().join(', ')}`);
    process.exit();
  }, CLOSE_MS).unref();
}
