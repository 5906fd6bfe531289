/**
 * Turns rows of features into rows of keys of all slots. A feature that all rows share is hashed
 * once. Rows of features and of keys are checked against the model's slots here, for every
 * protocol.
 */
import { CubeError } from '../core/errors.ts';
import type { FeatureRows, KeyedRows, SharedFeatures } from '../core/feature-rows.ts';
import { findNonFinite } from '../core/feature-rows.ts';
import { RowHasher } from '../core/hash.ts';
import { BAG_VALUES_MAX, REQUEST_VALUES_MAX } from '../core/limits.ts';
import type { FeatureSpec, Slot } from '../core/slots.ts';
import { allocateWords } from '../core/word-slab.ts';

type KeySpec = Pick<FeatureSpec, 'hash' | 'slots' | 'dense'>;

/** Keys of some slots. */
interface SlotKeys {
  readonly keys: Uint32Array;
  readonly ends: Uint32Array | undefined;
}

/** Slots whose values are hashed together. */
interface SlotGroup {
  readonly slots: readonly Slot[];
  readonly hasher: RowHasher;
}

/** The slots of a model, of which requests send some once for all rows. */
interface SlotSplit {
  readonly shared: Int32Array;
  /** 1 for each slot that is shared. */
  readonly isShared: Uint8Array;
  readonly own: SlotGroup;
  readonly common: SlotGroup;
}

const NO_KEYS = new Uint32Array(0);

export class RowKeys {
  readonly #spec: KeySpec;
  readonly #hasher: RowHasher;
  readonly #denseNum: number;
  #lastSplit: SlotSplit | undefined;

  constructor(spec: KeySpec) {
    this.#spec = spec;
    this.#hasher = new RowHasher(spec.hash, spec.slots);
    this.#denseNum = spec.dense?.features.length ?? 0;
  }

