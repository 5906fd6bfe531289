/**
 * The model instances of one version, of a bundle or of a plain model. A batch goes to an idle
 * instance, or waits behind the one batch that an instance runs, so that no instance waits for the
 * main thread between two batches. Among equally busy instances, an unused one is preferred, so
 * that a warm-up of as many batches as instances reaches every instance. An instance that died is
 * replaced, with growing pauses.
 *
 * Invariants
 * - An instance never has more than two batches.
 * - `stop` lets running batches finish. No worker is ever terminated.
 */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { type Clock, systemClock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { CPU_ONLY, type ProviderOrder } from '../../lib/platform/onnx-providers.ts';
import { BATCHES_PER_INSTANCE } from './engine-options.ts';
import type { InstanceChannel, ModelInstance } from './model-instance.ts';

export interface InstancePoolOptions<Job, Result> {
  readonly instances: number;
  readonly logger: Logger;
  /** Names the model in logs. */
  readonly source: string;
  readonly clock?: Clock;
  /** The worker's script. */
  readonly script: URL;
  /** Instances are spread evenly over these; default: all on the CPU. */
  readonly placements?: readonly ProviderOrder[];
  /** Of one worker. */
  createChannel(): InstanceChannel<Job, Result>;
  /** The options of a worker's start, and what to do when it has released the graph or ended. */
  createWorkerData(providers: ProviderOrder): { readonly data: unknown; onEnd?(): void };
}

/** Workers, also starting ones, that run on the same execution providers. */
export interface InstancePlacement {
  readonly providers: ProviderOrder;
  readonly workers: number;
}

interface QueuedBatch<Job, Result> {
  readonly job: Job;
  resolve(done: Promise<Result | undefined>): void;
  reject(error: CubeError): void;
}

const RESTART_PAUSE_MS = 50;
const RESTART_PAUSE_MAX_MS = 10_000;

export class InstancePool<Ready, Job, Result> {
  readonly #options: InstancePoolOptions<Job, Result>;
  readonly #clock: Clock;
  readonly #instances = new Set<ModelInstance<Ready, Job, Result>>();
  readonly #placements: { readonly providers: ProviderOrder; workers: number }[];
  readonly #queue: QueuedBatch<Job, Result>[] = [];
  readonly #stopping = new AbortController();
  readonly #restarts = new Set<Promise<void>>();
  #ready: Ready | undefined;
  #deaths = 0;
  #onInstanceAdded: () => void = () => undefined;

  protected constructor(options: InstancePoolOptions<Job, Result>) {
    this.#options = options;
    this.#clock = options.clock ?? systemClock;
    const { placements = [CPU_ONLY] } = options;
    this.#placements = placements.map((providers) => ({ providers, workers: 0 }));
  }

  /** Loads every instance. @throws CubeError when the graph does not load */
  static async start<Ready, Job, Result>(
    options: InstancePoolOptions<Job, Result>,
  ): Promise<InstancePool<Ready, Job, Result>> {
    const pool = new InstancePool<Ready, Job, Result>(options);
    await pool.open();
    return pool;
  }

  protected async open(): Promise<void> {
    // The first alone, so that a broken graph fails once and not for each instance.
    await this.#addInstance();
    const others = Array.from({ length: this.#options.instances - 1 }, () => this.#addInstance());
    const outcomes = await Promise.allSettled(others);
    const failure = outcomes.find((outcome) => outcome.status === 'rejected');
    if (failure === undefined) return;
    await this.stop();
    throw CubeError.from(failure.reason);
  }

  /** What the newest worker said when it had loaded the graph. */
  get ready(): Ready {
    return requireDefined(this.#ready, 'the reply of a loaded worker');
  }

  /** Instances that are loaded and alive. */
  get aliveInstances(): number {
    return this.#instances.size;
  }

  /** Instances that have not received a batch yet. */
  get unusedInstances(): number {
    return [...this.#instances].filter(({ isUnused }) => isUnused).length;
  }

  get placements(): readonly InstancePlacement[] {
    return this.#placements;
  }

  /** Batches that wait for an instance. */
  get queuedBatches(): number {
    return this.#queue.length;
  }

  /** How many instances have died since the start. */
  get workerDeaths(): number {
    return this.#deaths;
  }

  /** Calls `callback` whenever an instance was added. */
  onInstanceAdded(callback: () => void): void {
    this.#onInstanceAdded = callback;
  }

  /**
   * Runs one batch on one instance.
   * @returns undefined when the instance died before it began the batch
   * @throws CubeError UNAVAILABLE when its worker died while it ran the batch, INTERNAL when the
   *   graph failed
   */
  run(job: Job): Promise<Result | undefined> {
    if (this.#stopping.signal.aborted) return Promise.reject(makeStoppingError());
    const instance = this.#findLeastBusy();
    if (instance !== undefined) return instance.run(job);
    return new Promise((resolve, reject) => {
      this.#queue.push({ job, resolve, reject });
    });
  }

  /** Stops all instances after their batches; batches that wait for an instance fail. */
  async stop(): Promise<void> {
    this.#stopping.abort();
    for (const batch of this.#queue.splice(0)) batch.reject(makeStoppingError());
    await Promise.all(this.#restarts);
    await Promise.all([...this.#instances].map((instance) => instance.stop()));
    this.#instances.clear();
  }

  #findLeastBusy(): ModelInstance<Ready, Job, Result> | undefined {
    let found: ModelInstance<Ready, Job, Result> | undefined;
    let fewest = BATCHES_PER_INSTANCE;
    for (const instance of this.#instances) {
      const isPreferred =
        instance.batchCount === fewest && instance.isUnused && found?.isUnused === false;
      if (instance.batchCount < fewest || isPreferred) {
        found = instance;
        fewest = instance.batchCount;
      }
    }
    return found;
  }

  #runQueued(): void {
    while (this.#queue.length > 0) {
      const instance = this.#findLeastBusy();
      if (instance === undefined) return;
      const batch = this.#queue.shift();
      if (batch !== undefined) batch.resolve(instance.run(batch.job));
    }
  }

  /** Removes an instance whose worker died, and starts another one. */
  #onDeath(instance: ModelInstance<Ready, Job, Result>, error: CubeError): void {
    this.#deaths++;
    this.#instances.delete(instance);
    const { logger, source } = this.#options;
    logger.error({ model: source, error: error.message }, 'a model worker died');
    const restart = this.#restart();
    this.#restarts.add(restart);
    void restart.finally(() => this.#restarts.delete(restart));
  }

  async #restart(): Promise<void> {
    const { logger, source } = this.#options;
    const { signal } = this.#stopping;
    for (let pauseMs = RESTART_PAUSE_MS; !signal.aborted; pauseMs *= 2) {
      await this.#clock.sleep(Math.min(pauseMs, RESTART_PAUSE_MAX_MS), signal);
      if (signal.aborted) return;
      try {
        await this.#addInstance();
        logger.info({ model: source }, 'a model worker was replaced');
        return;
      } catch (error) {
        logger.error(
          { model: source, error: CubeError.from(error).message },
          'a model worker could not be replaced; trying again',
        );
      }
    }
  }

  async #addInstance(): Promise<void> {
    const { script, createChannel } = this.#options;
    const placement = this.#placements.reduce((a, b) => (b.workers < a.workers ? b : a));
    const worker = this.#options.createWorkerData(placement.providers);
    const { data } = worker;
    placement.workers++;
    const onEnd = (): void => {
      placement.workers--;
      worker.onEnd?.();
    };
    let instance: ModelInstance<Ready, Job, Result>;
    try {
      // A server listens before it has a model: instances are not part of every start.
      const module = await import('./model-instance.ts');
      instance = await module.ModelInstance.start<Ready, Job, Result>({
        script,
        workerData: data,
        channel: createChannel(),
        onReply: () => this.#runQueued(),
        onDeath: (error) => this.#onDeath(instance, error),
      });
    } catch (error) {
      onEnd();
      throw error;
    }
    void instance.ended.then(onEnd);
    this.#ready = instance.ready;
    this.#instances.add(instance);
    this.#runQueued();
    this.#onInstanceAdded();
  }
}

function makeStoppingError(): CubeError {
  return new CubeError('STOPPING', 'this version is being retired; send the request again');
}
