/**
 * Loaded into each test file's process before its tests, and by Node into their threads too.
 *
 * Node 20's test runner follows every promise with async_hooks, to tell which test an uncaught error
 * belongs to. That takes up to half the CPU time of tests with many promises. Without it such an
 * error fails the file, after a time in which its other tests can end.
 *
 * HYPERCUBE_TEST_TIMES names a file to which the process appends its path and its CPU time with that
 * of its children, in seconds.
 */
const hooks = require('node:async_hooks');
const { appendFileSync, readFileSync } = require('node:fs');
const { isMainThread } = require('node:worker_threads');

const TICKS_PER_SECOND = 100;
/** The time for tests to end after an uncaught error. */
const END_MS = 20_000;
const times = process.env.HYPERCUBE_TEST_TIMES;
const script = process.argv[1] ?? '';

const { createHook } = hooks;
hooks.createHook = (callbacks) => {
  const hook = createHook(callbacks);
  if (new Error().stack.includes('node:internal/test_runner')) hook.enable = () => hook;
  return hook;
};

/** CPU seconds of the children that have ended; 0 where the system has no /proc. */
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

function failSoon(error) {
  process.stderr.write(`uncaught in ${script}: ${error?.stack ?? error}\n`);
  setTimeout(() => process.exit(1), END_MS).unref();
}

const isTestFile = isMainThread && script.endsWith('.test.js');
if (isTestFile) {
  process.on('uncaughtExceptionMonitor', failSoon).on('unhandledRejection', failSoon);
}
if (isTestFile && times !== undefined) {
  process.on('exit', () => {
    const { user, system } = process.cpuUsage();
    appendFileSync(times, `${script}\t${(user + system) / 1e6 + readChildSeconds()}\n`);
  });
}
