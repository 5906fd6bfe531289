/**
 * The store's side of the load worker: one thread, started on demand, that keeps the process alive
 * only while requests are pending. When the thread dies, its pending requests fail and the next
 * request starts another thread. After `stop` all requests fail.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../core/errors.ts';
import { processKeys } from '../platform/encryption-keys.ts';
import type {
  FillRequest,
  FillResult,
  InspectRequest,
  LayerInspection,
  LoadWorkerMessage,
  LoadWorkerResponse,
  SealedInspection,
} from './load-worker-protocol.ts';

interface PendingRequest {
  readonly worker: Worker;
  resolve(result: LayerInspection | SealedInspection | FillResult): void;
  reject(error: CubeError): void;
}

export class LayerLoader {
  #worker: Worker | undefined;
  readonly #pending = new Map<number, PendingRequest>();
  #lastId = 0;
  #stopped = false;

  /**
   * @throws CubeError CORRUPT, UNSUPPORTED or NOT_FOUND; DENIED for a sealed file without its key
   */
  async inspect(path: string, descriptor: number | undefined): Promise<LayerInspection> {
    const request = { type: 'inspect', path, descriptor } as const;
    const found = await this.#ask({ ...request, dataKey: undefined });
    if (!('sealed' in found)) return found as LayerInspection;
    const dataKey = processKeys.openDataKey(found.sealed, path);
    const opened = (await this.#ask({ ...request, dataKey })) as LayerInspection;
    return { ...opened, dataKey };
  }

  /**
   * @throws CubeError CORRUPT when a checksum does not match; the content of the memories is then
   *   undefined
   */
  fill(request: Omit<FillRequest, 'type' | 'id'>): Promise<FillResult> {
    return this.#ask({ type: 'fill', ...request }) as Promise<FillResult>;
  }

  /** Ends the thread for good: requests in progress, waiting and later ones fail with STOPPING. */
  async stop(): Promise<void> {
    this.#stopped = true;
    const worker = this.#worker;
    if (worker === undefined) return;
    this.#worker = undefined;
    const ended = new Promise<void>((resolve) => worker.once('exit', () => resolve()));
    worker.ref();
    worker.postMessage({ type: 'stop' } satisfies LoadWorkerMessage);
    await ended;
  }

  #ask(
    request: Omit<InspectRequest, 'id'> | Omit<FillRequest, 'id'>,
  ): Promise<LayerInspection | SealedInspection | FillResult> {
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
      worker.postMessage({ ...request, id } satisfies LoadWorkerMessage);
    });
  }

  #start(): Worker {
    if (this.#worker !== undefined) return this.#worker;
    const worker = new Worker(new URL('./load-worker.js', import.meta.url), {
      name: 'load-worker',
    });
    worker.on('message', (answer: LoadWorkerResponse) => this.#settle(worker, answer));
    worker.on('error', (error) => this.#failAll(worker, error.message));
    worker.on('exit', (status) => this.#failAll(worker, `exit ${status}`));
    this.#worker = worker;
    return worker;
  }

  #settle(worker: Worker, answer: LoadWorkerResponse): void {
    const pending = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    // A stopping thread keeps the process alive until it has ended.
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
