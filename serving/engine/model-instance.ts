/**
 * The main thread's handle of one model worker: loads the graph, runs batches in order, and stops
 * the worker by message. When the worker dies, exactly the batch that it was running fails; batches
 * that it had not begun can run elsewhere.
 */
import { SHARE_ENV, Worker } from 'node:worker_threads';
import { CubeError, type ErrorCode, requireDefined } from '../../lib/core/errors.ts';

/** Messages that the workers of both kinds of models have besides those of their channels. */
export interface StopMessage {
  readonly kind: 'stop';
}

export interface ReadyMessage<Ready> {
  readonly kind: 'ready';
  readonly ready: Ready;
}

/** How batches reach one worker and come back: `Job` is a batch, `Result` what it gave. */
export interface InstanceChannel<Job, Result> {
  /** Called in the order of the batches. */
  encode(job: Job): unknown;
  /** Called once for each encoded batch, in their order. @throws CubeError of the worker */
  decode(reply: unknown): Result;
}

export interface FailedReply {
  readonly kind: 'failed';
  readonly code: ErrorCode;
  readonly message: string;
}

/** A batch that the worker has not answered. */
interface PendingBatch<Result> {
  resolve(result: Result | undefined): void;
  reject(error: unknown): void;
}

export interface InstanceOptions<Job, Result> {
  readonly script: URL;
  readonly workerData: unknown;
  readonly channel: InstanceChannel<Job, Result>;
  /** Called when the worker can take another batch. */
  onReply(): void;
  /** Called once when the worker ends unexpectedly after it was loaded. */
  onDeath(error: CubeError): void;
}

export class ModelInstance<Ready, Job, Result> {
  readonly #options: InstanceOptions<Job, Result>;
  readonly #worker: Worker;
  /** Settles when the thread has ended, and uses no shared memory any more. */
  readonly exited: Promise<void>;
  /** In the order of the batches; the worker runs the first. */
  readonly #pending: PendingBatch<Result>[] = [];
  #ready: Ready | undefined;
  #isStopping = false;
  #isUnused = true;

  private constructor(
    options: InstanceOptions<Job, Result>,
    onFailure: (error: CubeError) => void,
  ) {
    const { script, workerData } = options;
    this.#options = options;
    // The native runtime reads the process's real environment (lib/platform/disable-telemetry.ts).
    this.#worker = new Worker(script, { workerData, name: 'model-worker', env: SHARE_ENV });
    let cause: Error | undefined;
    this.#worker.on('error', (error) => {
      cause = error;
    });
    this.exited = new Promise((resolve) => {
      this.#worker.once('exit', (exitCode) => {
        // An unexpected end of a loaded worker is handled by `onDeath`.
        const isLoaded = this.#ready !== undefined;
        const activity = isLoaded ? 'ran this batch' : 'loaded the graph';
        const reason = cause?.message ?? `exit code ${exitCode}`;
        const message = `the model worker died while it ${activity} (${reason}); try again`;
        const error = new CubeError('UNAVAILABLE', message, { cause });
        if (isLoaded && !this.#isStopping) options.onDeath(error);
        onFailure(error);
        const [running, ...others] = this.#pending.splice(0);
        running?.reject(error);
        for (const other of others) other.resolve(undefined);
        resolve();
      });
    });
  }

  /** Starts a worker and waits until its graph is loaded and warm. @throws CubeError */
  static async start<Ready, Job, Result>(
    options: InstanceOptions<Job, Result>,
  ): Promise<ModelInstance<Ready, Job, Result>> {
    let instance: ModelInstance<Ready, Job, Result> | undefined;
    try {
      await new Promise<void>((resolve, reject) => {
        const started = new ModelInstance<Ready, Job, Result>(options, reject);
        instance = started;
        started.#worker.once('message', (reply: ReadyMessage<Ready> | FailedReply) => {
          if (reply.kind === 'failed') {
            reject(new CubeError(reply.code, reply.message));
            return;
          }
          started.#ready = reply.ready;
          started.#worker.on('message', (result: unknown) => started.#handleReply(result));
          resolve();
        });
      });
    } catch (error) {
      await instance?.exited;
      throw error;
    }
    return requireDefined(instance, 'the started worker');
  }

  /** What the worker said when it had loaded the graph. */
  get ready(): Ready {
    return requireDefined(this.#ready, 'the reply of a loaded worker');
  }

  /** It has not received a batch yet. */
  get isUnused(): boolean {
    return this.#isUnused;
  }

  /** Batches that it runs, or that wait for it. */
  get batchCount(): number {
    return this.#pending.length;
  }

  /**
   * Runs one batch after those that it already has. The worker owns the job until the promise
   * settles.
   * @returns undefined when the worker died before it began the batch
   * @throws CubeError UNAVAILABLE when it died while it ran the batch, INTERNAL when the graph
   *   failed
   */
  run(job: Job): Promise<Result | undefined> {
    this.#isUnused = false;
    return new Promise((resolve, reject) => {
      this.#worker.postMessage(this.#options.channel.encode(job));
      this.#pending.push({ resolve, reject });
    });
  }

  /** Stops the worker after its batches, and waits for its exit. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#worker.postMessage({ kind: 'stop' } satisfies StopMessage);
    await this.exited;
  }

  #handleReply(reply: unknown): void {
    const { channel, onReply } = this.#options;
    const batch = this.#pending.shift();
    try {
      const result = channel.decode(reply);
      batch?.resolve(result);
    } catch (error) {
      batch?.reject(error);
    }
    onReply();
  }
}
