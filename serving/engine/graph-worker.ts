/**
 * A worker of a plain model: one thread with one instance of one graph. Batches arrive and leave as
 * tensors; their buffers are transferred, not copied. The worker stops by message, after its
 * batches: terminating a thread during a run would crash the process.
 */
import { parentPort, workerData } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import { OnnxModel, type OnnxValueInfo, type SessionTuning } from '../../lib/platform/onnx.ts';
import { fromOnnxTensor, toOnnxTensor } from '../../lib/platform/onnx-tensors.ts';
import type { WorkerReply, WorkerRequest } from './model-instance.ts';

export interface GraphWorkerOptions {
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  /** Names the model in errors. */
  readonly source: string;
  readonly tuning: SessionTuning;
}

/** A tensor whose bytes start at the beginning of their own buffer. */
export type GraphJobTensor = NamedTensor;

export interface GraphJob {
  readonly inputs: readonly GraphJobTensor[];
  /** Names of the outputs to compute. */
  readonly outputs: readonly string[];
}

export interface GraphResult {
  readonly outputs: readonly NamedTensor[];
  readonly inferMicros: number;
}

/** What the runtime says about the loaded graph. */
export interface GraphInfo {
  readonly inputs: readonly OnnxValueInfo[];
  readonly outputs: readonly OnnxValueInfo[];
}

type Request = WorkerRequest<GraphJob>;
type Reply = WorkerReply<GraphInfo, GraphResult>;

if (parentPort === null) throw new Error('graph-worker runs as a worker thread');
const port = parentPort;
const { model, data, source, tuning } = workerData as GraphWorkerOptions;

async function run(loaded: OnnxModel, { inputs, outputs }: GraphJob): Promise<void> {
  try {
    const startMs = performance.now();
    const feeds = Object.fromEntries(inputs.map((input) => [input.name, toOnnxTensor(input)]));
    const results = await loaded.runTensors(feeds, outputs);
    const inferMicros = 1_000 * (performance.now() - startMs);
    const transfer: ArrayBuffer[] = [];
    const tensors = outputs.map((name) => {
      const tensor = fromOnnxTensor(name, results[name]!);
      if (tensor.data instanceof Uint8Array) transfer.push(tensor.data.buffer as ArrayBuffer);
      return tensor;
    });
    const reply: Reply = { kind: 'done', result: { outputs: tensors, inferMicros } };
    port.postMessage(reply, transfer);
  } catch (error) {
    replyFailure('INTERNAL', error);
  }
}

function replyFailure(code: CubeError['code'], error: unknown): void {
  const reply: Reply = { kind: 'failed', code, message: CubeError.from(error).message };
  port.postMessage(reply);
}

try {
  const loaded = await OnnxModel.load(model, { ...tuning, source, externalData: data });
  let lastTask: Promise<void> = Promise.resolve();
  port.on('message', (request: Request) => {
    lastTask = lastTask.then(async () => {
      if (request.kind === 'run') return run(loaded, request.job);
      await loaded.release();
      port.close();
    });
  });
  const ready: Reply = {
    kind: 'ready',
    ready: { inputs: loaded.inputs, outputs: loaded.outputs },
  };
  port.postMessage(ready);
} catch (error) {
  replyFailure(CubeError.from(error).code, error);
}
