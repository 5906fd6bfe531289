/**
 * The main thread's handle of one model worker: loads the graph, runs batches in order, and stops
 * the worker by message. When the worker dies, exactly the batch that it was running fails; batches
 * that it had not begun can run elsewhere.
 */
import { SHARE_ENV, type TransferListItem, Worker } from 'node:worker_threads';
import { CubeError, type ErrorCode, requireDefined } from '../../lib/core/errors.ts';

/** Messages of the two kinds of model workers: `Job` is a batch, `Result` what it gave. */
export type WorkerRequest<Job> =
  | { readonly kind: 'run'; readonly job: Job }
  | { readonly kind: 'stop' };

export type WorkerReply<Ready, Result> =
  | { readonly kind: 'ready'; readonly ready: Ready }
  | { readonly kind: 'done'; readonly result: Result }
  | { readonly kind: 'failed'; readonly code: ErrorCode; readonly message: string };

/** A request that the worker has not answered. */
interface PendingReply<Ready, Result> {
  resolve(reply: WorkerReply<Ready, Result> | undefined): void;
  reject(error: CubeError): void;
}

export class ModelInstance<Ready, Job, Result> {
  readonly #worker: Worker;
  /** Settles when the thread has ended, and uses no shared memory any more. */
  readonly exited: Promise<void>;
  /** In the order of the requests; the worker processes the first. */
  readonly #pending: PendingReply<Ready, Result>[] = [];
  #ready: Ready | undefined;
  #isStopping = false;
  #isUnused = true;
  /** The load has succeeded, so that an unexpected end must be handled by `onDeath`. */
  #isLoaded = false;

  private constructor(worker: Worker, onDeath: (error: CubeError) => void) {
    this.#worker = worker;
    let cause: Error | undefined;
    worker.on('message', (reply: WorkerReply<Ready, Result>) =>
      this.#pending.shift()?.resolve(reply),
    );
    worker.on('error', (error) => {
      cause = error;
    });
    this.exited = new Promise((resolve) => {
      worker.once('exit', (exitCode) => {
        const activity = this.#isLoaded ? 'ran this batch' : 'loaded the graph';
        const reason = cause?.message ?? `exit code ${exitCode}`;
        const message = `the model worker died while it ${activity} (${reason}); try again`;
        const error = new CubeError('UNAVAILABLE', message, { cause });
        if (this.#isLoaded && !this.#isStopping) onDeath(error);
        const [running, ...others] = this.#pending.splice(0);
        running?.reject(error);
        for (const other of others) other.resolve(undefined);
        resolve();
      });
    });
  }

  /**
   * Starts a worker and waits until its graph is loaded and warm.
   * @param onDeath called once when the worker ends unexpectedly after it was loaded
   */
  static async start<Ready, Job, Result>(
    script: URL,
    data: unknown,
    onDeath: (error: CubeError) => void,
  ): Promise<ModelInstance<Ready, Job, Result>> {
    // The native runtime reads the process's real environment (lib/platform/disable-telemetry.ts).
    const worker = new Worker(script, { workerData: data, name: 'model-worker', env: SHARE_ENV });
    const instance = new ModelInstance<Ready, Job, Result>(worker, onDeath);
    try {
      const reply = await instance.#request();
      if (reply?.kind === 'ready') instance.#ready = reply.ready;
    } catch (error) {
      await instance.exited;
      throw error;
    }
    instance.#isLoaded = true;
    return instance;
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
   * @param transfer buffers of the job that move to the worker
   * @returns undefined when the worker died before it began the batch
   * @throws CubeError UNAVAILABLE when it died while it ran the batch, INTERNAL when the graph
   *   failed
   */
  async run(job: Job, transfer?: readonly TransferListItem[]): Promise<Result | undefined> {
    this.#isUnused = false;
    const reply = await this.#request({ kind: 'run', job }, transfer);
    return reply?.kind === 'done' ? reply.result : undefined;
  }

  /** Stops the worker after its batches, and waits for its exit. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#worker.postMessage({ kind: 'stop' } satisfies WorkerRequest<Job>);
    await this.exited;
  }

  async #request(
    message?: WorkerRequest<Job>,
    transfer?: readonly TransferListItem[],
  ): Promise<WorkerReply<Ready, Result> | undefined> {
    const reply = await new Promise<WorkerReply<Ready, Result> | undefined>((resolve, reject) => {
      this.#pending.push({ resolve, reject });
      if (message !== undefined) this.#worker.postMessage(message, transfer);
    });
    if (reply?.kind === 'failed') throw new CubeError(reply.code, reply.message);
    return reply;
  }
}
