/**
 * The tensors of a request to rows. A model as presented takes raw features, not what its graph takes, in any of these forms:
 *
 * - `categorical` BYTES [rows, slots], or `keys` UINT64 (INT64, …) of the same shape: hashed by the caller, or the ids of a model
 *   that has no hash; and `dense` [rows, dense], unscaled, NaN for a missing value;
 * - a tensor for each slot and dense feature by its name, [rows] or [rows, 1], of a pooled slot [rows, n] where empty strings
 *   only fill up. One that is left out is missing in every row; a slot of a single row beside many is shared by all of them.
 *
 * A model that was pruned without features.json takes its unpruned graph's inputs instead (graph-tensors.ts).
 */

import { CubeError } from '../../lib/core/errors.ts';
import { FeatureBags } from '../../lib/core/feature-bags.ts';
import { checkRowCount } from '../../lib/core/feature-rows.ts';
import {
  type FeatureRows,
  type KeyedRows,
  type SharedFeatures,
  scaleDense,
} from '../../lib/core/features.ts';
import type { Slot } from '../../lib/core/slots.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';
import { graphRows } from './graph-tensors.ts';
import type { InputTensor, Tensors } from './tensors.ts';

export const CATEGORICAL = 'categorical';
export const KEYS = 'keys';
export const DENSE = 'dense';

/** @throws CubeError INVALID_ARGUMENT naming the input */
export function byName(inputs: readonly InputTensor[]): Tensors {
  const tensors = new Map<string, InputTensor>();
  for (const input of inputs) {
    if (tensors.has(input.name)) input.fail('name: expected each input once');
    tensors.set(input.name, input);
  }
  return tensors;
}

/** @throws CubeError INVALID_ARGUMENT naming the input, TOO_LARGE */
export function rowsOf(tensors: Tensors, bundle: LoadedBundle): FeatureRows | KeyedRows {
  if (bundle.ids !== undefined) return graphRows(tensors, bundle);
  refuseUnknown(tensors, bundle);
  const { slots } = bundle.features;
  const whole = wholeInput(tensors);
  const rowCount = Math.max(...[...tensors.values()].map((tensor) => tensor.rowCount));
  if (rowCount === 0) fail('inputs: expected at least one row');
  checkRowCount(rowCount, ROWS_PER_REQUEST_MAX);
  const { raw, dense } = denseOf(tensors, bundle, rowCount);
  if (whole !== undefined) {
    refuseBeside(whole, slots, tensors);
    checkShape(whole, rowCount, slots.length);
    return whole.name === KEYS
      ? { rowCount, dense, keys: whole.keys() }
      : { rowCount, dense, rawDense: raw, features: whole.strings() };
  }
  const given = slots.map(({ name }) => tensors.get(name));
  const first = given.find((tensor) => tensor !== undefined);
  if (first === undefined) {
    fail(`inputs: expected either an input ${CATEGORICAL} or an input ${KEYS}, or slots by name`);
  }
  if (first.datatype !== 'BYTES') return { rowCount, dense, ...slotKeys(slots, given, rowCount) };
  return { rowCount, dense, rawDense: raw, ...slotFeatures(slots, given, rowCount) };
}

function refuseUnknown(tensors: Tensors, { features, plan }: LoadedBundle): void {
  const forms = [CATEGORICAL, KEYS, ...(plan.denseNum > 0 ? [DENSE] : [])];
  let own: ReadonlySet<string> | undefined;
  for (const [name, tensor] of tensors) {
    if (forms.includes(name)) continue;
    own ??= new Set(
      [...features.slots, ...(features.dense?.features ?? [])].map(({ name }) => name),
    );
    if (own.has(name)) continue;
    tensor.fail(`name: expected one of ${forms.join(', ')}, or a slot or dense feature by name`);
  }
}

/** The one tensor that has all slots. */
function wholeInput(tensors: Tensors): InputTensor | undefined {
  const categorical = tensors.get(CATEGORICAL);
  const keys = tensors.get(KEYS);
  if (categorical !== undefined && keys !== undefined) {
    fail(`inputs: expected either an input ${CATEGORICAL} or an input ${KEYS}, got both`);
  }
  return categorical ?? keys;
}

/** Else one of the two would be forgotten. */
function refuseBeside(
  whole: InputTensor,
  parts: readonly { readonly name: string }[],
  tensors: Tensors,
): void {
  for (const { name } of parts) {
    const part = tensors.get(name);
    if (part !== undefined && part !== whole) {
      part.fail(`name: expected nothing beside the input ${whole.name}, which has it already`);
    }
  }
}

function checkShape(tensor: InputTensor, rowCount: number, columns: number): void {
  if (tensor.shape.length !== 2 || tensor.shape[1] !== columns) {
    tensor.fail(`shape: expected [rows, ${columns}], got [${tensor.shape}]`);
  }
  checkRows(tensor, rowCount);
}

function checkRows(tensor: InputTensor, rowCount: number): void {
  if (tensor.rowCount === rowCount) return;
  tensor.fail(
    `shape: expected as many rows as the other inputs have (${rowCount}), got ${tensor.rowCount}`,
  );
}

