/**
 * The rows of a request as columns: what every door makes of its callers' rows, and what every model takes. Column i of
 * the slots is slot i of the model's feature spec, without the slots that all rows share.
 */
import { CubeError } from './errors.ts';
import type { DenseFeature, FeatureSpec } from './slots.ts';

/** What a row consists of. */
export type RowShape = Pick<FeatureSpec, 'slots' | 'dense' | 'separator'>;

/** Feature strings, to be hashed here. */
export interface FeatureRows {
  readonly rowCount: number;
  /** rowCount × dense features, scaled. */
  readonly dense: Float32Array;
  /** The same before scaling, NaN = missing; for recording. */
  readonly rawDense?: Float64Array;
  /** Row-major, slot by slot. */
  readonly features: readonly string[];
  /**
   * Where the features of each (row, slot) end, from 0 on; i = row · slots + column has features[ends[i − 1] … ends[i]).
   * Absent: exactly one each.
   */
  readonly ends?: Uint32Array;
  /** Features that all rows have (a user's beside many candidates): given once, and left out of `features`. */
  readonly shared?: SharedFeatures;
}

export interface SharedFeatures {
  /** Positions among the model's slots, ascending. */
  readonly slots: Int32Array;
  readonly features: readonly string[];
  /** One a shared slot; absent: exactly one feature each. */
  readonly ends?: Uint32Array;
}

/** Keys instead of features: rows that were hashed, here or by the caller. */
export interface KeyedRows {
  readonly rowCount: number;
  /** rowCount × slots (or as many as `ends` says), words (low, high). */
  readonly keys: Uint32Array;
  /** rowCount × dense features, scaled. */
  readonly dense: Float32Array;
  /** As for features, counted in keys. */
  readonly ends?: Uint32Array;
}

/** Rows of a file or a body, which may say what was clicked. */
export interface RowColumns extends FeatureRows {
  /** One a row, NaN where a row has none. */
  readonly labels: Float32Array;
}

export interface KeyColumns extends KeyedRows {
  readonly labels: Float32Array;
}

/** A longer line or feature is a mistake (a wrong file, a lost line break), not data. */
export const LINE_CHARS_MAX: number = 64 << 10;

export const NO_DENSE: readonly DenseFeature[] = [];

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
      if (!Number.isFinite(scaled[at]!)) failScaled(row, features[i]!.name, raw[at]!);
    }
  }
  return scaled;
}

/** One dense value as the model was trained on it, in double precision. @param raw NaN = missing */
function scaleValue(raw: number, feature: DenseFeature): number {
  let value = Number.isNaN(raw) ? feature.missing : raw;
  if (feature.log) value = log1p(value > 0 ? value : 0);
  return (value - feature.shift) * feature.scale;
}

/** Most values are small counts. */
const LOG1P: Float64Array = Float64Array.from({ length: 4096 }, (_, count) => Math.log1p(count));

function log1p(value: number): number {
  const count = value | 0;
  return count === value && count < LOG1P.length ? LOG1P[count]! : Math.log1p(value);
}

function failScaled(row: number, name: string, raw: number): never {
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
