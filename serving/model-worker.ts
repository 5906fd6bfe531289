/**
 * A model worker: one thread with one instance of one graph. It speaks by messages only (`WorkerRequest` in, `WorkerReply`
 * out); a batch's slab comes in by transfer and goes back by transfer. It ends when told to, after the batch it runs:
 * a thread that is terminated inside a run takes the process with it.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import type { GraphPlan } from './graph-plan.ts';
import { GraphRunner } from './graph-runner.ts';

export interface WorkerStart {
  readonly model: Uint8Array;
  /** Data of the graph in other files, by their names. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  readonly plan: GraphPlan;
}

export type WorkerRequest =
  | { readonly kind: 'run'; readonly slab: ArrayBuffer; readonly rowCount: number }
  | { readonly kind: 'stop' };

export type WorkerReply =
  | { readonly kind: 'ready'; readonly outputNum: number }
  | { readonly kind: 'done'; readonly slab: ArrayBuffer }
  | { readonly kind: 'failed'; readonly code: ErrorCode; readonly message: string };

if (parentPort === null) throw new Error('model-worker runs as a worker thread');
const port = parentPort;
const { model, data, plan } = workerData as WorkerStart;

function reply(message: WorkerReply, transfer: ArrayBuffer[] = []): void {
  port.postMessage(message, transfer);
}

function replyFailure(code: ErrorCode, error: unknown): void {
  reply({ kind: 'failed', code, message: CubeError.from(error).message });
}

try {
  const runner = await GraphRunner.load({ model, data }, plan);
  port.on('message', async (request: WorkerRequest) => {
    if (request.kind === 'stop') {
      await runner.release();
      port.close();
      return;
    }
    try {
      await runner.run(request.slab, request.rowCount);
      reply({ kind: 'done', slab: request.slab }, [request.slab]);
    } catch (error) {
      // Whatever the graph says of its inputs: they were made here, not by the caller.
      replyFailure('INTERNAL', error);
    }
  });
  reply({ kind: 'ready', outputNum: runner.outputNum });
} catch (error) {
  replyFailure(CubeError.from(error).code, error);
}
