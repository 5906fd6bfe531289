/**
 * A model worker: one thread with one instance of one graph. It looks rows up by itself when the
 * tables are in this process's memory. It replies to each message, one batch after another. The
 * slab of a batch is shared memory, which the worker owns from the request to the reply. The graph
 * is released by message, after its batches: terminating a thread during a run would crash the
 * process.
 */
import { parentPort } from 'node:worker_threads';
import type { GraphPlan, OutputShape } from '../../lib/features/graph-plan.ts';
import { GraphRunner } from '../../lib/features/graph-runner.ts';
import { listUsers } from '../../lib/features/user-rows.ts';
import type { SessionTuning } from '../../lib/platform/onnx.ts';
import { countFileBytes, replyFailure, runGraphs, type ThreadGraph } from './graph-thread.ts';
import type { StopMessage } from './model-instance.ts';
import {
  BATCH_DONE,
  type BatchMessage,
  type BatchReply,
  type ReceivedBatch,
  SlabReceiver,
} from './slab-channel.ts';
import { type SharedTables, WorkerLookup } from './worker-lookup.ts';

export interface WorkerOptions {
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  readonly plan: GraphPlan;
  /** Rows of the largest batch. */
  readonly rowsMax: number;
  /** Undefined when the main thread looks rows up. */
  readonly resident: SharedTables | undefined;
  readonly tuning: SessionTuning;
}

if (parentPort === null) throw new Error('model-worker runs as a worker thread');
const port = parentPort;

class ModelWorker implements ThreadGraph<readonly OutputShape[], BatchMessage> {
  readonly sharesTables: boolean;
  readonly fileBytes: number;
  readonly #plan: GraphPlan;
  readonly #runner: GraphRunner;
  readonly #rows: WorkerLookup | undefined;
  readonly #slabs: SlabReceiver;
  readonly #firstRows: Int32Array;
  readonly #onReleased: () => void;
  /** The last of the batches, which run one after another. */
  #lastTask: Promise<void> = Promise.resolve();

  private constructor(
    { model, data, plan, rowsMax }: WorkerOptions,
    runner: GraphRunner,
    rows: WorkerLookup | undefined,
    onReleased: () => void,
  ) {
    this.sharesTables = rows !== undefined;
    this.fileBytes = countFileBytes(model, data);
    this.#plan = plan;
    this.#runner = runner;
    this.#rows = rows;
    this.#onReleased = onReleased;
    this.#firstRows = new Int32Array(plan.users === undefined ? 0 : rowsMax);
    const looksUp = rows === undefined ? 'main' : 'worker';
    this.#slabs = new SlabReceiver({
      plan,
      rowsMax,
      outputs: runner.outputs,
      lookupThread: looksUp,
    });
  }

  static async load(options: WorkerOptions, onReleased: () => void): Promise<ModelWorker> {
    const { model, data, plan, rowsMax, resident, tuning } = options;
    const rows = resident && new WorkerLookup(plan, rowsMax, resident);
    const runner = await GraphRunner.load({ model, data }, plan, rowsMax, tuning);
    return new ModelWorker(options, runner, rows, onReleased);
  }

  get ready(): readonly OutputShape[] {
    return this.#runner.outputs;
  }

  handle(request: BatchMessage | StopMessage): void {
    let task = (): Promise<void> => this.#stop();
    if (typeof request === 'number' || request.kind === 'run') {
      const batch = this.#slabs.receive(request);
      task = () => this.#run(batch);
    }
    this.#lastTask = this.#lastTask.then(task);
  }

  async #run({ views, rowCount }: ReceivedBatch): Promise<void> {
    try {
      const startMs = performance.now();
      const users = this.#plan.users && listUsers(views.rowUsers, rowCount, this.#firstRows);
      const unseen = this.#rows?.lookUp(views, rowCount, users) ?? 0;
      const { ids, dense, outputs } = views;
      const lookedUpMs = performance.now();
      const { tables, tensors = [] } = this.#rows ?? { tables: views.tables };
      const inputs = { ids, dense, tables, readyTensors: tensors, ...(users && { users }) };
      await this.#runner.run(inputs, rowCount, outputs);
      views.result[0] = unseen;
      views.result[1] = 1_000 * (lookedUpMs - startMs);
      views.result[2] = 1_000 * (performance.now() - lookedUpMs);
      port.postMessage(BATCH_DONE satisfies BatchReply);
    } catch (error) {
      // An error about the inputs too is internal: the engine made them, not the caller.
      replyFailure(port, 'INTERNAL', error);
    }
  }

  async #stop(): Promise<void> {
    await this.#runner.release();
    this.#rows?.detach();
    this.#onReleased();
  }
}

runGraphs(port, ModelWorker.load);
