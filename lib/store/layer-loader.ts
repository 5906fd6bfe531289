/**
 * The store's side of the load workers: threads, started on demand, that keep the process alive
 * only while requests are pending. One thread reads layers; large sealed bases are opened by
 * several. Layers with a limited rate are loaded beside lookups: by a thread that runs only while
 * the machine has idle time, unless it has none. When a thread dies, its pending requests fail and
 * the next request starts another thread. After `stop` all requests fail.
 */
import { availableParallelism } from 'node:os';
import { Worker } from 'node:worker_threads';
import { CubeError } from '../core/errors.ts';
import { BLOCK_BYTES } from '../core/layer-format.ts';
import { systemClock } from '../platform/clock.ts';
import { processKeys } from '../platform/encryption-keys.ts';
import { OpenFile } from '../platform/open-file.ts';
import { LOAD_THREADS_MAX } from './load-progress.ts';
import type {
  FillRequest,
  FillResult,
  InspectRequest,
  LayerInspection,
  LoadWorkerMessage,
  LoadWorkerResponse,
  SealedInspection,
} from './load-worker-protocol.ts';

/** Smaller layers are loaded before another thread has started. */
const PART_BLOCKS_MIN = 64;

/** Number of the thread that runs in idle time, after those that load a layer together. */
const IDLE_THREAD = LOAD_THREADS_MAX;
/** With more in memory, a process takes more than 5 ms to start another program. */
const LARGE_BYTES = 1 << 28;
/** After a machine had no idle time, for how long it is not asked for any. */
const STARVED_MS = 10_000;

type Fill = Omit<FillRequest, 'type' | 'id' | 'blocks' | 'part' | 'handOver'>;

/** Sealed blocks count from the start of the file, those of a clear layer from its header. */
function countBlocks({ header, dataKey }: Pick<FillRequest, 'header' | 'dataKey'>): number {
  return dataKey === undefined
    ? header.blockCount
    : Math.ceil(header.checksumsOffset / BLOCK_BYTES);
}

/** Opening a sealed block costs more than reading it, and blocks are independent. */
function countParts({ header, dataKey }: Pick<FillRequest, 'header' | 'dataKey'>): number {
  if (dataKey === undefined || header.kind !== 'base') return 1;
  const parts = Math.floor(header.blockCount / PART_BLOCKS_MIN);
  return Math.max(1, Math.min(parts, LOAD_THREADS_MAX, availableParallelism()));
}

interface PendingRequest {
  readonly worker: Worker;
  resolve(result: LayerInspection | SealedInspection | FillResult): void;
  reject(error: CubeError): void;
}

export class LayerLoader {
  /** By number; 0 does everything but parts of large sealed bases and loads in idle time. */
  readonly #workers: (Worker | undefined)[] = [];
  #starvedUntilMs = Number.NEGATIVE_INFINITY;
  /** By all loads so far. */
  #filledBytes = 0;
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
  async fill(request: Fill): Promise<FillResult> {
    // All threads read what the path names now.
    const file = new OpenFile(request.path, request.descriptor);
    try {
      return await this.#fill({ ...request, descriptor: file.descriptor });
    } finally {
      file.close();
    }
  }

