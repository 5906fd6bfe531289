/**
 * A worker thread that gives another thread of this process the policy SCHED_IDLE, watches whether
 * it gets a core, and takes the policy back for some seconds when it does not. It has the usual
 * policy itself.
 */
import { openSync, readSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { parentPort, workerData } from 'node:worker_threads';
import type { IdleWatchData, ThreadPolicy, UsePolicy } from './idle-watch-protocol.ts';
import { runChrt } from './machine.ts';

const CHECK_MS = 100;
/**
 * Checks that must find that the thread waits for a core; each that does not counts against two of
 * them. While a host switches versions it waits for some tenths of a second.
 */
const WAITING_CHECKS = 10;
const NOT_WAITING = -2;
/** A thread that waits runs for a smaller share of the time than this. */
const RUN_SHARE_MAX = 0.2;
/** How long the thread then keeps its usual policy. */
const USUAL_MS = 5_000;
/** Of `chrt`. */
const FLAGS: Readonly<Record<ThreadPolicy, string>> = { idle: '-i', usual: '-o' };

const port = parentPort;
if (port === null) throw new Error('idle-watch-worker.ts runs as a worker thread');
const { thread } = workerData as IdleWatchData;
const folder = `/proc/self/task/${thread}`;
const buffer = Buffer.alloc(1_024);

let policy: ThreadPolicy = 'usual';
let usualUntilMs = Number.NEGATIVE_INFINITY;
/** The last change, so that two never run at the same time. */
let changing: Promise<void> = Promise.resolve();

function setPolicy(next: ThreadPolicy): Promise<void> {
  changing = changing.then(async () => {
    if (policy === next) return;
    if (!(await runChrt([FLAGS[next], '-p', '0', String(thread)]))) return;
    policy = next;
    port?.postMessage(policy);
  });
  return changing;
}

async function useUsual(): Promise<void> {
  usualUntilMs = performance.now() + USUAL_MS;
  await setPolicy('usual');
}

/** Counts checks at which the thread has been waiting for a core since the check before. */
class CoreWaits {
  readonly #state = openSync(`${folder}/stat`, 'r');
  readonly #times = openSync(`${folder}/schedstat`, 'r');
  #runMs = 0;
  #checkedMs = performance.now();
  count = 0;

  check(): void {
    const nowMs = performance.now();
    const state = read(this.#state);
    // The name of the thread comes before, and may contain anything.
    const canRun = state[state.lastIndexOf(')') + 2] === 'R';
    const runMs = Number.parseInt(read(this.#times), 10) / 1e6;
    const runShare = (runMs - this.#runMs) / (nowMs - this.#checkedMs);
    const change = canRun && runShare < RUN_SHARE_MAX ? 1 : NOT_WAITING;
    this.count = Math.max(0, this.count + change);
    this.#runMs = runMs;
    this.#checkedMs = nowMs;
  }
}

/** Files of /proc have no size: reads what there is, from the beginning. */
function read(descriptor: number): string {
  return buffer.toString('latin1', 0, readSync(descriptor, buffer, 0, buffer.length, 0));
}

async function watch(): Promise<never> {
  const waits = new CoreWaits();
  for (;;) {
    await sleep(CHECK_MS);
    if (policy === 'idle') {
      waits.check();
      if (waits.count >= WAITING_CHECKS) await useUsual();
    } else if (performance.now() >= usualUntilMs) {
      waits.count = 0;
      await setPolicy('idle');
    }
  }
}

port.on('message', async (_: UsePolicy) => {
  await useUsual();
  port.postMessage(policy);
});
void watch();
