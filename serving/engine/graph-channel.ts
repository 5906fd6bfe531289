/** The main thread's side of the memories that it shares with one worker (graph-memory.ts). */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import type { GraphSignature } from '../../lib/core/graph-signature.ts';
import type { Tensor } from '../../lib/core/tensor.ts';
import {
  type DoneMessage,
  haveSameShapes,
  isSameList,
  KEPT_BYTES_MAX,
  layOut,
  MEMORIES,
  OUTPUT_BYTES_MAX,
  type RunMessage,
  type Shapes,
  type TensorData,
  withRows,
} from './graph-memory.ts';
import type { FailedReply, InstanceChannel } from './model-instance.ts';

/** A batch. Lists are in the order of the signature. */
export interface GraphJob {
  /** For each input its parts, one after another along the first dimension. */
  readonly inputs: readonly (readonly Tensor[])[];
  readonly shapes: Shapes;
  /** Positions of the outputs to compute. */
  readonly outputs: readonly number[];
}

export interface GraphResult {
  /** In the order of the job's outputs. */
  readonly data: readonly TensorData[];
  readonly shapes: Shapes;
  readonly inferMicros: number;
}

/** What both threads know of one memory. */
interface MemoryState {
  memory: SharedArrayBuffer | undefined;
  bytes: Uint8Array;
  shapes: Shapes;
  outputs: readonly number[];
  /** Where the outputs begin. */
  outputBegin: number;
  outputShapes: Shapes;
}

export class GraphChannel implements InstanceChannel<GraphJob, GraphResult> {
  readonly #signature: GraphSignature;
  readonly #isBatched: boolean;
  readonly #memories: readonly MemoryState[];
  #sent = 0;
  #received = 0;

  constructor(signature: GraphSignature, isBatched: boolean) {
    this.#signature = signature;
    this.#isBatched = isBatched;
    this.#memories = Array.from({ length: MEMORIES }, () => ({
      memory: undefined,
      bytes: new Uint8Array(),
      shapes: [],
      outputs: [],
      outputBegin: 0,
      outputShapes: [],
    }));
  }

  encode(job: GraphJob): RunMessage | number {
    const state = this.#memories[this.#sent % MEMORIES]!;
    const { inputs } = this.#signature;
    const { shapes, outputs } = job;
    const rows = this.#isBatched ? shapes[0]?.[0] : undefined;
    const layout = layOut(inputs, shapes);
    const needed = layout.end + OUTPUT_BYTES_MAX;
    const hasTexts = inputs.some(({ dataType }) => dataType === 'BYTES');
    const isAsBefore =
      !hasTexts &&
      state.memory !== undefined &&
      state.memory.byteLength >= needed &&
      isSameList(state.outputs, outputs) &&
      haveSameShapes(withRows(state.shapes, rows), shapes);
    if (state.memory === undefined || state.memory.byteLength < needed) {
      state.memory = new SharedArrayBuffer(2 ** Math.ceil(Math.log2(needed)));
      state.bytes = new Uint8Array(state.memory);
    }
    // Nothing below fails, so that both threads count the same batches.
    this.#sent++;
    state.shapes = shapes;
    state.outputs = outputs;
    state.outputBegin = layout.end;
    if (!isAsBefore) state.outputShapes = [];
    for (let i = 0; i < inputs.length; i++) {
      if (inputs[i]!.dataType === 'BYTES') continue;
      copyParts(job.inputs[i]!, state.bytes, layout.offsets[i]!);
    }
    if (isAsBefore) return rows ?? 1;
    const texts = inputs.map(({ dataType }, i) =>
      dataType === 'BYTES'
        ? job.inputs[i]!.flatMap(({ data }) => data as readonly string[])
        : undefined,
    );
    return { kind: 'run', memory: state.memory, shapes, outputs, texts };
  }

  decode(reply: DoneMessage | FailedReply | number): GraphResult {
    const state = this.#memories[this.#received++ % MEMORIES]!;
    const memory = requireDefined(state.memory, 'the memory of a batch');
    if (memory.byteLength > KEPT_BYTES_MAX) state.memory = undefined;
    if (typeof reply === 'number') {
      const rows = this.#isBatched ? state.shapes[0]?.[0] : undefined;
      state.outputShapes = withRows(state.outputShapes, rows);
    } else {
      if (reply.kind === 'failed') throw new CubeError(reply.code, reply.message);
      const { data, shapes, inferMicros } = reply;
      state.outputShapes = shapes;
      if (data !== undefined) return { data, shapes, inferMicros };
    }
    const shapes = state.outputShapes;
    const specs = state.outputs.map((position) => this.#signature.outputs[position]!);
    const { offsets, byteLengths } = layOut(specs, shapes, state.outputBegin);
    const data = offsets.map((offset, i) => state.bytes.slice(offset, offset + byteLengths[i]!));
    const [inferMicros = 0] = new Float64Array(memory, 0, 1);
    return { data, shapes, inferMicros };
  }
}

function copyParts(parts: readonly Tensor[], bytes: Uint8Array, begin: number): void {
  let at = begin;
  for (const { data } of parts) {
    bytes.set(data as Uint8Array, at);
    at += data.length;
  }
}
