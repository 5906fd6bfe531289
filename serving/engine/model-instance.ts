/**
 * One model worker seen from the main thread: loads, runs batches in their order, stops by message. Its death fails exactly the
 * batch that it held; what it had not begun can be run elsewhere.
 */
import { SHARE_ENV, Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import type { OutputShape } from './batch-slab.ts';
import type { BatchDone, WorkerReply, WorkerRequest, WorkerStart } from './model-worker.ts';

/** What the worker was asked and has not answered. */
interface Waiting {
  resolve(reply: WorkerReply | undefined): void;
  reject(error: CubeError): void;
}

export class ModelInstance {
  readonly #worker: Worker;
  /** Settled when the thread has ended: it uses no memory any more. */
  readonly exited: Promise<void>;
  /** In the order asked: the worker holds the first. */
  readonly #waiting: Waiting[] = [];
  #outputs: readonly OutputShape[] = [];
  #stopping = false;
  #isFresh = true;
  /** Loaded, so that its end is a death that somebody must make good. */
  #loaded = false;

  private constructor(worker: Worker, onDeath: (error: CubeError) => void) {
    this.#worker = worker;
    let cause: Error | undefined;
    worker.on('message', (reply: WorkerReply) => this.#waiting.shift()?.resolve(reply));
    worker.on('error', (error) => {
      cause = error;
    });
    this.exited = new Promise((resolve) => {
      worker.once('exit', (exitCode) => {
        const doing = this.#loaded ? 'held this batch' : 'loaded the graph';
        const reason = cause?.message ?? `exit code ${exitCode}`;
        const message = `the model worker died while it ${doing} (${reason}); try again`;
        const error = new CubeError('UNAVAILABLE', message, { cause });
        if (this.#loaded && !this.#stopping) onDeath(error);
        const [held, ...others] = this.#waiting.splice(0);
        held?.reject(error);
        for (const other of others) other.resolve(undefined);
        resolve();
      });
    });
  }

  /**
   * Starts a worker and waits until its graph is loaded and warm.
   * @param onDeath called once when the worker, once started, ends without having been told to
   */
  static async start(
    script: URL,
    data: WorkerStart,
    onDeath: (error: CubeError) => void,
  ): Promise<ModelInstance> {
    // The native runtime reads the process's real environment (lib/platform/telemetry.ts).
    const worker = new Worker(script, { workerData: data, name: 'model-worker', env: SHARE_ENV });
    const instance = new ModelInstance(worker, onDeath);
    try {
      const reply = await instance.#ask();
      if (reply?.kind === 'ready') instance.#outputs = reply.outputs;
    } catch (error) {
      await instance.exited;
      throw error;
    }
    instance.#loaded = true;
    return instance;
  }

  /** The graph's outputs, the click output first. */
  get outputs(): readonly OutputShape[] {
    return this.#outputs;
  }

  /** It was given no batch yet. */
  get isFresh(): boolean {
    return this.#isFresh;
  }

  /** Batches that it has, running or waiting. */
  get held(): number {
    return this.#waiting.length;
  }

  /**
   * Runs one batch behind those that it has; the slab is the worker's until the promise is settled.
   * @returns undefined when it died before it began the batch
   * @throws CubeError UNAVAILABLE when it died with the batch, INTERNAL when the graph refused it
   */
  async run(slab: SharedArrayBuffer, rowCount: number): Promise<BatchDone | undefined> {
    this.#isFresh = false;
    const reply = await this.#ask({ kind: 'run', slab, rowCount });
    return reply?.kind === 'done' ? reply : undefined;
  }

  /** Ends the worker after what it runs, and waits for its exit. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#worker.postMessage({ kind: 'stop' } satisfies WorkerRequest);
    await this.exited;
  }

  async #ask(request?: WorkerRequest): Promise<WorkerReply | undefined> {
    const reply = await new Promise<WorkerReply | undefined>((resolve, reject) => {
      this.#waiting.push({ resolve, reject });
      if (request !== undefined) this.#worker.postMessage(request);
    });
    if (reply?.kind === 'failed') throw new CubeError(reply.code, reply.message);
    return reply;
  }
}
