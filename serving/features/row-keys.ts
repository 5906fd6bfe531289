/**
 * Rows of features to rows of keys, all slots present: each feature is hashed once, also one that all rows share. Rows of
 * features and of keys are held to the model's slots here, whichever door they came through.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows, SharedFeatures } from '../../lib/core/features.ts';
import { notFiniteAt } from '../../lib/core/finite-values.ts';
import { RowHasher } from '../../lib/core/hash.ts';
import { BAG_VALUES_MAX, REQUEST_VALUES_MAX } from '../../lib/core/limits.ts';
import type { FeatureSpec, Slot } from '../../lib/core/slots.ts';

type KeySpec = Pick<FeatureSpec, 'hash' | 'slots' | 'dense'>;

/** Keys of some of the slots. */
interface SlotKeys {
  readonly keys: Uint32Array;
  readonly ends: Uint32Array | undefined;
}

export class RowKeys {
  readonly #spec: KeySpec;
  readonly #hasher: RowHasher;
  readonly #denseNum: number;

  constructor(spec: KeySpec) {
    this.#spec = spec;
    this.#hasher = new RowHasher(spec.hash, spec.slots);
    this.#denseNum = spec.dense?.features.length ?? 0;
  }

  /** @throws CubeError INVALID_ARGUMENT or TOO_LARGE naming row and slot of what does not fit the model */
  of(rows: FeatureRows | KeyedRows): KeyedRows {
    const { slots } = this.#spec;
    this.#checkDense(rows);
    if ('keys' in rows) {
      checkBags(slots, rows.rowCount, rows.keys.length / 2, rows.ends);
      return rows;
    }
    const { rowCount, dense, shared, features, ends } = rows;
    if (shared !== undefined) return { rowCount, dense, ...this.#join(rows, shared) };
    checkBags(slots, rowCount, features.length, ends);
    return keyedRows(rows, hash(this.#hasher, features, rowCount, ends));
  }

  /** Own and shared keys, slot by slot. */
  #join({ rowCount, features, ends }: FeatureRows, shared: SharedFeatures): Bags {
    const { slots, hash: scheme } = this.#spec;
    const isShared = new Set(shared.slots);
    const ownSlots = slots.filter((_, i) => !isShared.has(i));
    const sharedSlots = Array.from(shared.slots, (i) => slots[i]!);
    checkBags(sharedSlots, 1, shared.features.length, shared.ends);
    checkBags(ownSlots, rowCount, features.length, ends);
    const common = hash(new RowHasher(scheme, sharedSlots), shared.features, 1, shared.ends);
    const own =
      ownSlots.length === 0
        ? { keys: new Uint32Array(0), ends: undefined }
        : hash(new RowHasher(scheme, ownSlots), features, rowCount, ends);
    return spread({ rowCount, isShared, slotNum: slots.length }, common, own);
  }

  /** A value that is no number would make the score of its row none, and blame the graph. */
  #checkDense({ rowCount, dense }: FeatureRows | KeyedRows): void {
    const width = this.#denseNum;
    if (dense.length !== rowCount * width) {
      refuse(`${dense.length} dense values for ${rowCount} rows of ${width}`);
    }
    const at = notFiniteAt(dense);
    if (at < 0) return;
    const { name } = this.#spec.dense!.features[at % width]!;
    refuse(`row ${Math.floor(at / width) + 1} (${name}): ${dense[at]} is no finite number`);
  }
}

type Bags = Pick<KeyedRows, 'keys' | 'ends'>;

function keyedRows({ rowCount, dense }: FeatureRows, { keys, ends }: SlotKeys): KeyedRows {
  return { rowCount, dense, keys, ...(ends === undefined ? {} : { ends }) };
}

function hash(
  hasher: RowHasher,
  features: readonly string[],
  rowCount: number,
  ends: Uint32Array | undefined,
): SlotKeys {
  const keys = new Uint32Array(2 * features.length);
  if (ends === undefined) hasher.hashRows(features, rowCount, keys);
  else hasher.hashBags(features, ends, keys);
  return { keys, ends };
}

/** Rows of all slots, from what each has and what all have. */
function spread(
  rows: { rowCount: number; isShared: ReadonlySet<number>; slotNum: number },
  common: SlotKeys,
  own: SlotKeys,
): Bags {
  const { rowCount, isShared, slotNum } = rows;
  const total = own.keys.length + rowCount * common.keys.length;
  if (total > 2 * REQUEST_VALUES_MAX) {
    throw new CubeError(
      'TOO_LARGE',
      `${total / 2} values in one request, the limit is ${REQUEST_VALUES_MAX}`,
    );
  }
  const keys = new Uint32Array(total);
  const hasBags = common.ends !== undefined || own.ends !== undefined;
  const ends = hasBags ? new Uint32Array(rowCount * slotNum) : undefined;
  let to = 0;
  let ownBag = 0;
  for (let row = 0; row < rowCount; row++) {
    for (let slot = 0, sharedBag = 0; slot < slotNum; slot++) {
      const source = isShared.has(slot) ? common : own;
      const bag = source === common ? sharedBag++ : ownBag++;
      const start = source.ends === undefined ? bag : bag === 0 ? 0 : source.ends[bag - 1]!;
      const end = source.ends?.[bag] ?? bag + 1;
      for (let word = 2 * start; word < 2 * end; word++) keys[to++] = source.keys[word]!;
      if (ends !== undefined) ends[row * slotNum + slot] = to / 2;
    }
  }
  return { keys, ...(ends === undefined ? {} : { ends }) };
}

/** Holds what a door says of its bags to the model's slots: `ends` may lie. */
function checkBags(
  slots: readonly Slot[],
  rowCount: number,
  values: number,
  ends: Uint32Array | undefined,
): void {
  const bags = rowCount * slots.length;
  if (ends === undefined) {
    if (values !== bags) refuse(`${values} values for ${rowCount} rows of ${slots.length} slots`);
    return;
  }
  if (ends.length !== bags || (bags > 0 && ends[bags - 1] !== values)) {
    refuse(
      `${ends.length} bags of ${ends.at(-1) ?? 0} values for ${rowCount} rows of ${slots.length} slots, and ${values} values`,
    );
  }
  for (let bag = 0, start = 0; bag < bags; bag++) {
    const { name, pooling } = slots[bag % slots.length]!;
    const count = ends[bag]! - start;
    const isFit = pooling === undefined ? count === 1 : count >= 0 && count <= BAG_VALUES_MAX;
    if (!isFit) {
      const wanted = pooling === undefined ? 'one value' : `at most ${BAG_VALUES_MAX} values`;
      refuse(
        `row ${Math.floor(bag / slots.length) + 1}, slot ${name}: ${count} values, the slot takes ${wanted}`,
      );
    }
    start = ends[bag]!;
  }
}

function refuse(what: string): never {
  throw new CubeError('INVALID_ARGUMENT', what);
}
