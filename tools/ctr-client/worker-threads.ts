/** The threads of --workers: each sends its share of the requests, and the results are merged. */
import { Worker } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { Flags } from './flags.ts';
import type { LoadResult } from './load/load-generator.ts';
import type { LoadRunResult, PreparedRequest, WorkShare } from './load/load-run.ts';
import { type RecordedResponses, ResponseRecorder } from './load/response-recorder.ts';
import type { RecordedRequest } from './rows/recording.ts';
import type { RowsFile } from './rows/rows-file.ts';

export interface WorkerInput {
  readonly flags: Flags;
  readonly rows: RowsFile;
  readonly recorded: readonly RecordedRequest[] | undefined;
  readonly share: WorkShare;
}

/** `prepare` is answered by `ready`, `start` by `done`; both may be answered by `failed`. */
export type WorkerTask =
  | { readonly kind: 'prepare'; readonly batchRows: number; readonly concurrency: number }
  | { readonly kind: 'start' | 'stop' };

export type WorkerReply =
  | { readonly kind: 'ready' }
  | { readonly kind: 'rows'; readonly rows: number }
  | {
      readonly kind: 'done';
      readonly load: LoadResult;
      readonly recorded: RecordedResponses;
      readonly requests: readonly Omit<PreparedRequest, 'send'>[];
    }
  | { readonly kind: 'failed'; readonly code: ErrorCode; readonly message: string };

type Done = Extract<WorkerReply, { kind: 'done' }>;

interface SharedRun extends LoadRunResult {
  readonly requests: readonly Omit<PreparedRequest, 'send'>[];
}

export class WorkerThreads {
  readonly #workers: readonly Worker[];
  readonly #rowCount: number;
  readonly #onStop: () => void;
  readonly #stop: AbortSignal;

  constructor(
    flags: Flags,
    { rows, recorded }: Pick<WorkerInput, 'rows' | 'recorded'>,
    stop: AbortSignal,
  ) {
    const count = flags.workers;
    this.#rowCount = rows.count;
    this.#workers = Array.from({ length: count }, (_, index) => {
      const workerData: WorkerInput = { flags, rows, recorded, share: { index, count } };
      return new Worker(new URL('./measure-worker.js', import.meta.url), {
        workerData,
        name: 'measure',
      });
    });
    this.#onStop = () => {
      for (const worker of this.#workers) worker.postMessage({ kind: 'stop' } satisfies WorkerTask);
    };
    this.#stop = stop;
    stop.addEventListener('abort', this.#onStop);
    if (stop.aborted) this.#onStop();
  }

  /**
   * @param concurrency of all threads together
   * @throws CubeError when a thread cannot prepare its requests, or ends
   */
  async run(
    batchRows: number,
    concurrency: number,
    onRows: (rowsDone: number) => void,
  ): Promise<SharedRun> {
    const count = this.#workers.length;
    if (concurrency < count) {
      const message = `--workers ${count} needs a concurrency of at least ${count}`;
      throw new CubeError('INVALID_ARGUMENT', `${message}, got ${concurrency}`);
    }
    await this.#ask({ kind: 'prepare', batchRows, concurrency });
    const rowsDone = new Array<number>(count).fill(0);
    const shares = (await this.#ask({ kind: 'start' }, (index, rows) => {
      rowsDone[index] = rows;
      onRows(rowsDone.reduce((sum, one) => sum + one, 0));
    })) as Done[];
    const recorder = new ResponseRecorder(this.#rowCount);
    for (const { recorded } of shares) recorder.absorb(recorded);
    const requests = shares.flatMap((share) => share.requests);
    requests.sort((a, b) => a.start - b.start);
    return { load: mergeLoads(shares.map(({ load }) => load)), recorder, requests };
  }

  /** Ends the threads and their connections. */
  async close(): Promise<void> {
    this.#stop.removeEventListener('abort', this.#onStop);
    await Promise.all(this.#workers.map((worker) => worker.terminate()));
  }

  /** @returns the answer of each thread */
  #ask(task: WorkerTask, onRows?: (index: number, rows: number) => void): Promise<WorkerReply[]> {
    return Promise.all(
      this.#workers.map((worker, index) => {
        worker.postMessage(task);
        return waitForReply(worker, (rows) => onRows?.(index, rows));
      }),
    );
  }
}

function waitForReply(worker: Worker, onRows: (rows: number) => void): Promise<WorkerReply> {
  return new Promise((resolve, reject) => {
    const fail = (reason: string): void => {
      settle();
      reject(new CubeError('INTERNAL', `a thread of --workers ended (${reason})`));
    };
    const onError = (error: Error): void => fail(error.message);
    const onExit = (code: number): void => fail(`exit code ${code}`);
    const onMessage = (reply: WorkerReply): void => {
      if (reply.kind === 'rows') {
        onRows(reply.rows);
        return;
      }
      settle();
      if (reply.kind === 'failed') reject(new CubeError(reply.code, reply.message));
      else resolve(reply);
    };
    const settle = (): void => {
      worker.off('error', onError).off('exit', onExit).off('message', onMessage);
    };
    worker.on('error', onError).on('exit', onExit).on('message', onMessage);
  });
}

function mergeLoads(loads: readonly LoadResult[]): LoadResult {
  const sum = (name: 'waited' | 'unsent' | 'late'): number =>
    loads.reduce((total, load) => total + load[name], 0);
  return {
    durationMs: Math.max(...loads.map(({ durationMs }) => durationMs)),
    interrupted: loads.some(({ interrupted }) => interrupted),
    waited: sum('waited'),
    unsent: sum('unsent'),
    late: sum('late'),
    lagMaxMs: Math.max(...loads.map(({ lagMaxMs }) => lagMaxMs)),
    busyShare: Math.max(...loads.map(({ busyShare }) => busyShare)),
  };
}
