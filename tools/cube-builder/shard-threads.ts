/**
 * Builds shards in threads, as many at a time as threads and memory allow. A shard that fits in memory alone is built
 * alone; small builds stay in this thread, where they are done before another would have started.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { type BuiltShard, buildShard, memoryFor, type ShardTask } from './shard-build.ts';
import type { ShardAnswer } from './shard-worker.ts';

/** Records in all shards below which threads cost more than they bring. */
const SMALL_BYTES = 32 << 20;

export interface ThreadOptions {
  readonly threads: number;
  /** For all shards that are being built. */
  readonly budgetBytes: number;
  /** In order of completion. */
  readonly onBuilt: (built: BuiltShard, task: ShardTask) => void;
}

/** @throws the first error of a shard, when no other is being built any more */
export async function buildShards(
  tasks: Iterable<ShardTask>,
  totalBytes: number,
  options: ThreadOptions,
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
    await threads.end();
  }
}

class ShardThreads {
  readonly #options: ThreadOptions;
  readonly #idle: Worker[] = [];
  readonly #workers: Worker[] = [];
  readonly #exits: Promise<unknown>[] = [];
  #usedBytes = 0;
  #running = 0;
  #failure: unknown;
  #wake: () => void = () => undefined;

  constructor(options: ThreadOptions) {
    this.#options = options;
  }

  async build(tasks: Iterable<ShardTask>): Promise<void> {
    const { threads, budgetBytes } = this.#options;
    for (const task of tasks) {
      const share = Math.floor(budgetBytes / threads);
      const whole = memoryFor(task.ranges);
      const cost = whole <= budgetBytes ? Math.max(share, whole) : share;
      while (
        this.#running > 0 &&
        (this.#running >= threads || this.#usedBytes + cost > budgetBytes)
      ) {
        await this.#change();
      }
      if (this.#failure !== undefined) break;
      this.#start(task, cost);
    }
    while (this.#running > 0) await this.#change();
    if (this.#failure !== undefined) throw this.#failure;
  }

  async end(): Promise<void> {
    for (const worker of this.#workers) worker.postMessage('end');
    await Promise.all(this.#exits);
  }

  #change(): Promise<void> {
    return new Promise((resolve) => {
      this.#wake = resolve;
    });
  }

  #start(task: ShardTask, cost: number): void {
    const worker = this.#idle.pop() ?? this.#newWorker();
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
    worker.once('message', (answer: ShardAnswer) => {
      this.#idle.push(worker);
      finish(() => {
        if ('failed' in answer) throw new CubeError(answer.failed.code, answer.failed.message);
        this.#options.onBuilt(answer.built, task);
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

  #newWorker(): Worker {
    const worker = new Worker(new URL('./shard-worker.js', import.meta.url), { name: 'shard' });
    this.#workers.push(worker);
    this.#exits.push(new Promise((resolve) => worker.once('exit', resolve)));
    return worker;
  }
}
