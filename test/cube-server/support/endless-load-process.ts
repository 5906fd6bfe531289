/** Loaded before a server: its conversion threads never finish. */
import { isMainThread } from 'node:worker_threads';

if (!isMainThread) Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0);
