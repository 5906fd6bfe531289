/**
 * Builds shards in worker threads, limited by thread count and memory. A shard that needs more
 * than its share of memory may get up to the whole budget, and runs with fewer others then. Small
 * builds run in the calling thread, because starting workers would take longer.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { type BuiltShard, buildShard, computeMemoryBytes, type ShardTask } from './shard-build.ts';
import type { ShardResult } from './shard-worker.ts';

/** Builds with at most this many bytes of records run in the calling thread. */
const SMALL_BYTES = 32 << 20;

export interface ShardThreadsOptions {
  readonly threads: number;
  /** Memory for all shards in progress. */
  readonly budgetBytes: number;
  /** Called in order of completion. */
  readonly onBuilt: (built: BuiltShard, task: ShardTask) => void;
}

/** @throws the first error of a shard, after all shards in progress have ended */
export async function buildShards(
  tasks: Iterable<ShardTask>,
  totalBytes: number,
  options: ShardThreadsOptions,
): Promise<void> {
  if (totalBytes <= SMALL_BYTES) {
    for (const task of tasks) {
      options.onBuilt(buildShard({ ...task, budgetBytes: options.budgetBytes }), task);
    }
    return;
  }
  const threads = new ShardThreads(options);
  try {
    await threads.build(tasks);
  } finally {
    await threads.stop();
  }
}

class ShardThreads {
  readonly #options: ShardThreadsOptions;
  readonly #idle: Worker[] = [];
  readonly #workers: Worker[] = [];
  readonly #exits: Promise<unknown>[] = [];
  #usedBytes = 0;
  #running = 0;
  #failure: unknown;
  #wake: () => void = () => undefined;

  constructor(options: ShardThreadsOptions) {
    this.#options = options;
  }

  async build(tasks: Iterable<ShardTask>): Promise<void> {
    const { threads, budgetBytes } = this.#options;
    for (const task of tasks) {
      const share = Math.floor(budgetBytes / threads);
      const whole = computeMemoryBytes(task.ranges);
      const cost = whole <= budgetBytes ? Math.max(share, whole) : share;
      while (
        this.#running > 0 &&
        (this.#running >= threads || this.#usedBytes + cost > budgetBytes)
      ) {
        await this.#waitForChange();
      }
      if (this.#failure !== undefined) break;
      this.#start(task, cost);
    }
    while (this.#running > 0) await this.#waitForChange();
    if (this.#failure !== undefined) throw this.#failure;
  }

  async stop(): Promise<void> {
    for (const worker of this.#workers) worker.postMessage('end');
    await Promise.all(this.#exits);
  }

  #waitForChange(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #start(task: ShardTask, cost: number): void {
    const worker = this.#idle.pop() ?? this.#startWorker();
    const finish = (act: () => void): void => {
      worker.removeAllListeners('message').removeAllListeners('error');
      this.#running -= 1;
      this.#usedBytes -= cost;
      try {
        act();
      } catch (error) {
        this.#failure ??= error;
      }
      this.#wake();
    };
    worker.once('message', (result: ShardResult) => {
      this.#idle.push(worker);
      finish(() => {
        if ('failed' in result) throw new CubeError(result.failed.code, result.failed.message);
        this.#options.onBuilt(result.built, task);
      });
    });
    worker.once('error', (error) => {
      finish(() => {
        throw error;
      });
    });
    this.#running += 1;
    this.#usedBytes += cost;
    const buffers = new Set(
      task.ranges.flatMap(({ pieces = [] }) => pieces.map(({ buffer }) => buffer as ArrayBuffer)),
    );
    worker.postMessage({ ...task, budgetBytes: cost }, [...buffers]);
  }

  #startWorker(): Worker {
    const worker = new Worker(new URL('./shard-worker.js', import.meta.url), { name: 'shard' });
    this.#workers.push(worker);
    this.#exits.push(new Promise((resolve) => worker.once('exit', resolve)));
    return worker;
  }
}
