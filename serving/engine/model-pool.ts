/**
 * The model instances of one version. A batch goes to an idle instance, or behind the one batch that an instance runs, so that
 * none waits for the main thread between two batches; it belongs to that instance alone. Of two as busy the one that has run
 * nothing yet goes first, so that a warm-up of as many batches reaches every instance. A dead instance is replaced, with
 * growing pauses, and its successor looks up in the same area of the tables' memories.
 *
 * Invariants: an instance never has more than two batches; `stop` lets running batches finish; no worker is ever terminated.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type { ThreadNumbers } from '../stores/thread-numbers.ts';
import type { OutputShape } from './batch-slab.ts';
import { ModelInstance } from './model-instance.ts';
import type { BatchDone, WorkerStart } from './model-worker.ts';

export interface ModelPoolOptions extends Omit<WorkerStart, 'resident'> {
  readonly instances: number;
  /** Where instances look up by themselves: what, and under which numbers. */
  readonly resident?: {
    readonly shards: readonly SharedVersion[];
    readonly threads: ThreadNumbers;
  };
  readonly logger: Logger;
  readonly clock?: Clock;
  /** The worker's script; tests wrap it to make it die. */
  readonly script?: URL;
}

interface Job {
  readonly slab: SharedArrayBuffer;
  readonly rowCount: number;
  resolve(done: Promise<BatchDone | undefined>): void;
  reject(error: CubeError): void;
}

const WORKER_SCRIPT = new URL('./model-worker.js', import.meta.url);
/** Running, and ready to run. */
const BATCHES_PER_INSTANCE = 2;
const RESTART_PAUSE_MS = 50;
const RESTART_PAUSE_MAX_MS = 10_000;

export class ModelPool {
  readonly #options: ModelPoolOptions;
  readonly #clock: Clock;
  readonly #instances = new Set<ModelInstance>();
  readonly #queue: Job[] = [];
  readonly #stopping = new AbortController();
  readonly #restarts = new Set<Promise<void>>();
  #outputs: readonly OutputShape[] = [];
  #deaths = 0;
  #onFree: () => void = () => undefined;

  private constructor(options: ModelPoolOptions) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
  }

  /** Loads and warms every instance. @throws CubeError when the graph does not load or does not match the plan */
  static async start(options: ModelPoolOptions): Promise<ModelPool> {
    const pool = new ModelPool(options);
    // The first alone: a broken graph is then one failure, not one for each instance.
    await pool.#addInstance();
    const others = Array.from({ length: options.instances - 1 }, () => pool.#addInstance());
    const outcomes = await Promise.allSettled(others);
    const failure = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failure === undefined) return pool;
    await pool.stop();
    throw CubeError.from(failure.reason);
  }

  /** The graph's outputs, the click output first. */
  get outputs(): readonly OutputShape[] {
    return this.#outputs;
  }

  /** Values of the click output in a row. */
  get outputNum(): number {
    return this.#outputs[0]!.width;
  }

  /** Who looks rows up: the instances by themselves, or the main thread before it hands a batch on. */
  get looksUp(): 'worker' | 'main' {
    return this.#options.resident === undefined ? 'main' : 'worker';
  }

  /** Instances that are loaded and alive. */
  get alive(): number {
    return this.#instances.size;
  }

  /** Instances that were given no batch yet. */
  get fresh(): number {
    return [...this.#instances].filter(({ isFresh }) => isFresh).length;
  }

  /** Batches that wait for an instance. */
  get queued(): number {
    return this.#queue.length;
  }

  /** How many instances have died since the start. */
  get deaths(): number {
    return this.#deaths;
  }

  /** Calls `onFree` whenever an instance was added. */
  observe(onFree: () => void): void {
    this.#onFree = onFree;
  }

  /**
   * Runs one batch on one instance. The slab then has its outputs filled. @returns undefined when the instance died before it began
   * @throws CubeError UNAVAILABLE when its worker died with it, INTERNAL when the graph refused it
   */
  run(slab: SharedArrayBuffer, rowCount: number): Promise<BatchDone | undefined> {
    if (this.#stopping.signal.aborted) return Promise.reject(stoppingError());
    const instance = this.#leastBusy();
    if (instance !== undefined) return this.#runOn(instance, slab, rowCount);
    return new Promise((resolve, reject) => {
      this.#queue.push({ slab, rowCount, resolve, reject });
    });
  }

  /** Ends all instances after what they run; what still waits is refused. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    for (const job of this.#queue.splice(0)) job.reject(stoppingError());
    await Promise.all(this.#restarts);
    await Promise.all([...this.#instances].map((instance) => instance.stop()));
    this.#instances.clear();
  }

  #leastBusy(): ModelInstance | undefined {
    let found: ModelInstance | undefined;
    let held = BATCHES_PER_INSTANCE;
    for (const instance of this.#instances) {
      const isFresher = instance.held === held && instance.isFresh && found?.isFresh === false;
      if (instance.held < held || isFresher) {
        found = instance;
        held = instance.held;
      }
    }
    return found;
  }

  async #runOn(
    instance: ModelInstance,
    slab: SharedArrayBuffer,
    rowCount: number,
  ): Promise<BatchDone | undefined> {
    try {
      return await instance.run(slab, rowCount);
    } finally {
      this.#runQueued();
    }
  }

  #runQueued(): void {
    while (this.#queue.length > 0) {
      const instance = this.#leastBusy();
      if (instance === undefined) return;
      const { slab, rowCount, resolve } = this.#queue.shift()!;
      resolve(this.#runOn(instance, slab, rowCount));
    }
  }

  /** Counts a worker that ended by itself out, and starts another in its place. */
  #onDeath(instance: ModelInstance, error: CubeError): void {
    this.#deaths++;
    this.#instances.delete(instance);
    const { logger, plan } = this.#options;
    logger.error({ model: plan.source, error: error.message }, 'a model worker died');
    const restart = this.#restart();
    this.#restarts.add(restart);
    void restart.finally(() => this.#restarts.delete(restart));
  }

  async #restart(): Promise<void> {
    const { logger, plan } = this.#options;
    const { signal } = this.#stopping;
    for (let pauseMs = RESTART_PAUSE_MS; !signal.aborted; pauseMs *= 2) {
      await this.#clock.sleep(Math.min(pauseMs, RESTART_PAUSE_MAX_MS), signal);
      if (signal.aborted) return;
      try {
        await this.#addInstance();
        logger.info({ model: plan.source }, 'a model worker was replaced');
        return;
      } catch (error) {
        logger.error(
          { model: plan.source, error: CubeError.from(error).message },
          'a model worker could not be replaced; trying again',
        );
      }
    }
  }

  async #addInstance(): Promise<void> {
    const { model, data, plan, rowsMax, resident, script = WORKER_SCRIPT } = this.#options;
    const thread = resident?.threads.take() ?? 0;
    const giveBack = (): void => resident?.threads.give(thread);
    const tables = resident && { shards: resident.shards, thread };
    const start = { model, data, plan, rowsMax, resident: tables };
    let instance: ModelInstance;
    try {
      instance = await ModelInstance.start(script, start, (error) =>
        this.#onDeath(instance, error),
      );
    } catch (error) {
      giveBack();
      throw error;
    }
    void instance.exited.then(giveBack);
    this.#outputs = instance.outputs;
    this.#instances.add(instance);
    this.#runQueued();
    this.#onFree();
  }
}

function stoppingError(): CubeError {
  return new CubeError('STOPPING', 'this version is being retired');
}
