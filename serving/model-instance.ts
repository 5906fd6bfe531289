/**
 * One model worker seen from the main thread: loads, runs one batch at a time, stops by message. Its death fails exactly the
 * batch that it held.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../lib/core/errors.ts';
import type { WorkerReply, WorkerRequest, WorkerStart } from './model-worker.ts';

interface Waiting {
  resolve(slab: ArrayBuffer): void;
  reject(error: CubeError): void;
}

export class ModelInstance {
  readonly outputNum: number;
  readonly #worker: Worker;
  readonly #exited: Promise<void>;
  #waiting: Waiting | undefined;

  private constructor(worker: Worker, outputNum: number, onDeath: (error: CubeError) => void) {
    this.#worker = worker;
    this.outputNum = outputNum;
    let stopping = false;
    let cause: Error | undefined;
    worker.on('message', (message: WorkerReply) => this.#settle(message));
    worker.on('error', (error) => {
      cause = error;
    });
    this.#exited = new Promise((resolve) => {
      worker.once('exit', (exitCode) => {
        const reason = cause?.message ?? `exit code ${exitCode}`;
        const error = new CubeError(
          'UNAVAILABLE',
          `the model worker died while it ran this batch (${reason}); try again`,
          { cause },
        );
        this.#take()?.reject(error);
        if (!stopping) onDeath(error);
        resolve();
      });
    });
    this.stop = async () => {
      stopping = true;
      this.#post({ kind: 'stop' });
      await this.#exited;
    };
  }

  /** Ends the worker after what it runs, and waits for its exit. */
  readonly stop: () => Promise<void>;

  /**
   * Starts a worker and waits until its graph is loaded and warm.
   * @param onDeath called once when the worker ends without having been told to
   */
  static async start(
    script: URL,
    data: WorkerStart,
    onDeath: (error: CubeError) => void,
  ): Promise<ModelInstance> {
    const worker = new Worker(script, { workerData: data, name: 'model-worker' });
    const outputNum = await new Promise<number>((resolve, reject) => {
      worker.once('message', (message: WorkerReply) => {
        if (message.kind === 'ready') resolve(message.outputNum);
        else if (message.kind === 'failed') reject(new CubeError(message.code, message.message));
      });
      worker.once('error', reject);
      worker.once('exit', () =>
        reject(new CubeError('INTERNAL', 'the model worker ended while it loaded the model')),
      );
    });
    worker.removeAllListeners();
    return new ModelInstance(worker, outputNum, onDeath);
  }

  /** Runs one batch; the slab is gone until the promise gives it back. Never called before the last one settled. */
  run(slab: ArrayBuffer, rowCount: number): Promise<ArrayBuffer> {
    return new Promise((resolve, reject) => {
      this.#waiting = { resolve, reject };
      this.#post({ kind: 'run', slab, rowCount }, [slab]);
    });
  }

  #post(request: WorkerRequest, transfer: ArrayBuffer[] = []): void {
    this.#worker.postMessage(request, transfer);
  }

  #settle(message: WorkerReply): void {
    const waiting = this.#take();
    if (message.kind === 'done') waiting?.resolve(message.slab);
    else if (message.kind === 'failed') {
      waiting?.reject(new CubeError(message.code, message.message));
    }
  }

  #take(): Waiting | undefined {
    const waiting = this.#waiting;
    this.#waiting = undefined;
    return waiting;
  }
}
