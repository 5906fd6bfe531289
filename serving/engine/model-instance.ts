/**
 * The main thread's handle of one model instance: loads its graph in a worker thread, runs batches
 * in order, and releases the graph by message; then the thread is kept for another instance
 * (spare-threads.ts). When the thread dies, exactly the batch that it was running fails; batches
 * that it had not begun can run elsewhere.
 */
import type { Worker } from 'node:worker_threads';
import { CubeError, type ErrorCode, requireDefined } from '../../lib/core/errors.ts';
import { endThread, spareThreads, type TakenThread } from './spare-threads.ts';

/**
 * Messages that the workers of both kinds of models have besides those of their channels
 * (graph-thread.ts).
 */
export interface StartMessage<Options> {
  readonly kind: 'start';
  readonly options: Options;
}

export interface StopMessage {
  readonly kind: 'stop';
}

export interface ReadyMessage<Ready> {
  readonly kind: 'ready';
  readonly ready: Ready;
}

/** The last message about a graph: the thread has nothing of it any more. */
export interface ReleasedMessage {
  readonly kind: 'released';
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
  /** The options of the graph's start. */
  readonly workerData: unknown;
  readonly channel: InstanceChannel<Job, Result>;
  /** Called when the worker can take another batch. */
  onReply(): void;
  /** Called once when the worker ends unexpectedly after it was loaded. */
  onDeath(error: CubeError): void;
}

export class ModelInstance<Ready, Job, Result> {
  readonly #options: InstanceOptions<Job, Result>;
  readonly #thread: TakenThread;
  /** Settles when the thread has released the graph or has ended: it uses no shared memory then. */
  readonly ended: Promise<void>;
  /** In the order of the batches; the worker runs the first. */
  readonly #pending: PendingBatch<Result>[] = [];
  #ready: Ready | undefined;
  /** Why the thread ends. */
  #cause: Error | undefined;
  #isStopping = false;
  #isUnused = true;
  /** The thread has not replied to anything. */
  #isSilent = true;
  #onEnd: () => void = () => undefined;
  /** Settles the load. */
  #onLoaded: (error?: CubeError) => void = () => undefined;

  private constructor(options: InstanceOptions<Job, Result>) {
    this.#options = options;
    this.#thread = spareThreads.take(options.script);
    const { worker } = this.#thread;
    this.ended = new Promise((resolve) => {
      this.#onEnd = resolve;
    });
    worker.on('message', this.#onMessage);
    worker.on('error', this.#onError);
    worker.once('exit', this.#onExit);
  }

  /** Takes a worker and waits until its graph is loaded and warm. @throws CubeError */
  static async start<Ready, Job, Result>(
    options: InstanceOptions<Job, Result>,
  ): Promise<ModelInstance<Ready, Job, Result>> {
    for (;;) {
      const instance = new ModelInstance<Ready, Job, Result>(options);
      try {
        await instance.#load();
        return instance;
      } catch (error) {
        await instance.ended;
        // A spare thread may have died before it got the graph.
        if (!instance.#thread.isUsed || !instance.#isSilent) throw error;
      }
    }
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

  /** Releases the graph after its batches, and waits for that. */
  async stop(): Promise<void> {
    this.#isStopping = true;
    this.#worker.postMessage({ kind: 'stop' } satisfies StopMessage);
    await this.ended;
  }

  get #worker(): Worker {
    return this.#thread.worker;
  }

  #load(): Promise<void> {
    return new Promise((resolve, reject) => {
      this.#onLoaded = (error) => (error === undefined ? resolve() : reject(error));
      const options = this.#options.workerData;
      try {
        this.#worker.postMessage({ kind: 'start', options } satisfies StartMessage<unknown>);
      } catch (error) {
        // The options could not be copied, such as a file for which memory is missing.
        endThread(this.#worker);
        throw error;
      }
    });
  }

  readonly #onMessage = (reply: unknown): void => {
    this.#isSilent = false;
    if (this.#ready === undefined) this.#handleLoaded(reply as ReadyMessage<Ready> | FailedReply);
    else if (isReleased(reply)) this.#leaveThread();
    else this.#handleReply(reply);
  };

  readonly #onError = (error: Error): void => {
    this.#cause = error;
  };

  readonly #onExit = (exitCode: number): void => {
    // An unexpected end of a loaded worker is handled by `onDeath`.
    const isLoaded = this.#ready !== undefined;
    const activity = isLoaded ? 'ran this batch' : 'loaded the graph';
    const cause = this.#cause;
    const reason = cause?.message ?? `exit code ${exitCode}`;
    const message = `the model worker died while it ${activity} (${reason}); try again`;
    const error = new CubeError('UNAVAILABLE', message, { cause });
    if (isLoaded && !this.#isStopping) this.#options.onDeath(error);
    this.#onLoaded(error);
    const [running, ...others] = this.#pending.splice(0);
    running?.reject(error);
    for (const other of others) other.resolve(undefined);
    this.#onEnd();
  };

  /** A thread whose graph does not load ends by itself. */
  #handleLoaded(reply: ReadyMessage<Ready> | FailedReply): void {
    if (reply.kind === 'failed') {
      this.#onLoaded(new CubeError(reply.code, reply.message));
      return;
    }
    this.#ready = reply.ready;
    this.#onLoaded();
  }

  /** No event of the thread reaches this instance any more. */
  #leaveThread(): void {
    this.#worker.off('message', this.#onMessage);
    this.#worker.off('error', this.#onError);
    this.#worker.off('exit', this.#onExit);
    spareThreads.give(this.#options.script, this.#worker);
    for (const batch of this.#pending.splice(0)) batch.resolve(undefined);
    this.#onEnd();
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

function isReleased(reply: unknown): boolean {
  return typeof reply === 'object' && (reply as { kind?: unknown }).kind === 'released';
}
