/**
 * The model instances of one version. A batch waits in one queue, goes to the first idle instance and belongs to it alone;
 * a batch whose deadline passed while it waited is never run. A dead instance is replaced, with growing pauses.
 *
 * Invariants: `stop` lets running batches finish; no worker is ever terminated.
 */
import { CubeError } from '../lib/core/errors.ts';
import { type Clock, systemClock } from '../lib/platform/clock.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { ModelInstance } from './model-instance.ts';
import type { WorkerStart } from './model-worker.ts';

export interface ModelPoolOptions extends WorkerStart {
  readonly instances: number;
  readonly logger: Logger;
  readonly clock?: Clock;
  /** The worker's script; tests wrap it to make it die. */
  readonly script?: URL;
}

interface Job {
  readonly slab: ArrayBuffer;
  readonly rowCount: number;
  readonly deadlineMs: number;
  resolve(slab: ArrayBuffer): void;
  reject(error: CubeError): void;
}

const WORKER_SCRIPT = new URL('./model-worker.js', import.meta.url);
const RESTART_PAUSE_MS = 50;
const RESTART_PAUSE_MAX_MS = 10_000;

export class ModelPool {
  readonly #options: ModelPoolOptions;
  readonly #clock: Clock;
  readonly #instances = new Set<ModelInstance>();
  readonly #idle: ModelInstance[] = [];
  readonly #queue: Job[] = [];
  readonly #stopping = new AbortController();
  readonly #restarts = new Set<Promise<void>>();
  #outputNum = 0;
  #deaths = 0;

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

  /** Values of the click output in a row. */
  get outputNum(): number {
    return this.#outputNum;
  }

  /** Instances that are loaded and alive. */
  get alive(): number {
    return this.#instances.size;
  }

  get queued(): number {
    return this.#queue.length;
  }

  /** How many instances have died since the start. */
  get deaths(): number {
    return this.#deaths;
  }

  /**
   * Runs one batch on one instance. @returns the slab with its output filled
   * @throws CubeError DEADLINE_EXCEEDED when it waited too long, UNAVAILABLE when its worker died
   */
  async run(slab: ArrayBuffer, rowCount: number, deadlineMs: number): Promise<ArrayBuffer> {
    if (this.#stopping.signal.aborted) throw stoppingError();
    return new Promise((resolve, reject) => {
      const job = { slab, rowCount, deadlineMs, resolve, reject };
      const instance = this.#idle.pop();
      if (instance === undefined) this.#queue.push(job);
      else void this.#work(instance, job);
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

  /** Runs this job and then what waits, until the queue is empty or the instance is dead. */
  async #work(instance: ModelInstance, first: Job): Promise<void> {
    let job: Job | undefined = first;
    while (job !== undefined) {
      if (this.#clock.nowMs() >= job.deadlineMs) job.reject(expiredError());
      else await instance.run(job.slab, job.rowCount).then(job.resolve, job.reject);
      if (!this.#instances.has(instance)) return;
      job = this.#queue.shift();
    }
    this.#idle.push(instance);
  }

  /** Counts a worker that ended by itself out, and starts another in its place. */
  #onDeath(instance: ModelInstance, error: CubeError): void {
    this.#deaths++;
    this.#instances.delete(instance);
    const at = this.#idle.indexOf(instance);
    if (at >= 0) this.#idle.splice(at, 1);
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
    const instance = await startInstance(this.#options, (error) => this.#onDeath(instance, error));
    this.#outputNum = instance.outputNum;
    this.#instances.add(instance);
    const next = this.#queue.shift();
    if (next === undefined) this.#idle.push(instance);
    else void this.#work(instance, next);
  }
}

function startInstance(
  { model, data, plan, script = WORKER_SCRIPT }: ModelPoolOptions,
  onDeath: (error: CubeError) => void,
): Promise<ModelInstance> {
  return ModelInstance.start(script, { model, data, plan }, onDeath);
}

function expiredError(): CubeError {
  return new CubeError('DEADLINE_EXCEEDED', 'the deadline passed before a model instance was free');
}

function stoppingError(): CubeError {
  return new CubeError('STOPPING', 'this version is being retired');
}
