/**
 * The inputs of one graph, filled from a batch: each has a plain buffer of its own (shared memory is refused by the runtime), made
 * once. A graph that was exported for a fixed number of rows is fed piece by piece; the last piece is filled up with whatever
 * the buffer held.
 */
import { f32BitsToF16 } from '../../lib/core/half-floats.ts';
import type { OnnxPort, OnnxTensor } from '../../lib/platform/onnx.ts';
import { gatherRows, type TableRows } from './gather.ts';
import type { DensePlan, GraphPlan } from './graph-plan.ts';

/** What a batch consists of for the graph. */
export interface GraphInputs {
  /** Of each input that takes the ids themselves. */
  readonly ids: readonly BigInt64Array[];
  readonly dense: Float32Array;
  readonly tables: readonly TableRows[];
  /** For each embedding input its tensor, where the rows lie as the graph takes them and nothing is gathered. */
  readonly tensors: readonly (Float32Array | undefined)[];
}

type Data = Float32Array | Uint16Array | BigInt64Array | Int32Array;

/** One input of the graph. */
interface Input {
  readonly name: string;
  readonly dtype: OnnxTensor['dtype'];
  /** Elements in a row, and the dims behind the batch that they are in. */
  readonly width: number;
  readonly dims: readonly number[];
  /** The values of a batch, row-major from the first on; there may be more. */
  fill(inputs: GraphInputs, rowCount: number): Data;
}

export class InputTensors {
  readonly #plan: GraphPlan;
  readonly #inputs: readonly Input[];

  /** @param ports the graph's inputs, as it declares them; the plan was checked against them */
  constructor(plan: GraphPlan, ports: readonly OnnxPort[], rowsMax: number) {
    const portOf = (input: string): OnnxPort => ports.find(({ name }) => name === input)!;
    const rows = plan.batch === 0 ? rowsMax : Math.ceil(rowsMax / plan.batch) * plan.batch;
    const floats = [
      ...plan.embeddings.map((_, i) => embeddingInput(plan, i, rows)),
      ...plan.dense.map((dense) => denseInput(plan, dense, rows)),
    ].map((input) => (portOf(input.name).dtype === 'float16' ? halved(input, rows) : input));
    const ids = plan.ids.map((_, i) => idsInput(plan, i, portOf(plan.ids[i]!.input), rows));
    this.#plan = plan;
    this.#inputs = [...floats, ...ids];
  }

  /** What to feed, run by run. Void when the next batch is filled. */
  feeds(inputs: GraphInputs, rowCount: number): Record<string, OnnxTensor>[] {
    const filled = this.#inputs.map((input) => ({ input, data: input.fill(inputs, rowCount) }));
    const perRun = this.#plan.batch === 0 ? rowCount : this.#plan.batch;
    const feeds: Record<string, OnnxTensor>[] = [];
    for (let start = 0; start < rowCount; start += perRun) {
      const feed: Record<string, OnnxTensor> = {};
      for (const { input, data } of filled) {
        const { name, dtype, width, dims } = input;
        const own = data.subarray(start * width, (start + perRun) * width);
        feed[name] = { dtype, data: own, dims: [perRun, ...dims] };
      }
      feeds.push(feed);
    }
    return feeds;
  }
}

function embeddingInput(plan: GraphPlan, i: number, rows: number): Input {
  const embedding = plan.embeddings[i]!;
  const { input: name, table, columns, shape: dims } = embedding;
  const width = columns.length * plan.tables[table]!.dim;
  const buffer = new Float32Array(rows * width);
  const fill: Input['fill'] = ({ tables, tensors }, rowCount) => {
    const tensor = tensors[i];
    if (tensor !== undefined) return tensor;
    gatherRows(tables[table]!, plan, embedding, rowCount, buffer);
    return buffer;
  };
  return { name, dtype: 'float32', width, dims, fill };
}

function denseInput(
  { denseNum }: GraphPlan,
  { input: name, columns }: DensePlan,
  rows: number,
): Input {
  const width = columns.length;
  const input = { name, dtype: 'float32' as const, width, dims: [width] };
  const isWhole = width === denseNum && columns.every((column, i) => column === i);
  const buffer = new Float32Array(rows * width);
  const fill: Input['fill'] = ({ dense }, rowCount) => {
    if (isWhole) {
      buffer.set(dense.subarray(0, rowCount * width));
      return buffer;
    }
    for (let row = 0, to = 0; row < rowCount; row++) {
      for (let c = 0; c < width; c++) buffer[to++] = dense[row * denseNum + columns[c]!]!;
    }
    return buffer;
  };
  return { ...input, fill };
}

/** The same in 16 bits: what is beyond their range is an infinity, and the score that comes of it no number, which is refused. */
function halved(input: Input, rows: number): Input {
  const buffer = new Uint16Array(rows * input.width);
  const fill: Input['fill'] = (inputs, rowCount) => {
    const { buffer: bytes, byteOffset } = input.fill(inputs, rowCount);
    const bits = new Uint32Array(bytes, byteOffset, rowCount * input.width);
    for (let i = 0; i < bits.length; i++) buffer[i] = f32BitsToF16(bits[i]!);
    return buffer;
  };
  return { ...input, dtype: 'float16', fill };
}

/** As the graph declares it: [batch] or [batch, columns], of 32 or 64 bits. */
function idsInput(plan: GraphPlan, i: number, port: OnnxPort, rows: number): Input {
  const { input: name, slots } = plan.ids[i]!;
  const width = slots.length;
  const { length: rank } = port.shape;
  const dims = rank === 1 ? [] : [width, ...Array.from({ length: rank - 2 }, () => 1)];
  if (port.dtype === 'int32') {
    const buffer = new Int32Array(rows * width);
    const fill: Input['fill'] = ({ ids }, rowCount) => {
      const words = new Int32Array(ids[i]!.buffer, ids[i]!.byteOffset, 2 * rowCount * width);
      for (let at = 0; at < rowCount * width; at++) buffer[at] = words[2 * at]!;
      return buffer;
    };
    return { name, dtype: 'int32', width, dims, fill };
  }
  const buffer = new BigInt64Array(rows * width);
  const fill: Input['fill'] = ({ ids }, rowCount) => {
    buffer.set(ids[i]!.subarray(0, rowCount * width));
    return buffer;
  };
  return { name, dtype: 'int64', width, dims, fill };
}
