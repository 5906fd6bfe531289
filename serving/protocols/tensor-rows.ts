/**
 * Converts the tensors of a request to rows. A model takes raw features, not the inputs of its
 * graph, in one of these forms:
 *
 * - `categorical` BYTES [rows, slots], or `keys` UINT64 (INT64, …) of the same shape (hashed by the
 *   caller, or the ids of a model without a hash); and `dense` [rows, dense], unscaled, NaN for a
 *   missing value.
 * - One tensor per slot and dense feature, by name: [rows] or [rows, 1]; for a pooled slot [rows,
 *   n], padded with empty strings. A feature without a tensor is missing in every row. A tensor
 *   with one row is shared by all rows.
 *
 * An empty string in a pooled slot is no value, in both forms.
 *
 * A model that was pruned without features.json takes the inputs of its unpruned graph instead
 * (graph-tensors.ts).
 */

import { CubeError } from '../../lib/core/errors.ts';
import {
  checkRowCount,
  FeatureBagBuilder,
  type FeatureRows,
  type KeyedRows,
  type SharedFeatures,
  scaleDense,
} from '../../lib/core/feature-rows.ts';
import type { Slot } from '../../lib/core/slots.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { getGraphInputs, toGraphRows } from './graph-tensors.ts';
import type { InputTensor, TensorsByName } from './input-tensor.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';

export const CATEGORICAL = 'categorical';
export const KEYS = 'keys';
export const DENSE = 'dense';

/** @throws CubeError INVALID_ARGUMENT naming the input */
export function indexByName(inputs: readonly InputTensor[]): TensorsByName {
  const tensors = new Map<string, InputTensor>();
  for (const input of inputs) {
    if (tensors.has(input.name)) input.fail('name: expected each input once');
    tensors.set(input.name, input);
  }
  return tensors;
}

/** @throws CubeError INVALID_ARGUMENT naming the input, TOO_LARGE */
export function toRows(tensors: TensorsByName, bundle: LoadedBundle): FeatureRows | KeyedRows {
  for (const tensor of tensors.values()) tensor.checkRows();
  if (bundle.ids !== undefined) return toGraphRows(tensors, bundle);
  rejectUnknownInputs(tensors, bundle);
  const { slots } = bundle.features;
  const combined = findCombinedInput(tensors);
  const rowCount = Math.max(...[...tensors.values()].map((tensor) => tensor.rowCount));
  if (rowCount === 0) rejectRequest('inputs: expected at least one row');
  checkRowCount(rowCount, ROWS_PER_REQUEST_MAX);
  const { raw, dense } = readDense(tensors, bundle, rowCount);
  if (combined !== undefined) {
    rejectDuplicates(combined, slots, tensors);
    checkShape(combined, rowCount, slots.length);
    return combined.name === KEYS
      ? { rowCount, dense, keys: combined.keys() }
      : { rowCount, dense, rawDense: raw, ...combinedFeatures(slots, combined.strings()) };
  }
  const given = slots.map(({ name }) => tensors.get(name));
  const first = given.find((tensor) => tensor !== undefined);
  // Where dense features are given by name, all slots may be missing.
  if (first === undefined && (tensors.has(DENSE) || tensors.size === 0)) {
    rejectRequest(
      `inputs: expected either an input ${CATEGORICAL} or an input ${KEYS}, or slots by name`,
    );
  }
  if (first !== undefined && first.datatype !== 'BYTES') {
    return { rowCount, dense, ...slotKeys(slots, given, rowCount) };
  }
  return { rowCount, dense, rawDense: raw, ...slotFeatures(slots, given, rowCount) };
}

/** Names of all inputs that requests may have. */
export function listInputNames(bundle: LoadedBundle): string[] {
  if (bundle.ids !== undefined) return getGraphInputs(bundle).map(({ name }) => name);
  const { slots, dense } = bundle.features;
  return [...listForms(bundle), ...[...slots, ...(dense?.features ?? [])].map(({ name }) => name)];
}

/** Names of tensors that have all slots or all dense values. */
function listForms({ plan }: LoadedBundle): string[] {
  return [CATEGORICAL, KEYS, ...(plan.denseNum > 0 ? [DENSE] : [])];
}

function rejectUnknownInputs(tensors: TensorsByName, bundle: LoadedBundle): void {
  const forms = listForms(bundle);
  let names: ReadonlySet<string> | undefined;
  for (const [name, tensor] of tensors) {
    if (forms.includes(name)) continue;
    names ??= new Set(listInputNames(bundle));
    if (names.has(name)) continue;
    tensor.fail(`name: expected one of ${forms.join(', ')}, or a slot or dense feature by name`);
  }
}

/** The tensor that has all slots, if the request uses one. */
function findCombinedInput(tensors: TensorsByName): InputTensor | undefined {
  const categorical = tensors.get(CATEGORICAL);
  const keys = tensors.get(KEYS);
  if (categorical !== undefined && keys !== undefined) {
    rejectRequest(`inputs: expected either an input ${CATEGORICAL} or an input ${KEYS}, got both`);
  }
  return categorical ?? keys;
}

/** Rejects a feature that is given both in the combined tensor and by name. */
function rejectDuplicates(
  combined: InputTensor,
  parts: readonly { readonly name: string }[],
  tensors: TensorsByName,
): void {
  for (const { name } of parts) {
    const part = tensors.get(name);
    if (part !== undefined && part !== combined) {
      part.fail(`name: the input ${combined.name} already contains it`);
    }
  }
}

