/**
 * A worker of a plain model: one thread with one instance of one graph. Batches arrive and leave as
 * tensors; their buffers are transferred, not copied. The worker stops by message, after its
 * batches: terminating a thread during a run would crash the process.
 */
import { parentPort, receiveMessageOnPort, workerData } from 'node:worker_threads';
import { CubeError } from '../../lib/core/errors.ts';
import type { TensorSpec } from '../../lib/core/graph-signature.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import {
  type AnyOnnxTensor,
  OnnxModel,
  type OnnxValueInfo,
  type SessionTuning,
} from '../../lib/platform/onnx.ts';
import { fromOnnxTensor, toOnnxTensor } from '../../lib/platform/onnx-tensors.ts';
import type { WorkerReply, WorkerRequest } from './model-instance.ts';

export interface GraphWorkerOptions {
  readonly model: Uint8Array;
  /** External data of the graph by file name. */
  readonly data: ReadonlyMap<string, Uint8Array>;
  /** Names the model in errors. */
  readonly source: string;
  readonly tuning: SessionTuning;
  readonly inputs: readonly Pick<TensorSpec, 'name' | 'dataType'>[];
  readonly outputs: readonly Pick<TensorSpec, 'name' | 'dataType'>[];
}

/** Copying a smaller buffer costs less than moving it to the other thread. */
const MOVED_BYTES_MIN = 4_096;

type Data = NamedTensor['data'];

/**
 * A batch. Messages have lists in the order of the signature instead of tensors with names, because
 * each name costs time on both sides.
 */
export interface GraphJob {
  /** Bytes start at the beginning of their own buffer. */
  readonly data: readonly Data[];
  readonly shapes: readonly (readonly number[])[];
  /** Positions of the outputs to compute. */
  readonly outputs: readonly number[];
}

export interface GraphResult {
  /** In the order of the job's outputs. */
  readonly data: readonly Data[];
  readonly shapes: readonly (readonly number[])[];
  readonly inferMicros: number;
  /** The memory of the inputs, which the sender may use again. */
  readonly inputBuffers: readonly ArrayBuffer[];
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
const { model, data, source, tuning, ...signature } = workerData as GraphWorkerOptions;

async function run(loaded: OnnxModel, job: GraphJob): Promise<void> {
  try {
    const startMs = performance.now();
    const feeds: Record<string, AnyOnnxTensor> = {};
    for (const [i, { name, dataType }] of signature.inputs.entries()) {
      feeds[name] = toOnnxTensor({ dataType, shape: job.shapes[i]!, data: job.data[i]! });
    }
    const outputs = job.outputs.map((position) => signature.outputs[position]!);
    const results = await loaded.runTensors(
      feeds,
      outputs.map(({ name }) => name),
    );
    const inferMicros = 1_000 * (performance.now() - startMs);
    const tensors = outputs.map(({ name, dataType }) =>
      fromOnnxTensor(name, results[name]!, dataType),
    );
    const inputBuffers = listBuffers(job.data);
    const values = tensors.map((tensor) => tensor.data);
    const shapes = tensors.map(({ shape }) => shape);
    const result = { data: values, shapes, inferMicros, inputBuffers };
    const reply: Reply = { kind: 'done', result };
    const moved = listBuffers(values).filter(({ byteLength }) => byteLength >= MOVED_BYTES_MIN);
    port.postMessage(reply, [...inputBuffers, ...moved]);
  } catch (error) {
    replyFailure('INTERNAL', error);
  }
}

function listBuffers(list: readonly Data[]): ArrayBuffer[] {
  return list.flatMap((one) => (one instanceof Uint8Array ? [one.buffer as ArrayBuffer] : []));
}

function replyFailure(code: CubeError['code'], error: unknown): void {
  const reply: Reply = { kind: 'failed', code, message: CubeError.from(error).message };
  port.postMessage(reply);
}

try {
  const loaded = await OnnxModel.load(model, { ...tuning, source, externalData: data });
  const waiting: Request[] = [];
  let isBusy = false;
  const work = async (first: Request): Promise<void> => {
    isBusy = true;
    let next: Request | undefined = first;
    while (next !== undefined) {
      if (next.kind === 'run') await run(loaded, next.job);
      else {
        await loaded.release();
        port.close();
      }
      // The next batch is usually there: taking it costs less than an event.
      next = waiting.shift() ?? (receiveMessageOnPort(port)?.message as Request | undefined);
    }
    isBusy = false;
  };
  port.on('message', (request: Request) => {
    if (isBusy) waiting.push(request);
    else void work(request);
  });
  const ready: Reply = {
    kind: 'ready',
    ready: { inputs: loaded.inputs, outputs: loaded.outputs },
  };
  port.postMessage(ready);
} catch (error) {
  replyFailure(CubeError.from(error).code, error);
}
