/**
 * One model worker seen from the main thread: loads, runs one batch at a time, stops by message. Its death fails exactly the
 * batch that it held.
 */
import { SHARE_ENV, Worker } from 'node:worker_threads';
import { CubeError } from '../lib/core/errors.ts';
import type { WorkerReply, WorkerRequest, WorkerStart } from './model-worker.ts';

/** What the worker was asked last and has not answered. */
interface Waiting {
  resolve(reply: WorkerReply): void;
  reject(error: CubeError): void;
}

export class ModelInstance {
  readonly #worker: Worker;
  readonly #exited: Promise<void>;
  #waiting: Waiting | undefined;
  #outputNum = 0;
  #stopping = false;
  /** Loaded, so that its end is a death that somebody must make good. */
  #loaded = false;

  private constructor(worker: Worker, onDeath: (error: CubeError) => void) {
    this.#worker = worker;
    let cause: Error | undefined;
    worker.on('message', (reply: WorkerReply) => this.#take()?.resolve(reply));
    worker.on('error', (error) => {
      cause = error;
    });
    this.#exited = new Promise((resolve) => {
      worker.once('exit', (exitCode) => {
        const doing = this.#loaded ? 'held this batch' : 'loaded the graph';
        const reason = cause?.message ?? `exit code ${exitCode}`;
        const message = `the model worker died while it ${doing} (${reason}); try again`;
        const error = new CubeError('UNAVAILABLE', message, { cause });
        this.#take()?.reject(error);
        if (this.#loaded && !this.#stopping) onDeath(error);
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
    const reply = await instance.#ask();
    if (reply.kind === 'ready') instance.#outputNum = reply.outputNum;
    instance.#loaded = true;
    return instance;
  }

  /** Values of the click output in a row. */
  get outputNum(): number {
    return this.#outputNum;
  }

  /** Runs one batch; the slab is gone until the promise gives it back. Never called before the last one settled. */
  async run(slab: ArrayBuffer, rowCount: number): Promise<ArrayBuffer> {
    const reply = await this.#ask({ kind: 'run', slab, rowCount }, [slab]);
    return reply.kind === 'done' ? reply.slab : slab;
  }

  /** Ends the worker after what it runs, and waits for its exit. */
  async stop(): Promise<void> {
    this.#stopping = true;
    this.#worker.postMessage({ kind: 'stop' } satisfies WorkerRequest);
    await this.#exited;
  }

  /** The worker's next reply. @throws CubeError what it says went wrong, or UNAVAILABLE when it dies first */
  async #ask(request?: WorkerRequest, transfer: ArrayBuffer[] = []): Promise<WorkerReply> {
    const reply = await new Promise<WorkerReply>((resolve, reject) => {
      this.#waiting = { resolve, reject };
      if (request !== undefined) this.#worker.postMessage(request, transfer);
    });
    if (reply.kind === 'failed') throw new CubeError(reply.code, reply.message);
    return reply;
  }

  #take(): Waiting | undefined {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    return waiting;
  }
}
