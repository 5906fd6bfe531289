/**
 * Runs layer copies on worker threads. They start with the first copy and keep the process alive
 * only while they copy. If one dies, its copies fail and the next copy starts it again. Copies run
 * in a thread that works only while the machine has idle time; if it has none, all of them go on in
 * a thread of low priority, so that only one thread copies at a time.
 */
import { Worker } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { CopyOptions } from '../../lib/repository/verified-copy.ts';
import type { CopyMessage, CopyReport, CopyWorkerData, LayerCopy } from './copy-protocol.ts';

/** A copy that gets no bytes for this long may have no core; its source may also be slow. */
const STALLED_MS = 3_000;
/** After a copy stalled, for how long none runs in idle time. */
const STARVED_MS = 10_000;

export interface CopyThreadsOptions {
  /** Default: three seconds. */
  readonly stalledMs?: number;
  /** Called before a thread starts that must not run in idle time: threads inherit the policy. */
  readonly useUsualPolicy?: () => Promise<void>;
}

interface Pending {
  readonly worker: Worker;
  readonly onBytes: (bytes: number) => void;
  resolve(): void;
  reject(error: CubeError): void;
}

export class CopyThreads {
  readonly #location: string;
  readonly #pending = new Map<number, Pending>();
  #idleThread: Worker | undefined;
  #usualThread: Worker | undefined;
  readonly #stalledMs: number;
  readonly #useUsualPolicy: () => Promise<void>;
  /** Aborted when a copy in idle time stalls: all of them go on in the other thread. */
  #stalled = new AbortController();
  #starvedUntilMs = Number.NEGATIVE_INFINITY;
  #lastId = 0;

  /** @param location of the repository */
  constructor(location: string, options: CopyThreadsOptions = {}) {
    this.#location = location;
    this.#stalledMs = options.stalledMs ?? STALLED_MS;
    this.#useUsualPolicy = options.useUsualPolicy ?? (async () => undefined);
  }

  /** Like `Repository.fetchLayer`. Copies with equal rate limits share one limit. */
  async copy(request: LayerCopy, options: CopyOptions): Promise<void> {
    if (this.#hasIdleTime() && (await this.#copyInIdleTime(request, options))) return;
    await this.#copyOn(await this.#startUsual(), request, options);
  }

  /** Frees the space of a removed file in idle time, or when this process ends. */
  closeFile(descriptor: number): void {
    const worker = this.#startIdle();
    if (![...this.#pending.values()].some((copy) => copy.worker === worker)) worker.unref();
    worker.postMessage({ type: 'close', descriptor } satisfies CopyMessage);
  }

  #hasIdleTime(): boolean {
    const isCopying = [...this.#pending.values()].some(
      ({ worker }) => worker === this.#usualThread,
    );
    return !isCopying && systemClock.nowMs() >= this.#starvedUntilMs;
  }

  /** @returns false when copies stalled: what was copied is kept, and a copy goes on from there */
  async #copyInIdleTime(request: LayerCopy, options: CopyOptions): Promise<boolean> {
    const stalled = this.#stalled;
    const stall = (): void => {
      this.#starvedUntilMs = systemClock.nowMs() + STARVED_MS;
      this.#stalled = new AbortController();
      stalled.abort();
    };
    let timer = setTimeout(stall, this.#stalledMs);
    const onBytes = (bytes: number): void => {
      clearTimeout(timer);
      timer = setTimeout(stall, this.#stalledMs);
      options.onBytes?.(bytes);
    };
    const signals = [stalled.signal, ...(options.signal === undefined ? [] : [options.signal])];
    const signal = AbortSignal.any(signals);
    try {
      await this.#copyOn(this.#startIdle(), request, { ...options, onBytes, signal });
      return true;
    } catch (error) {
      if (!stalled.signal.aborted || options.signal?.aborted) throw error;
      return false;
    } finally {
      clearTimeout(timer);
    }
  }

  async #copyOn(
    worker: Worker,
    request: LayerCopy,
    { rate, onBytes, signal }: CopyOptions,
  ): Promise<void> {
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

  #startIdle(): Worker {
    this.#idleThread ??= this.#start('idle-copier', true);
    return this.#idleThread;
  }

  async #startUsual(): Promise<Worker> {
    if (this.#usualThread === undefined) await this.#useUsualPolicy();
    this.#usualThread ??= this.#start('copy-worker', false);
    return this.#usualThread;
  }

  #start(name: string, whenIdle: boolean): Worker {
    const worker = new Worker(new URL('./copy-worker.js', import.meta.url), {
      name,
      workerData: { location: this.#location, whenIdle } satisfies CopyWorkerData,
    });
    worker.on('message', (report: CopyReport) => this.#settle(worker, report));
    worker.on('error', (error) => this.#failAll(worker, error.message));
    worker.on('exit', (status) => this.#failAll(worker, `exit ${status}`));
    return worker;
  }

  #settle(worker: Worker, report: CopyReport): void {
    const pending = this.#pending.get(report.id);
    if (report.type === 'bytes') {
      pending?.onBytes(report.bytes);
      return;
    }
    this.#pending.delete(report.id);
    if (![...this.#pending.values()].some((copy) => copy.worker === worker)) worker.unref();
    if (report.type === 'done') pending?.resolve();
    else pending?.reject(new CubeError(report.code, report.message));
  }

  #failAll(worker: Worker, reason: string): void {
    if (this.#idleThread === worker) this.#idleThread = undefined;
    if (this.#usualThread === worker) this.#usualThread = undefined;
    for (const [id, pending] of this.#pending) {
      if (pending.worker !== worker) continue;
      this.#pending.delete(id);
      const text = `the copy thread ended (${reason}); the copy is retried`;
      pending.reject(new CubeError('INTERNAL', text));
    }
  }
}