  async #fill(request: Fill): Promise<FillResult> {
    const blockCount = countBlocks(request);
    this.#countBytes(blockCount * BLOCK_BYTES);
    if (Number.isFinite(request.bytesPerSecond)) return this.#fillInIdleTime(request);
    const parts = countParts(request);
    const perPart = Math.ceil(blockCount / parts);
    const fills = Array.from({ length: parts }, (_, part) => {
      const first = part * perPart;
      const blocks = { first, end: Math.min(first + perPart, blockCount) };
      return this.#fillBlocks({ ...request, blocks, part });
    });
    // No thread may write to the memories once this has failed.
    const results = await Promise.allSettled(fills);
    const failed = results.find((result) => result.status === 'rejected');
    if (failed !== undefined) throw failed.reason;
    return fills[0] ?? { filter: undefined, next: 0 };
  }

  /** Starts the thread for idle time, which later loads may use, before the process is large. */
  #countBytes(bytes: number): void {
    const isSmall = this.#filledBytes < LARGE_BYTES;
    if (!this.#stopped && isSmall && this.#filledBytes + bytes >= LARGE_BYTES) {
      const isRunning = this.#workers[IDLE_THREAD] !== undefined;
      const worker = this.#start(IDLE_THREAD);
      if (!isRunning) worker.unref();
    }
    this.#filledBytes += bytes;
  }

  async #fillInIdleTime(request: Fill): Promise<FillResult> {
    const blockCount = countBlocks(request);
    const all = { ...request, blocks: { first: 0, end: blockCount }, part: 0 } as const;
    if (systemClock.nowMs() < this.#starvedUntilMs) return this.#fillBlocks(all);
    // Not part of every start.
    const { BackgroundFill } = await import('./background-fill.ts');
    const background = new BackgroundFill();
    const filled = new AbortController();
    const blocksPerSecond = request.bytesPerSecond / BLOCK_BYTES;
    const watch = background.watch(blockCount, blocksPerSecond, filled.signal);
    let result: FillResult;
    try {
      result = await this.#fillBlocks({ ...all, handOver: background.words }, IDLE_THREAD);
    } finally {
      filled.abort();
      await watch;
    }
    if (result.next === blockCount) return result;
    this.#starvedUntilMs = systemClock.nowMs() + STARVED_MS;
    return this.#fillBlocks({ ...all, blocks: { first: result.next, end: blockCount } });
  }

  #fillBlocks(
    request: Fill & Pick<FillRequest, 'blocks' | 'part'> & Partial<Pick<FillRequest, 'handOver'>>,
    thread: number = request.part,
  ): Promise<FillResult> {
    const fill = { handOver: undefined, ...request, type: 'fill' } as const;
    return this.#ask(fill, thread) as Promise<FillResult>;
  }

  /** Ends the thread for good: requests in progress, waiting and later ones fail with STOPPING. */
  async stop(): Promise<void> {
    this.#stopped = true;
    const workers = this.#workers.splice(0);
    await Promise.all(
      workers.map((worker) => {
        if (worker === undefined) return undefined;
        const ended = new Promise<void>((resolve) => worker.once('exit', () => resolve()));
        worker.ref();
        worker.postMessage({ type: 'stop' } satisfies LoadWorkerMessage);
        return ended;
      }),
    );
  }

  #ask(
    request: Omit<InspectRequest, 'id'> | Omit<FillRequest, 'id'>,
    number = 0,
  ): Promise<LayerInspection | SealedInspection | FillResult> {
    if (this.#stopped) {
      return Promise.reject(
        new CubeError('STOPPING', `${request.path}: not loaded, the store is closed`),
      );
    }
    const id = ++this.#lastId;
    return new Promise((resolve, reject) => {
      const worker = this.#start(number);
      this.#pending.set(id, { worker, resolve, reject });
      worker.ref();
      worker.postMessage({ ...request, id } satisfies LoadWorkerMessage);
    });
  }

  #start(number: number): Worker {
    const running = this.#workers[number];
    if (running !== undefined) return running;
    // `runWhenIdle` takes long in a large process.
    const whenIdle = number === IDLE_THREAD && this.#filledBytes < LARGE_BYTES;
    const worker = new Worker(new URL('./load-worker.js', import.meta.url), {
      name: whenIdle ? 'idle-loader' : 'load-worker',
      workerData: { whenIdle },
    });
    worker.on('message', (answer: LoadWorkerResponse) => this.#settle(worker, answer));
    worker.on('error', (error) => this.#failAll(worker, error.message));
    worker.on('exit', (status) => this.#failAll(worker, `exit ${status}`));
    this.#workers[number] = worker;
    return worker;
  }

  #settle(worker: Worker, answer: LoadWorkerResponse): void {
    const pending = this.#pending.get(answer.id);
    this.#pending.delete(answer.id);
    // A stopping thread keeps the process alive until it has ended.
    const isIdle = [...this.#pending.values()].every((one) => one.worker !== worker);
    if (isIdle && this.#workers.includes(worker)) worker.unref();
    if (answer.ok) pending?.resolve(answer.result);
    else pending?.reject(new CubeError(answer.code, answer.message));
  }

  #failAll(worker: Worker, reason: string): void {
    const number = this.#workers.indexOf(worker);
    if (number !== -1) this.#workers[number] = undefined;
    for (const [id, pending] of this.#pending) {
      if (pending.worker !== worker) continue;
      this.#pending.delete(id);
      pending.reject(new CubeError('INTERNAL', `the load worker ended (${reason}); load again`));
    }
  }
}
