/**
 * The store's side of the load worker: one thread, started when first needed, that keeps the process alive only while
 * it has something to do. A thread that dies fails what was asked of it, and the next request starts another; after
 * `stop` there is no next request.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../core/errors.ts';
import type {
  FillRequest,
  InspectRequest,
  LayerFilling,
  LayerInspection,
  LoadAnswer,
  LoadMessage,
} from './load-protocol.ts';

interface Pending {
  readonly worker: Worker;
  resolve(result: LayerInspection | LayerFilling): void;
  reject(error: CubeError): void;
}

export class LayerLoader {
  #worker: Worker | undefined;
  readonly #pending = new Map<number, Pending>();
  #lastId = 0;
  #stopped = false;

  /** @throws CubeError CORRUPT, UNSUPPORTED or NOT_FOUND */
  inspect(path: string, descriptor: number | undefined): Promise<LayerInspection> {
    return this.#ask({ type: 'inspect', path, descriptor }) as Promise<LayerInspection>;
  }

  /** @throws CubeError CORRUPT when a block does not match its checksum; the memories then hold anything */
  fill(request: Omit<FillRequest, 'type' | 'id'>): Promise<LayerFilling> {
    return this.#ask({ type: 'fill', ...request }) as Promise<LayerFilling>;
  }

  /** Ends the thread for good: what is under way, waiting or asked later fails with STOPPING. */
  async stop(): Promise<void> {
    this.#stopped = true;
    const worker = this.#worker;
    if (worker === undefined) return;
    this.#worker = undefined;
    const ended = new Promise<void>((resolve) => worker.once('exit', () => resolve()));
    worker.ref();
    worker.postMessage({ type: 'stop' } satisfies LoadMessage);
    await ended;
  }

  #ask(
    request: Omit<InspectRequest, 'id'> | Omit<FillRequest, 'id'>,
  ): Promise<LayerInspection | LayerFilling> {
    if (this.#stopped) {
      return Promise.reject(
        new CubeError('STOPPING', `${request.path}: not loaded, the store is closed`),
      );
    }
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      const worker = this.#start();
      this.#pending.set(id, { worker, resolve, reject });
      worker.ref();
      worker.postMessage({ ...request, id } satisfies LoadMessage);
    });
  }

  #start(): Worker {
    if (this.#worker !== undefined) return this.#worker;
    const worker = new Worker(new URL('./load-worker.js', import.meta.url), {
      name: 'load-worker',
    });
    worker.on('message', (answer: LoadAnswer) => this.#settle(worker, answer));
    worker.on('error', (error) => this.#failAll(worker, error.message));
    worker.on('exit', (status) => this.#failAll(worker, `exit ${status}`));
    this.#worker = worker;
    return worker;
  }

  #settle(worker: Worker, answer: LoadAnswer): void {
    const pending = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    // A thread that is being stopped keeps the process alive until it has ended.
    if (this.#pending.size === 0 && worker === this.#worker) worker.unref();
    if (answer.ok) pending?.resolve(answer.result);
    else pending?.reject(new CubeError(answer.code, answer.message));
  }

  #failAll(worker: Worker, reason: string): void {
    if (this.#worker === worker) this.#worker = undefined;
    for (const [id, pending] of this.#pending) {
      if (pending.worker !== worker) continue;
      this.#pending.delete(id);
      pending.reject(new CubeError('INTERNAL', `the load worker ended (${reason}); load again`));
    }
  }
}