/** Raw and scaled, rowCount × dense features. */
function denseOf(
  tensors: Tensors,
  { features, plan }: LoadedBundle,
  rowCount: number,
): { raw: Float64Array; dense: Float32Array } {
  const denseFeatures = features.dense?.features ?? [];
  const whole = tensors.get(DENSE);
  const named = denseFeatures.map(({ name }) => tensors.get(name));
  if (plan.denseNum === 0) return { raw: new Float64Array(0), dense: new Float32Array(0) };
  let raw: Float64Array;
  if (whole !== undefined) {
    refuseBeside(whole, denseFeatures, tensors);
    checkShape(whole, rowCount, plan.denseNum);
    raw = new Float64Array(whole.floats());
  } else {
    if (named.every((tensor) => tensor === undefined))
      fail(`inputs: expected an input ${DENSE} too`);
    raw = new Float64Array(rowCount * plan.denseNum).fill(Number.NaN);
    named.forEach((tensor, column) => {
      if (tensor !== undefined) fillColumn(tensor, raw, { rowCount, column, width: plan.denseNum });
    });
  }
  return { raw, dense: scaleDense(raw, rowCount, denseFeatures) };
}

function fillColumn(
  tensor: InputTensor,
  raw: Float64Array,
  { rowCount, column, width }: { rowCount: number; column: number; width: number },
): void {
  checkColumns(tensor, 1);
  if (tensor.rowCount !== 1) checkRows(tensor, rowCount);
  const values = tensor.floats();
  const step = tensor.rowCount === 1 ? 0 : 1;
  for (let row = 0; row < rowCount; row++) raw[row * width + column] = values[row * step]!;
}

function checkColumns(tensor: InputTensor, columns: number): void {
  const isFit = tensor.shape.length <= 2 && tensor.columns === columns;
  if (!isFit) tensor.fail(`shape: expected [rows] or [rows, ${columns}], got [${tensor.shape}]`);
}

/** Keys of each slot by its name: all of them, since a key cannot be missing. */
function slotKeys(
  slots: readonly Slot[],
  given: readonly (InputTensor | undefined)[],
  rowCount: number,
): { keys: Uint32Array } {
  const keys = new Uint32Array(2 * rowCount * slots.length);
  given.forEach((tensor, slot) => {
    const { name } = slots[slot]!;
    if (tensor === undefined) {
      fail(`inputs: expected an input ${name} too: where slots come as keys, all are needed`);
    }
    checkColumns(tensor, 1);
    if (tensor.rowCount !== 1) checkRows(tensor, rowCount);
    const words = tensor.keys();
    const step = tensor.rowCount === 1 ? 0 : 2;
    for (let row = 0; row < rowCount; row++) {
      const to = 2 * (row * slots.length + slot);
      keys[to] = words[row * step]!;
      keys[to + 1] = words[row * step + 1]!;
    }
  });
  return { keys };
}

/** One slot's strings: those of row r are at r · columns, and of a shared slot those of row 0 stand for all. */
interface SlotStrings {
  readonly slot: Slot;
  readonly strings: readonly string[];
  readonly columns: number;
  readonly isShared: boolean;
}

function slotFeatures(
  slots: readonly Slot[],
  given: readonly (InputTensor | undefined)[],
  rowCount: number,
): Pick<FeatureRows, 'features' | 'ends' | 'shared'> {
  const all = slots.map((slot, i): SlotStrings => {
    const tensor = given[i];
    if (tensor === undefined) return { slot, strings: [''], columns: 1, isShared: true };
    if (slot.pooling === undefined) checkColumns(tensor, 1);
    else if (tensor.shape.length > 2) checkColumns(tensor, tensor.columns);
    const isShared = tensor.rowCount === 1 && rowCount > 1;
    if (!isShared) checkRows(tensor, rowCount);
    return { slot, strings: tensor.strings(), columns: tensor.columns, isShared };
  });
  const own = all.filter(({ isShared }) => !isShared);
  const common = all.filter(({ isShared }) => isShared);
  const bags = collect(own, rowCount);
  if (common.length === 0 || rowCount === 1) return collect(all, rowCount);
  const positions = Int32Array.from(common, ({ slot }) => slots.indexOf(slot));
  const shared: SharedFeatures = { slots: positions, ...collect(common, 1) };
  return { ...bags, shared };
}

function collect(
  slots: readonly SlotStrings[],
  rowCount: number,
): Pick<FeatureRows, 'features' | 'ends'> {
  const bags = new FeatureBags<string>(
    slots.map(({ slot }) => slot),
    rowCount,
  );
  for (let row = 0; row < rowCount; row++) {
    for (const { slot, strings, columns } of slots) {
      const isPooled = slot.pooling !== undefined;
      for (let i = row * columns; i < (row + 1) * columns; i++) {
        if (!isPooled || strings[i] !== '') bags.add(strings[i]!);
      }
      bags.endBag();
    }
  }
  const { values: features, ends } = bags;
  return { features, ...(ends === undefined ? {} : { ends }) };
}

function fail(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
