/**
 * Requests to a model that was pruned without features.json. They have the inputs of the unpruned
 * graph: ids as integers (or as floats where the graph has floats), bags as a list and its offsets
 * (graph-bags.ts), and dense values as the graph takes them.
 */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/feature-rows.ts';
import { checkRowCount } from '../../lib/core/feature-rows.ts';
import { setKey } from '../../lib/core/keys.ts';
import type { IdsSpec } from '../../lib/core/slots.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { computeBagEnds, countBags, type IdColumns, joinIds } from './graph-bags.ts';
import type { InputTensor, TensorsByName } from './input-tensor.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';

/** An input of the unpruned graph. */
interface GraphInput {
  readonly name: string;
  readonly datatype: 'INT64' | 'FP32';
  /** -1 stands for the number of rows, or of the ids of all rows. */
  readonly shape: readonly number[];
}

export function getGraphInputs({ ids, bags, plan }: LoadedBundle): GraphInput[] {
  const inputs = new Map<string, GraphInput>();
  const add = (input: GraphInput): void => {
    if (!inputs.has(input.name)) inputs.set(input.name, input);
  };
  for (const { input: name, dtype, columns } of ids ?? []) {
    const bag = bags.get(name);
    const datatype = isFloat(dtype) ? 'FP32' : 'INT64';
    add({ name, datatype, shape: bag === undefined ? [-1, columns] : [-1] });
    if (bag === undefined) continue;
    const shape = bag.offsetsRow === undefined ? [-1] : [-1, -1];
    add({ name: bag.offsets, datatype: 'INT64', shape });
  }
  for (const { input: name, columns } of plan.dense) {
    add({ name, datatype: 'FP32', shape: [-1, columns.length] });
  }
  return [...inputs.values()];
}

/** @throws CubeError INVALID_ARGUMENT naming the input, TOO_LARGE */
export function toGraphRows(tensors: TensorsByName, bundle: LoadedBundle): KeyedRows {
  const expected = getGraphInputs(bundle);
  const names = expected.map(({ name }) => name);
  for (const [name, tensor] of tensors) {
    if (!names.includes(name)) tensor.fail(`name: expected one of ${names.join(', ')}`);
  }
  for (const name of names) getTensor(tensors, name);
  const rowCount = countGraphRows(tensors, expected, bundle);
  const { dense: inputs, denseNum } = bundle.plan;
  const dense = new Float32Array(rowCount * denseNum);
  for (const { input, columns } of inputs) {
    const floats = readFiniteFloats(getTensor(tensors, input));
    for (let i = 0; i < floats.length; i++) {
      const row = Math.floor(i / columns.length);
      dense[row * denseNum + columns[i % columns.length]!] = floats[i]!;
    }
  }
  const columns = requireDefined(bundle.ids, 'the ids of the model').map((ids) =>
    readIdColumns(tensors, ids, bundle),
  );
  const [first, second] = columns;
  if (first !== undefined && first.ends === undefined && second === undefined) {
    return { rowCount, dense, keys: first.words };
  }
  const { keys, ends } = joinIds(columns, rowCount);
  return { rowCount, dense, keys, ...(bundle.bags.size === 0 ? {} : { ends }) };
}

/**
 * The row count, on which all inputs must agree: the first dim of row inputs, the offsets of bag
 * lists.
 */
function countGraphRows(
  tensors: TensorsByName,
  expected: readonly GraphInput[],
  { bags }: LoadedBundle,
): number {
  const counts: (readonly [InputTensor, number])[] = [];
  for (const { name, shape } of expected) {
    const [, columns] = shape;
    // Lists of ids and their offsets have no columns.
    if (columns === undefined || columns === -1) continue;
    const tensor = getTensor(tensors, name);
    if (tensor.columns !== columns) {
      tensor.fail(`shape: expected [rows, ${columns}], got [${tensor.shape}]`);
    }
    counts.push([tensor, tensor.rowCount]);
  }
  for (const bag of bags.values()) {
    const offsets = getTensor(tensors, bag.offsets);
    counts.push([offsets, countBags(offsets, bag)]);
  }
  const [first, rowCount] = requireDefined(counts[0], 'a graph input with a row count');
  if (rowCount === 0) first.fail('shape: expected at least one row');
  checkRowCount(rowCount, ROWS_PER_REQUEST_MAX);
  for (const [tensor, count] of counts) {
    if (count === rowCount) continue;
    tensor.fail(`shape: expected as many rows as ${first.name} has (${rowCount}), got ${count}`);
  }
  return rowCount;
}

function readIdColumns(tensors: TensorsByName, ids: IdsSpec, { bags }: LoadedBundle): IdColumns {
  const { input, dtype, columns } = ids;
  const tensor = getTensor(tensors, input);
  const words = isFloat(dtype) ? truncateFloats(tensor, dtype) : tensor.keys();
  const bag = bags.get(input);
  if (bag === undefined) return { words, columns, ends: undefined };
  if (tensor.shape.length !== 1) tensor.fail(`shape: expected [ids], got [${tensor.shape}]`);
  return {
    words,
    columns,
    ends: computeBagEnds(getTensor(tensors, bag.offsets), bag, tensor.count),
  };
}

/** @throws CubeError INVALID_ARGUMENT when the request does not have the input */
function getTensor(tensors: TensorsByName, name: string): InputTensor {
  return tensors.get(name) ?? rejectRequest(`inputs: expected an input ${name} too`);
}

/** Rounds towards zero, as the graph's Cast does. */
function truncateFloats(tensor: InputTensor, dtype: string): Uint32Array {
  const words = new Uint32Array(2 * tensor.count);
  tensor.floats().forEach((float, i) => {
    const value = dtype === 'float32' ? Math.fround(float) : float;
    if (!(Math.abs(value) < 2 ** 63)) {
      tensor.fail(`value ${i}: expected a number of at most 63 bits, got ${value}`);
    }
    setKey(words, i, BigInt.asUintN(64, BigInt(Math.trunc(value))));
  });
  return words;
}

/** Graph inputs have no representation for missing values. */
function readFiniteFloats(tensor: InputTensor): Float32Array {
  const floats = Float32Array.from(tensor.floats());
  const invalid = floats.findIndex((value) => !Number.isFinite(value));
  if (invalid >= 0) tensor.fail(`value ${invalid}: expected a finite 32-bit float`);
  return floats;
}

function isFloat(dtype: string): boolean {
  return dtype.startsWith('float');
}

function rejectRequest(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
