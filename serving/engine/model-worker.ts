/**
 * A model worker: one thread with one instance of one graph, and its own way to the tables where they are in this process's memory.
 * It is told by messages (`WorkerRequest` in, `WorkerReply` out), one batch after another in their order; a batch's slab is
 * shared with the main thread, and its own from the request to the reply. It ends when told to, after the batches that it has: a thread that is
 * terminated inside a run takes the process with it.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { GraphPlan } from '../features/graph-plan.ts';
import { GraphRunner } from '../features/graph-runner.ts';
import { type OutputShape, type SlabShape, viewSlab } from './batch-slab.ts';
import { ResidentRows, type ResidentTables } from './resident-rows.ts';

export interface WorkerStart {
  readonly model: Uint8Array;
  /** Data of the graph in other files, by their names. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  readonly plan: GraphPlan;
  /** Of the largest batch. */
  readonly rowsMax: number;
  /** Undefined: the main thread looks up. */
  readonly resident: ResidentTables | undefined;
}

export type WorkerRequest =
  | { readonly kind: 'run'; readonly slab: SharedArrayBuffer; readonly rowCount: number }
  | { readonly kind: 'stop' };

export type WorkerReply =
  | { readonly kind: 'ready'; readonly outputs: readonly OutputShape[] }
  | ({ readonly kind: 'done' } & BatchDone)
  | { readonly kind: 'failed'; readonly code: ErrorCode; readonly message: string };

/** What came of a batch, beside what its slab says. */
export interface BatchDone {
  /** Lookups of the worker's own that found nothing. */
  readonly unseen: number;
  readonly lookupMicros: number;
  readonly inferMicros: number;
}

if (parentPort === null) throw new Error('model-worker runs as a worker thread');
const port = parentPort;
const { model, data, plan, rowsMax, resident } = workerData as WorkerStart;

function reply(message: WorkerReply): void {
  port.postMessage(message);
}

function replyFailure(code: ErrorCode, error: unknown): void {
  reply({ kind: 'failed', code, message: CubeError.from(error).message });
}

class ModelWorker {
  readonly #runner: GraphRunner;
  readonly #rows: ResidentRows | undefined;
  readonly #shape: SlabShape;
  /** The last of the batches, which run one after another. */
  #work: Promise<void> = Promise.resolve();

  constructor(runner: GraphRunner, rows: ResidentRows | undefined) {
    this.#runner = runner;
    this.#rows = rows;
    const looksUp = rows === undefined ? 'main' : 'worker';
    this.#shape = { plan, rowsMax, outputs: runner.outputs, looksUp };
  }

  handle(request: WorkerRequest): void {
    this.#work = this.#work.then(() =>
      request.kind === 'stop' ? this.#stop() : this.#run(request.slab, request.rowCount),
    );
  }

  async #run(slab: SharedArrayBuffer, rowCount: number): Promise<void> {
    try {
      const startMs = performance.now();
      const views = viewSlab(this.#shape, slab);
      const unseen = this.#rows?.fill(views, rowCount) ?? 0;
      const { ids, dense, outputs } = views;
      const lookedUpMs = performance.now();
      const { tables, tensors = [] } = this.#rows ?? { tables: views.tables };
      await this.#runner.run({ ids, dense, tables, tensors }, rowCount, outputs);
      const inferMicros = 1_000 * (performance.now() - lookedUpMs);
      const lookupMicros = 1_000 * (lookedUpMs - startMs);
      reply({ kind: 'done', unseen, lookupMicros, inferMicros });
    } catch (error) {
      // Whatever the graph says of its inputs: they were made here, not by the caller.
      replyFailure('INTERNAL', error);
    }
  }

  async #stop(): Promise<void> {
    await this.#runner.release();
    this.#rows?.detach();
    port.close();
  }
}

try {
  const rows = resident && new ResidentRows(plan, rowsMax, resident);
  const runner = await GraphRunner.load({ model, data }, plan, rowsMax);
  const worker = new ModelWorker(runner, rows);
  port.on('message', (request: WorkerRequest) => worker.handle(request));
  reply({ kind: 'ready', outputs: runner.outputs });
} catch (error) {
  replyFailure(CubeError.from(error).code, error);
}
