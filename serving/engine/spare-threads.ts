/**
 * Worker threads whose graph was released wait here for the next one. To start a thread costs many
 * times what it costs to load a usual graph, and a thread that has run before has compiled code.
 * So a sequence of version switches starts no threads. Idle threads do not keep the process alive.
 */
import { availableParallelism } from 'node:os';
import { SHARE_ENV, Worker } from 'node:worker_threads';

/** Ends an idle thread. */
export interface EndMessage {
  readonly kind: 'end';
}

export interface SpareThreadsOptions {
  /** Idle threads of each script. */
  readonly spareMax: number;
  /** How long a thread may be idle. */
  readonly idleMs: number;
}

export interface TakenThread {
  readonly worker: Worker;
  /** It ran a graph before; it may have died since, which its events will say. */
  readonly isUsed: boolean;
}

interface SpareThread {
  readonly worker: Worker;
  readonly timer: NodeJS.Timeout;
  readonly onExit: () => void;
}

/** An error of an idle thread ends it, and nothing else depends on it. */
const ignoreError = (): void => undefined;

export class SpareThreads {
  readonly #options: SpareThreadsOptions;
  /** By script, the last used at the end. */
  readonly #spare = new Map<string, SpareThread[]>();

  constructor(options: SpareThreadsOptions) {
    this.#options = options;
  }

  /** @returns an idle thread of the script, which has no listeners any more, or a new one */
  take(script: URL): TakenThread {
    const last = this.#spare.get(script.href)?.pop();
    if (last === undefined) {
      // The native runtime reads the real environment (lib/platform/disable-telemetry.ts).
      return {
        worker: new Worker(script, { name: 'model-worker', env: SHARE_ENV }),
        isUsed: false,
      };
    }
    const { worker, timer, onExit } = last;
    clearTimeout(timer);
    worker.off('exit', onExit);
    worker.off('error', ignoreError);
    worker.ref();
    return { worker, isUsed: true };
  }

  /**
   * Keeps a thread for the next graph, or ends it when there are enough.
   * @param worker a thread of the script that has released its graph; it has no listeners
   */
  give(script: URL, worker: Worker): void {
    worker.on('error', ignoreError);
    worker.unref();
    const spare = this.#spare.get(script.href) ?? [];
    this.#spare.set(script.href, spare);
    if (spare.length >= this.#options.spareMax) {
      endThread(worker);
      return;
    }
    const remove = (): void => {
      clearTimeout(timer);
      const index = spare.findIndex((one) => one.worker === worker);
      if (index >= 0) spare.splice(index, 1);
    };
    const timer = setTimeout(() => {
      remove();
      endThread(worker);
    }, this.#options.idleMs).unref();
    worker.once('exit', remove);
    spare.push({ worker, timer, onExit: remove });
  }

  /** Ends all idle threads and waits until they have ended. */
  async end(): Promise<void> {
    const threads = [...this.#spare.values()].flatMap((spare) => spare.splice(0));
    await Promise.all(
      threads.map(async ({ worker, timer }) => {
        clearTimeout(timer);
        worker.ref();
        const exited = new Promise((resolve) => worker.once('exit', resolve));
        endThread(worker);
        await exited;
      }),
    );
  }
}

/** The thread has no graph. */
export function endThread(worker: Worker): void {
  worker.postMessage({ kind: 'end' } satisfies EndMessage);
}

const IDLE_MS = 10 * 60_000;

/** Those of this process. By default a version has an instance for each core. */
export const spareThreads: SpareThreads = new SpareThreads({
  spareMax: availableParallelism(),
  idleMs: IDLE_MS,
});
