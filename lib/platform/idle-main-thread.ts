/**
 * Lets the main thread of this process run in idle time only (Linux's policy SCHED_IDLE, see
 * `runWhenIdle`), and takes its usual policy back when the machine has no idle time. A thread of
 * its own watches that, because a main thread that gets no core could not.
 */
import { existsSync } from 'node:fs';
import { stat } from 'node:fs/promises';
import { Worker } from 'node:worker_threads';
import type { IdleWatchData, ThreadPolicy, UsePolicy } from './idle-watch-protocol.ts';
import { runChrt } from './machine.ts';

/** Sets the policy and the priority that processes usually have. */
const USUAL_POLICY = ['-o'] as const;

export class IdleMainThread {
  #hasStarted = false;
  #watcher: Worker | undefined;
  #waiting: (() => void)[] = [];

  /**
   * What starts a child process with the usual policy: children inherit that of the main thread.
   */
  get commandPrefix(): readonly string[] {
    return this.#hasStarted ? ['chrt', ...USUAL_POLICY, '0'] : [];
  }

  /**
   * @param onChange called when the main thread gets another policy
   * @returns false where this process could not take its usual policy back: it then keeps it
   */
  async start(onChange: (policy: ThreadPolicy) => void): Promise<boolean> {
    if (!(await canReturnFromIdle())) return false;
    // Threads inherit the policy, too: those that Node starts for files and names start before.
    await stat('/');
    this.#hasStarted = true;
    const thread = process.pid;
    const watcher = new Worker(new URL('./idle-watch-worker.js', import.meta.url), {
      name: 'idle-watch',
      workerData: { thread } satisfies IdleWatchData,
    });
    watcher.unref();
    watcher.on('message', (policy: ThreadPolicy) => {
      if (policy === 'usual') this.#resolveWaiting();
      onChange(policy);
    });
    watcher.on('error', () => undefined);
    // Nobody else would notice that the main thread gets no core.
    watcher.on('exit', () => {
      this.#watcher = undefined;
      this.#resolveWaiting();
      void runChrt([...USUAL_POLICY, '-p', '0', String(thread)]);
    });
    this.#watcher = watcher;
    return true;
  }

  /** Takes the usual policy for some seconds: for threads that must not inherit the other one. */
  async useUsual(): Promise<void> {
    const watcher = this.#watcher;
    if (watcher === undefined) return;
    await new Promise<void>((resolve) => {
      this.#waiting.push(resolve);
      watcher.postMessage('usual' satisfies UsePolicy);
    });
  }

  async stop(): Promise<void> {
    await this.#watcher?.terminate();
  }

  #resolveWaiting(): void {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }
}

/** Privileged processes may, and those whose RLIMIT_NICE permits their nice value. */
async function canReturnFromIdle(): Promise<boolean> {
  if (!existsSync(`/proc/self/task/${process.pid}/schedstat`)) return false;
  return runChrt(['-i', '0', 'chrt', ...USUAL_POLICY, '0', 'true']);
}
