/**
 * Runs layer copies on a worker thread. The thread starts with the first copy and keeps the process
 * alive only while it copies. If it dies, its copies fail and the next copy starts a new thread.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import type { CopyOptions } from '../../lib/repository/verified-copy.ts';
import type { CopyMessage, CopyReport, LayerCopy } from './copy-protocol.ts';

interface Pending {
  readonly worker: Worker;
  readonly onBytes: (bytes: number) => void;
  resolve(): void;
  reject(error: CubeError): void;
}

export class CopyThread {
  readonly #location: string;
  readonly #pending = new Map<number, Pending>();
  #worker: Worker | undefined;
  #lastId = 0;

  /** @param location of the repository */
  constructor(location: string) {
    this.#location = location;
  }

  /** Like `Repository.fetchLayer`. Copies with equal rate limits share one limit. */
  async copy(request: LayerCopy, { rate, onBytes, signal }: CopyOptions): Promise<void> {
    const worker = this.#start();
    const id = ++this.#lastId;
    const send = (message: CopyMessage): void => worker.postMessage(message);
    const abort = (): void => send({ type: 'abort', id });
    const copied = new Promise<void>((resolve, reject) => {
      this.#pending.set(id, { worker, resolve, reject, onBytes: onBytes ?? (() => undefined) });
    });
    worker.ref();
    send({ ...request, type: 'copy', id, bytesPerSecond: rate?.bytesPerSecond });
    if (signal?.aborted) abort();
    signal?.addEventListener('abort', abort);
    try {
      await copied;
    } finally {
      signal?.removeEventListener('abort', abort);
    }
  }

  #start(): Worker {
    if (this.#worker !== undefined) return this.#worker;
    const worker = new Worker(new URL('./copy-worker.js', import.meta.url), {
      name: 'copy-worker',
      workerData: this.#location,
    });
    worker.on('message', (report: CopyReport) => this.#settle(worker, report));
    worker.on('error', (error) => this.#failAll(worker, error.message));
    worker.on('exit', (status) => this.#failAll(worker, `exit ${status}`));
    this.#worker = worker;
    return worker;
  }

  #settle(worker: Worker, report: CopyReport): void {
    const pending = this.#pending.get(report.id);
    if (report.type === 'bytes') {
      pending?.onBytes(report.bytes);
      return;
    }
    this.#pending.delete(report.id);
    if (this.#pending.size === 0) worker.unref();
    if (report.type === 'done') pending?.resolve();
    else pending?.reject(new CubeError(report.code, report.message));
  }

  #failAll(worker: Worker, reason: string): void {
    if (this.#worker === worker) this.#worker = undefined;
    for (const [id, pending] of this.#pending) {
      if (pending.worker !== worker) continue;
      this.#pending.delete(id);
      const text = `the copy thread ended (${reason}); the copy is retried`;
      pending.reject(new CubeError('INTERNAL', text));
    }
  }
}