  /**
   * @throws CubeError INVALID_ARGUMENT or TOO_LARGE naming the row and slot that do not fit the
   *   model
   */
  toKeyedRows(rows: FeatureRows | KeyedRows): KeyedRows {
    const { slots } = this.#spec;
    if (!Number.isSafeInteger(rows.rowCount)) reject(`${rows.rowCount} rows`);
    this.#checkDense(rows);
    if ('keys' in rows) {
      checkBags(slots, rows.rowCount, rows.keys.length / 2, rows.ends);
      return rows;
    }
    const { rowCount, dense, shared, features, ends } = rows;
    if (shared !== undefined) return { rowCount, dense, ...this.#join(rows, shared) };
    checkBags(slots, rowCount, features.length, ends);
    return addKeys(rows, hashFeatures(this.#hasher, features, rowCount, ends));
  }

  /** Joins each row's own keys and the shared keys, slot by slot. */
  #join({ rowCount, features, ends }: FeatureRows, shared: SharedFeatures): Bags {
    const split = this.#splitSlots(shared.slots);
    const { own, common } = split;
    checkBags(common.slots, 1, shared.features.length, shared.ends);
    checkSides(common.slots, shared);
    checkBags(own.slots, rowCount, features.length, ends);
    const sharedKeys = hashFeatures(common.hasher, shared.features, 1, shared.ends);
    const ownKeys =
      own.slots.length === 0
        ? { keys: NO_KEYS, ends: undefined }
        : hashFeatures(own.hasher, features, rowCount, ends);
    return joinSharedKeys(rowCount, split.isShared, sharedKeys, ownKeys);
  }

  /** Callers share the same slots again and again. */
  #splitSlots(shared: Int32Array): SlotSplit {
    const last = this.#lastSplit;
    if (last !== undefined && isEqual(last.shared, shared)) return last;
    const { slots } = this.#spec;
    const isShared = Uint8Array.from(slots, (_, i) => (shared.includes(i) ? 1 : 0));
    const split = {
      shared: shared.slice(),
      isShared,
      own: this.#group(slots.filter((_, i) => isShared[i] === 0)),
      common: this.#group(Array.from(shared, (i) => slots[i]!)),
    };
    this.#lastSplit = split;
    return split;
  }

  #group(slots: readonly Slot[]): SlotGroup {
    return { slots, hasher: new RowHasher(this.#spec.hash, slots) };
  }

  /**
   * Rejects values that are not finite: the score would not be finite either, and the error would
   * name the graph.
   */
  #checkDense({ rowCount, dense }: FeatureRows | KeyedRows): void {
    const width = this.#denseNum;
    if (dense.length !== rowCount * width) {
      reject(`${dense.length} dense values for ${rowCount} rows of ${width}`);
    }
    const at = findNonFinite(dense);
    if (at < 0) return;
    const name = this.#spec.dense?.features[at % width]?.name;
    reject(`row ${Math.floor(at / width) + 1} (${name}): ${dense[at]} is not a finite number`);
  }
}

type Bags = Pick<KeyedRows, 'keys' | 'ends'>;

function addKeys({ rowCount, dense }: FeatureRows, { keys, ends }: SlotKeys): KeyedRows {
  return { rowCount, dense, keys, ...(ends === undefined ? {} : { ends }) };
}

function hashFeatures(
  hasher: RowHasher,
  features: readonly string[],
  rowCount: number,
  ends: Uint32Array | undefined,
): SlotKeys {
  const keys = allocateWords(2 * features.length);
  if (ends === undefined) hasher.hashRows(features, rowCount, keys);
  else hasher.hashBags(features, ends, keys);
  return { keys, ends };
}

/** Rows of all slots, from the keys of each row and the keys that all rows share. */
function joinSharedKeys(
  rowCount: number,
  isShared: Uint8Array,
  common: SlotKeys,
  own: SlotKeys,
): Bags {
  const slotNum = isShared.length;
  const total = own.keys.length + rowCount * common.keys.length;
  if (total > 2 * REQUEST_VALUES_MAX) {
    throw new CubeError(
      'TOO_LARGE',
      `${total / 2} values in one request, the limit is ${REQUEST_VALUES_MAX}`,
    );
  }
  const keys = new Uint32Array(total);
  if (common.ends === undefined && own.ends === undefined) {
    joinSingleKeys({ rowCount, isShared, keys }, common.keys, own.keys);
    return { keys };
  }
  const ends = new Uint32Array(rowCount * slotNum);
  let to = 0;
  let ownBag = 0;
  for (let row = 0; row < rowCount; row++) {
    for (let slot = 0, sharedBag = 0; slot < slotNum; slot++) {
      const source = isShared[slot] === 1 ? common : own;
      const bag = source === common ? sharedBag++ : ownBag++;
      const start = source.ends === undefined ? bag : bag === 0 ? 0 : source.ends[bag - 1]!;
      const end = source.ends?.[bag] ?? bag + 1;
      for (let word = 2 * start; word < 2 * end; word++) keys[to++] = source.keys[word]!;
      ends[row * slotNum + slot] = to / 2;
    }
  }
  return { keys, ends };
}

/** The same where each slot has one key. */
function joinSingleKeys(
  { rowCount, isShared, keys }: { rowCount: number; isShared: Uint8Array; keys: Uint32Array },
  common: Uint32Array,
  own: Uint32Array,
): void {
  let to = 0;
  let ownAt = 0;
  for (let row = 0; row < rowCount; row++) {
    for (let slot = 0, sharedAt = 0; slot < isShared.length; slot++) {
      if (isShared[slot] === 1) {
        keys[to++] = common[sharedAt++]!;
        keys[to++] = common[sharedAt++]!;
      } else {
        keys[to++] = own[ownAt++]!;
        keys[to++] = own[ownAt++]!;
      }
    }
  }
}

/** Whether two lists of slots are equal. */
function isEqual(one: Int32Array, other: Int32Array): boolean {
  if (one.length !== other.length) return false;
  for (let i = 0; i < one.length; i++) if (one[i] !== other[i]) return false;
  return true;
}

/** Rejects a value of an item that several rows share; a missing one is missing in each. */
function checkSides(slots: readonly Slot[], { features, ends }: SharedFeatures): void {
  for (const [i, { name, side }] of slots.entries()) {
    if (side !== 'item') continue;
    const from = ends === undefined ? i : i === 0 ? 0 : ends[i - 1]!;
    const to = ends?.[i] ?? i + 1;
    if (features.slice(from, to).every((feature) => feature === '')) continue;
    reject(`slot ${name} has side item: give its value in each row instead of once for all rows`);
  }
}

/** Checks the bags of a request against the model's slots: `ends` comes from the caller. */
function checkBags(
  slots: readonly Slot[],
  rowCount: number,
  values: number,
  ends: Uint32Array | undefined,
): void {
  const bags = rowCount * slots.length;
  if (ends === undefined) {
    if (values !== bags) reject(`${values} values for ${rowCount} rows of ${slots.length} slots`);
    return;
  }
  if (ends.length !== bags || (bags > 0 && ends[bags - 1] !== values)) {
    reject(
      `${ends.length} bags of ${ends.at(-1) ?? 0} values, expected ${rowCount} rows of ` +
        `${slots.length} slots with ${values} values`,
    );
  }
  for (let bag = 0, start = 0; bag < bags; bag++) {
    const { name, pooling } = slots[bag % slots.length]!;
    const count = ends[bag]! - start;
    const isFit = pooling === undefined ? count === 1 : count >= 0 && count <= BAG_VALUES_MAX;
    if (!isFit) {
      const expected = pooling === undefined ? 'one value' : `at most ${BAG_VALUES_MAX} values`;
      reject(
        `row ${Math.floor(bag / slots.length) + 1}, slot ${name}: ` +
          `${count} values, the slot takes ${expected}`,
      );
    }
    start = ends[bag]!;
  }
}

function reject(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
