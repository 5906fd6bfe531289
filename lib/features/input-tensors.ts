/**
 * Fills the inputs of one graph from a batch. Each input has its own plain buffer, made once,
 * because the runtime does not accept shared memory. A graph with a fixed batch runs piece by
 * piece; the last piece is padded with old values of the buffer.
 */
import { requireDefined } from '../core/errors.ts';
import { f32BitsToF16 } from '../core/half-floats.ts';
import type { OnnxTensor, OnnxValueInfo } from '../platform/onnx.ts';
import { gatherRows, type TableRows } from './gather-rows.ts';
import type { DensePlan, GraphPlan } from './graph-plan.ts';
import type { UserRows } from './user-rows.ts';

/** The parts of a batch from which the inputs are filled. */
export interface GraphInputs {
  /** One for each input that takes the ids themselves. */
  readonly ids: readonly BigInt64Array[];
  readonly dense: Float32Array;
  readonly tables: readonly TableRows[];
  /**
   * For each embedding input, its tensor when the rows are already laid out as the graph takes
   * them.
   */
  readonly readyTensors: readonly (Float32Array | undefined)[];
  /** Present when the plan has users. */
  readonly users?: UserRows;
}

type TensorData = Float32Array | Uint16Array | BigInt64Array | Int32Array;

/** One input of the graph. */
interface GraphInput {
  readonly name: string;
  readonly dtype: OnnxTensor['dtype'];
  /** Elements in a row. */
  readonly width: number;
  /** The tensor's dims after the batch. */
  readonly dims: readonly number[];
  /** Whether it has a row for each user of the batch. */
  readonly isUser?: boolean;
  /**
   * Returns the values of a batch, row-major; the array may be longer.
   * @param rowCount number of users for an input of users, else of rows
   */
  fill(inputs: GraphInputs, rowCount: number): TensorData;
}

export class InputTensors {
  readonly #plan: GraphPlan;
  readonly #inputs: readonly GraphInput[];

  /** @param ports the inputs that the graph declares; the plan was checked against them */
  constructor(plan: GraphPlan, ports: readonly OnnxValueInfo[], rowsMax: number) {
    const findPort = (input: string): OnnxValueInfo =>
      requireDefined(
        ports.find(({ name }) => name === input),
        `the graph input ${input}`,
      );
    const rows =
      plan.fixedBatch === 0 ? rowsMax : Math.ceil(rowsMax / plan.fixedBatch) * plan.fixedBatch;
    const floats = [
      ...plan.embeddings.map((embedding, i) => embeddingInput(plan, embedding, i, rows)),
      ...plan.dense.map((dense) => denseInput(plan, dense, rows)),
    ].map((input) =>
      findPort(input.name).dtype === 'float16' ? toFloat16Input(input, rows) : input,
    );
    const ids = plan.ids.map((input, i) => idsInput(input, i, findPort(input.input), rows));
    const users = plan.users === undefined ? [] : [usersInput(plan.users.input, rows)];
    this.#plan = plan;
    this.#inputs = [...floats, ...ids, ...users];
  }

  /** Fills the inputs and returns the feeds of each run. The next call overwrites them. */
  fillFeeds(inputs: GraphInputs, rowCount: number): Record<string, OnnxTensor>[] {
    if (inputs.users !== undefined) return [this.#fillSplitFeed(inputs, inputs.users, rowCount)];
    const filled = this.#inputs.map((input) => ({ input, data: input.fill(inputs, rowCount) }));
    const perRun = this.#plan.fixedBatch === 0 ? rowCount : this.#plan.fixedBatch;
    const feeds: Record<string, OnnxTensor>[] = [];
    for (let start = 0; start < rowCount; start += perRun) {
      const feed: Record<string, OnnxTensor> = {};
      for (const { input, data } of filled) {
        const { name, dtype, width, dims } = input;
        const values = data.subarray(start * width, (start + perRun) * width);
        feed[name] = { dtype, data: values, dims: [perRun, ...dims] };
      }
      feeds.push(feed);
    }
    return feeds;
  }

  /** Fills one run, in which some inputs have a row for each user. */
  #fillSplitFeed(
    inputs: GraphInputs,
    { userCount }: UserRows,
    rowCount: number,
  ): Record<string, OnnxTensor> {
    const feed: Record<string, OnnxTensor> = {};
    for (const input of this.#inputs) {
      const { name, dtype, width, dims, isUser } = input;
      const count = isUser ? userCount : rowCount;
      const data = input.fill(inputs, count).subarray(0, count * width);
      feed[name] = { dtype, data, dims: [count, ...dims] };
    }
    return feed;
  }
}

