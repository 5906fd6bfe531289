/**
 * Requests to a model that was pruned without features.json: tensors by the names of the unpruned graph's inputs, ids of integers
 * (or of floats, where the graph had them so), bags of them as a list and its offsets (graph-bags.ts), and dense inputs as the
 * graph takes them.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { checkRowCount } from '../../lib/core/feature-rows.ts';
import type { KeyedRows } from '../../lib/core/features.ts';
import { setKey } from '../../lib/core/keys.ts';
import type { IdsSpec } from '../../lib/core/slots.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';
import { bagCount, bagEnds, type IdsColumns, joinIds } from './graph-bags.ts';
import type { InputTensor, Tensors } from './tensors.ts';

/** A tensor that the graph takes. */
interface GraphInput {
  readonly name: string;
  readonly datatype: 'INT64' | 'FP32';
  /** -1: rows, or the ids of all of them. */
  readonly shape: readonly number[];
}

export function graphInputs({ ids, bags, plan }: LoadedBundle): GraphInput[] {
  const inputs = new Map<string, GraphInput>();
  const add = (input: GraphInput): void => {
    if (!inputs.has(input.name)) inputs.set(input.name, input);
  };
  for (const { input: name, dtype, columns } of ids!) {
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
export function graphRows(tensors: Tensors, bundle: LoadedBundle): KeyedRows {
  const wanted = graphInputs(bundle);
  const names = wanted.map(({ name }) => name);
  for (const [name, tensor] of tensors) {
    if (!names.includes(name)) tensor.fail(`name: expected one of ${names.join(', ')}`);
  }
  for (const name of names) {
    if (!tensors.has(name)) fail(`inputs: expected an input ${name} too`);
  }
  const rowCount = graphRowCount(tensors, wanted, bundle);
  const { dense: inputs, denseNum } = bundle.plan;
  const dense = new Float32Array(rowCount * denseNum);
  for (const { input, columns } of inputs) {
    const floats = finiteFloats(tensors.get(input)!);
    for (let i = 0; i < floats.length; i++) {
      const row = Math.floor(i / columns.length);
      dense[row * denseNum + columns[i % columns.length]!] = floats[i]!;
    }
  }
  const columns = bundle.ids!.map((ids) => idsColumns(tensors, ids, bundle));
  if (columns.length > 1 || columns[0]!.ends !== undefined) {
    const { keys, ends } = joinIds(columns, rowCount);
    return { rowCount, dense, keys, ...(bundle.bags.size === 0 ? {} : { ends }) };
  }
  return { rowCount, dense, keys: columns[0]!.words };
}

/** All inputs agree on it: those of a row each by their first dim, lists of bags by their offsets. */
function graphRowCount(
  tensors: Tensors,
  wanted: readonly GraphInput[],
  { bags }: LoadedBundle,
): number {
  const counts: (readonly [InputTensor, number])[] = [];
  for (const { name, shape } of wanted) {
    const [, columns] = shape;
    // Lists, and their offsets.
    if (columns === undefined || columns === -1) continue;
    const tensor = tensors.get(name)!;
    if (tensor.columns !== columns) {
      tensor.fail(`shape: expected [rows, ${columns}], got [${tensor.shape}]`);
    }
    counts.push([tensor, tensor.rowCount]);
  }
  for (const bag of bags.values()) {
    const offsets = tensors.get(bag.offsets)!;
    counts.push([offsets, bagCount(offsets, bag)]);
  }
  const [first, rowCount] = counts[0]!;
  if (rowCount === 0) first.fail('shape: expected at least one row');
  checkRowCount(rowCount, ROWS_PER_REQUEST_MAX);
  for (const [tensor, count] of counts) {
    if (count === rowCount) continue;
    tensor.fail(`shape: expected as many rows as ${first.name} has (${rowCount}), got ${count}`);
  }
  return rowCount;
}

function idsColumns(tensors: Tensors, ids: IdsSpec, { bags }: LoadedBundle): IdsColumns {
  const { input, dtype, columns } = ids;
  const tensor = tensors.get(input)!;
  const words = isFloat(dtype) ? integersOf(tensor, dtype) : tensor.keys();
  const bag = bags.get(input);
  if (bag === undefined) return { words, columns, ends: undefined };
  if (tensor.shape.length !== 1) tensor.fail(`shape: expected [ids], got [${tensor.shape}]`);
  return { words, columns, ends: bagEnds(tensors.get(bag.offsets)!, bag, tensor.count) };
}

/** Towards zero, as the graph's Cast does. */
function integersOf(tensor: InputTensor, dtype: string): Uint32Array {
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

/** The graph knows no missing value. */
function finiteFloats(tensor: InputTensor): Float32Array {
  const floats = Float32Array.from(tensor.floats());
  const wrong = floats.findIndex((value) => !Number.isFinite(value));
  if (wrong >= 0) tensor.fail(`value ${wrong}: expected a finite 32-bit float`);
  return floats;
}

function isFloat(dtype: string): boolean {
  return dtype.startsWith('float');
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
