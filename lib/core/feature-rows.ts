/**
 * The rows of a request as columns: every protocol parses requests to this form, and every model
 * takes it. Column i of the slots is slot i of the model's feature spec, without the slots that all
 * rows share.
 */
import { CubeError } from './errors.ts';
import { BAG_VALUES_MAX, REQUEST_VALUES_MAX } from './limits.ts';
import type { DenseFeature, FeatureSpec, Slot } from './slots.ts';

/** The fields of a row. */
export type RowShape = Pick<FeatureSpec, 'slots' | 'dense' | 'separator'>;

/** Rows with feature strings, which this process hashes. */
export interface FeatureRows {
  readonly rowCount: number;
  /** rowCount × dense features, scaled. */
  readonly dense: Float32Array;
  /** The same values before scaling, NaN = missing; for recording. */
  readonly rawDense?: Float64Array;
  /** Row-major, slot by slot. */
  readonly features: readonly string[];
  /**
   * End offset of the features of each (row, slot) i = row · slots + column: features[ends[i − 1] …
   * ends[i]), from 0 for the first. Absent: exactly one feature each.
   */
  readonly ends?: Uint32Array;
  /**
   * Features that all rows share (of the user, for many candidates): sent once and omitted from
   * `features`.
   */
  readonly shared?: SharedFeatures;
}

export interface SharedFeatures {
  /** Positions among the model's slots, ascending. */
  readonly slots: Int32Array;
  readonly features: readonly string[];
  /** One end offset per shared slot; absent: exactly one feature each. */
  readonly ends?: Uint32Array;
}

/** Rows with keys, hashed by this process or by the caller. */
export interface KeyedRows {
  readonly rowCount: number;
  /** rowCount × slots keys (or as many as `ends` says), as words (low, high). */
  readonly keys: Uint32Array;
  /** rowCount × dense features, scaled. */
  readonly dense: Float32Array;
  /** End offsets as in FeatureRows, counted in keys. */
  readonly ends?: Uint32Array;
  /** Reads the features that this process hashed, for recording; absent: only keys are known. */
  readonly readFeatures?: () => FeatureRows;
}

/** Rows of a file or a request body, with labels where they are given. */
export interface LabelledFeatureRows extends FeatureRows {
  /** One per row, NaN without a label. */
  readonly labels: Float32Array;
}

export interface LabelledKeyedRows extends KeyedRows {
  readonly labels: Float32Array;
}

/**
 * Maximum length of a line or feature. A longer one is a mistake (wrong file, missing line breaks).
 */
export const LINE_CHARS_MAX: number = 64 << 10;

export const NO_DENSE_FEATURES: readonly DenseFeature[] = [];

/**
 * Scales raw dense values (NaN = missing), rowCount × features.
 * @throws CubeError INVALID_ARGUMENT naming row and feature of a value that f32 cannot hold
 */
export function scaleDense(
  raw: Float64Array | Float32Array,
  rowCount: number,
  features: readonly DenseFeature[],
): Float32Array {
  const scaled = new Float32Array(rowCount * features.length);
  for (let row = 0, at = 0; row < rowCount; row++) {
    for (let i = 0; i < features.length; i++, at++) {
      scaled[at] = scaleValue(raw[at]!, features[i]!);
      if (!Number.isFinite(scaled[at]!)) failOutOfRange(row, features[i]!.name, raw[at]!);
    }
  }
  return scaled;
}

/** Scales one dense value as in training, in double precision. @param raw NaN = missing */
function scaleValue(raw: number, feature: DenseFeature): number {
  let value = Number.isNaN(raw) ? feature.missing : raw;
  if (feature.log) value = log1p(value > 0 ? value : 0);
  return (value - feature.shift) * feature.scale;
}

/** Cached logarithms: most values are small counts. */
const LOG1P: Float64Array = Float64Array.from({ length: 4096 }, (_, count) => Math.log1p(count));

function log1p(value: number): number {
  const count = value | 0;
  return count === value && count < LOG1P.length ? LOG1P[count]! : Math.log1p(value);
}

function failOutOfRange(row: number, name: string, raw: number): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `row ${row + 1} (${name}): ${raw} is beyond what a 32-bit float holds after scaling`,
  );
}

/** @throws CubeError TOO_LARGE */
export function checkRowCount(rowCount: number, rowsMax: number): void {
  if (rowCount <= rowsMax) return;
  throw new CubeError(
    'TOO_LARGE',
    `${rowCount} rows in one request, the limit is ${rowsMax}: send them in several requests`,
  );
}

export class FeatureBagBuilder<T> {
  readonly values: T[] = [];
  readonly ends: Uint32Array | undefined;
  readonly #slots: readonly Slot[];
  #bag = 0;

  /** @param slots slots of one row, in order */
  constructor(slots: readonly Slot[], rowCount: number) {
    this.#slots = slots;
    const isPooled = slots.some(({ pooling }) => pooling !== undefined);
    if (isPooled) this.ends = new Uint32Array(rowCount * slots.length);
  }

  /** Adds a value to the current bag. */
  add(value: T): void {
    this.values.push(value);
  }

  /** Ends the current bag. @throws CubeError TOO_LARGE naming row and slot */
  endBag(): void {
    const { ends } = this;
    if (ends === undefined) return;
    const count = this.values.length - (this.#bag === 0 ? 0 : ends[this.#bag - 1]!);
    if (count > BAG_VALUES_MAX) {
      this.#fail(
        `${count} values in one slot, the limit is ${BAG_VALUES_MAX}: send the latest values`,
      );
    }
    if (this.values.length > REQUEST_VALUES_MAX) {
      this.#fail(`over ${REQUEST_VALUES_MAX} values in one request: send it in several`);
    }
    ends[this.#bag++] = this.values.length;
  }

  #fail(what: string): never {
    const row = Math.floor(this.#bag / this.#slots.length) + 1;
    const { name } = this.#slots[this.#bag % this.#slots.length]!;
    throw new CubeError('TOO_LARGE', `row ${row} (${name}): ${what}`);
  }
}

/**
 * @returns the index of the first value that is infinite or NaN, or -1. A plain loop takes a
 * seventh of the time of `findIndex`.
 */
export function findNonFinite(values: Float32Array): number {
  for (let i = 0; i < values.length; i++) if (!Number.isFinite(values[i]!)) return i;
  return -1;
}
