/** Reads Triton's `model_warmup`: the requests that a model answers before it serves. */
import type { TextMessage } from '../../proto/text-format.ts';
import { readMap } from './triton-fields.ts';
import { readDatatype, readDims, readFileName } from './triton-tensors.ts';

export type WarmUpData =
  | { readonly kind: 'zeros' }
  | { readonly kind: 'random' }
  /** A file in the folder `warmup` of the model: the bytes of the tensor. */
  | { readonly kind: 'file'; readonly name: string };

export interface WarmUpInput {
  readonly datatype: string;
  /** Without the batch. */
  readonly dims: readonly number[];
  readonly data: WarmUpData;
}

export interface TritonWarmUp {
  readonly name: string;
  /** The rows of each request; 0 for a model whose first dimension is not a batch. */
  readonly rows: number;
  /** The number of equal requests. */
  readonly count: number;
  readonly inputs: ReadonlyMap<string, WarmUpInput>;
}

const ENTRIES_MAX = 64;
const ROWS_MAX = 4096;
const COUNT_MAX = 1_000;
const ELEMENTS_MAX = 64 << 20;

/** @throws CubeError INVALID_ARGUMENT */
export function readWarmUps(root: TextMessage, maxBatch: number | undefined): TritonWarmUp[] {
  const nodes = root.messages('model_warmup');
  if (nodes.length > ENTRIES_MAX) {
    root.failField('model_warmup', `more than ${ENTRIES_MAX} entries in model_warmup`);
  }
  return nodes.map((node) => readWarmUp(node, maxBatch));
}

function readWarmUp(node: TextMessage, maxBatch: number | undefined): TritonWarmUp {
  const name = node.string('name') || node.fail('model_warmup: the entry has no name');
  const rows = node.integer('batch_size', 0, ROWS_MAX) ?? 0;
  if (maxBatch !== undefined && rows > Math.max(maxBatch, 1)) {
    node.failField(
      'batch_size',
      `model_warmup ${name}: batch_size ${rows} is more than max_batch_size ${maxBatch}`,
    );
  }
  const inputs = new Map<string, WarmUpInput>();
  for (const [input, entry] of readMap(node, 'inputs')) {
    const value = entry.messages('value')[0] ?? entry.fail(`${input}: the value is missing`);
    inputs.set(input, readInput(value, `model_warmup ${name}: ${input}`, Math.max(rows, 1)));
  }
  if (inputs.size === 0) node.fail(`model_warmup ${name} has no inputs`);
  return { name, rows, count: node.integer('count', 0, COUNT_MAX) || 1, inputs };
}

function readInput(node: TextMessage, name: string, rows: number): WarmUpInput {
  const dims = readDims(node, 'dims', name);
  if (dims.includes(-1)) {
    node.failField('dims', `${name}: the dimensions of warm-up data must be known`);
  }
  if (dims.reduce((product, size) => product * size, rows) > ELEMENTS_MAX) {
    node.failField('dims', `${name}: more than ${ELEMENTS_MAX} elements`);
  }
  return { datatype: readDatatype(node, name), dims, data: readData(node, name) };
}

function readData(node: TextMessage, name: string): WarmUpData {
  const file = readFileName(node, 'input_data_file');
  if (file !== undefined) return { kind: 'file', name: file };
  if (node.boolean('random_data')) return { kind: 'random' };
  if (node.boolean('zero_data')) return { kind: 'zeros' };
  return node.fail(`${name}: give zero_data, random_data or input_data_file`);
}
