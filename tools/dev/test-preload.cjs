/**
 * Loaded into each process of tests before them, and by Node into their threads too.
 *
 * Node 20's test runner follows every promise with async_hooks, to tell which test an uncaught error
 * belongs to. That takes up to half the CPU time of tests with many promises. Without it such an
 * error belongs to the file whose tests run (test-group.mjs).
 */
const hooks = require('node:async_hooks');

const { createHook } = hooks;
hooks.createHook = (callbacks) => {
  const hook = createHook(callbacks);
  if (new Error().stack.includes('node:internal/test_runner')) hook.enable = () => hook;
  return hook;
};