function embeddingInput(
  plan: GraphPlan,
  embedding: GraphPlan['embeddings'][number],
  i: number,
  rows: number,
): GraphInput {
  const { input: name, table, columns, shape: dims, isUser = false } = embedding;
  const width = columns.length * plan.tables[table]!.dim;
  const buffer = new Float32Array(rows * width);
  const fill: GraphInput['fill'] = ({ tables, readyTensors, users }, rowCount) => {
    const tensor = readyTensors[i];
    if (tensor !== undefined) return tensor;
    const selected = isUser ? users?.firstRows : undefined;
    gatherRows(tables[table]!, plan, embedding, rowCount, buffer, selected);
    return buffer;
  };
  return { name, dtype: 'float32', width, dims, isUser, fill };
}

function denseInput(
  { denseNum }: GraphPlan,
  { input: name, columns }: DensePlan,
  rows: number,
): GraphInput {
  const width = columns.length;
  const input = { name, dtype: 'float32' as const, width, dims: [width] };
  const isWhole = width === denseNum && columns.every((column, i) => column === i);
  const buffer = new Float32Array(rows * width);
  const fill: GraphInput['fill'] = ({ dense }, rowCount) => {
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

/**
 * The same input in 16 bits. Values beyond their range become infinite; a score that is not finite
 * then fails the request.
 */
function toFloat16Input(input: GraphInput, rows: number): GraphInput {
  const buffer = new Uint16Array(rows * input.width);
  const fill: GraphInput['fill'] = (inputs, rowCount) => {
    const { buffer: bytes, byteOffset } = input.fill(inputs, rowCount);
    const bits = new Uint32Array(bytes, byteOffset, rowCount * input.width);
    for (let i = 0; i < bits.length; i++) buffer[i] = f32BitsToF16(bits[i]!);
    return buffer;
  };
  return { ...input, dtype: 'float16', fill };
}

/** The input that takes the user of each row. */
function usersInput(name: string, rows: number): GraphInput {
  const buffer = new BigInt64Array(rows);
  // The low words of the numbers; the high words stay zero.
  const words = new Int32Array(buffer.buffer);
  const fill: GraphInput['fill'] = ({ users }, rowCount) => {
    const { rowUsers } = requireDefined(users, 'users');
    for (let row = 0; row < rowCount; row++) words[2 * row] = rowUsers[row]!;
    return buffer;
  };
  return { name, dtype: 'int64', width: 1, dims: [], fill };
}

/** An input of ids as the graph declares it: [batch] or [batch, columns], of 32 or 64 bits. */
function idsInput(
  { input: name, slots }: GraphPlan['ids'][number],
  i: number,
  port: OnnxValueInfo,
  rows: number,
): GraphInput {
  const width = slots.length;
  const { length: rank } = port.shape;
  const dims = rank === 1 ? [] : [width, ...Array.from({ length: rank - 2 }, () => 1)];
  if (port.dtype === 'int32') {
    const buffer = new Int32Array(rows * width);
    const fill: GraphInput['fill'] = ({ ids }, rowCount) => {
      const words = new Int32Array(ids[i]!.buffer, ids[i]!.byteOffset, 2 * rowCount * width);
      for (let at = 0; at < rowCount * width; at++) buffer[at] = words[2 * at]!;
      return buffer;
    };
    return { name, dtype: 'int32', width, dims, fill };
  }
  const buffer = new BigInt64Array(rows * width);
  const fill: GraphInput['fill'] = ({ ids }, rowCount) => {
    buffer.set(ids[i]!.subarray(0, rowCount * width));
    return buffer;
  };
  return { name, dtype: 'int64', width, dims, fill };
}