function checkShape(tensor: InputTensor, rowCount: number, columns: number): void {
  if (tensor.shape.length !== 2 || tensor.shape[1] !== columns) {
    tensor.fail(`shape: expected [rows, ${columns}], got [${tensor.shape}]`);
  }
  checkTensorRowCount(tensor, rowCount);
}

function checkTensorRowCount(tensor: InputTensor, rowCount: number): void {
  if (tensor.rowCount === rowCount) return;
  tensor.fail(
    `shape: expected as many rows as the other inputs have (${rowCount}), got ${tensor.rowCount}`,
  );
}

/** Dense values, raw and scaled: rowCount × dense features. */
function readDense(
  tensors: TensorsByName,
  { features, plan }: LoadedBundle,
  rowCount: number,
): { raw: Float64Array; dense: Float32Array } {
  const denseFeatures = features.dense?.features ?? [];
  const combined = tensors.get(DENSE);
  const named = denseFeatures.map(({ name }) => tensors.get(name));
  if (plan.denseNum === 0) return { raw: new Float64Array(0), dense: new Float32Array(0) };
  let raw: Float64Array;
  if (combined !== undefined) {
    rejectDuplicates(combined, denseFeatures, tensors);
    checkShape(combined, rowCount, plan.denseNum);
    raw = new Float64Array(combined.floats());
  } else {
    const isCombined = findCombinedInput(tensors) !== undefined;
    if (isCombined && named.every((tensor) => tensor === undefined)) {
      rejectRequest(`inputs: expected an input ${DENSE} too`);
    }
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
  checkColumnCount(tensor, 1);
  if (tensor.rowCount !== 1) checkTensorRowCount(tensor, rowCount);
  const values = tensor.floats();
  const step = tensor.rowCount === 1 ? 0 : 1;
  for (let row = 0; row < rowCount; row++) raw[row * width + column] = values[row * step]!;
}

function checkColumnCount(tensor: InputTensor, columns: number): void {
  const isValid = tensor.shape.length <= 2 && tensor.columns === columns;
  if (!isValid) tensor.fail(`shape: expected [rows] or [rows, ${columns}], got [${tensor.shape}]`);
}

/**
 * Keys per slot. All slots are required, because keys have no representation for missing values.
 */
function slotKeys(
  slots: readonly Slot[],
  given: readonly (InputTensor | undefined)[],
  rowCount: number,
): { keys: Uint32Array } {
  const keys = new Uint32Array(2 * rowCount * slots.length);
  given.forEach((tensor, slot) => {
    const { name } = slots[slot]!;
    if (tensor === undefined) {
      rejectRequest(
        `inputs: expected an input ${name} too: when slots are given as keys, all slots are ` +
          'required',
      );
    }
    checkColumnCount(tensor, 1);
    if (tensor.rowCount !== 1) checkTensorRowCount(tensor, rowCount);
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

/** The strings of one slot: row r starts at r · columns; a shared slot has one row for all rows. */
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
    if (slot.pooling === undefined) checkColumnCount(tensor, 1);
    else if (tensor.shape.length > 2) checkColumnCount(tensor, tensor.columns);
    const isShared = tensor.rowCount === 1 && rowCount > 1;
    if (!isShared) checkTensorRowCount(tensor, rowCount);
    return { slot, strings: tensor.strings(), columns: tensor.columns, isShared };
  });
  const perRow = all.filter(({ isShared }) => !isShared);
  const sharedSlots = all.filter(({ isShared }) => isShared);
  const bags = collectBags(perRow, rowCount);
  if (sharedSlots.length === 0 || rowCount === 1) return collectBags(all, rowCount);
  const positions = Int32Array.from(sharedSlots, ({ slot }) => slots.indexOf(slot));
  const shared: SharedFeatures = { slots: positions, ...collectBags(sharedSlots, 1) };
  return { shared, ...bags };
}

function collectBags(
  slots: readonly SlotStrings[],
  rowCount: number,
): Pick<FeatureRows, 'features' | 'ends'> {
  const bags = new FeatureBagBuilder<string>(
    slots.map(({ slot }) => slot),
    rowCount,
  );
  for (let row = 0; row < rowCount; row++) {
    for (const { slot, strings, columns } of slots) {
      for (let i = row * columns; i < (row + 1) * columns; i++) addText(bags, slot, strings[i]!);
      bags.endBag();
    }
  }
  return toFeatures(bags);
}

/** @param strings one value of each slot, row by row */
function combinedFeatures(
  slots: readonly Slot[],
  strings: readonly string[],
): Pick<FeatureRows, 'features' | 'ends'> {
  if (slots.every(({ pooling }) => pooling === undefined)) return { features: strings };
  const bags = new FeatureBagBuilder<string>(slots, strings.length / slots.length);
  strings.forEach((text, i) => {
    addText(bags, slots[i % slots.length]!, text);
    bags.endBag();
  });
  return toFeatures(bags);
}

/** An empty text is a missing value, of which a bag has none. */
function addText(bags: FeatureBagBuilder<string>, { pooling }: Slot, text: string): void {
  if (pooling === undefined || text !== '') bags.add(text);
}

function toFeatures(bags: FeatureBagBuilder<string>): Pick<FeatureRows, 'features' | 'ends'> {
  const { values: features, ends } = bags;
  return { features, ...(ends === undefined ? {} : { ends }) };
}

function rejectRequest(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
