/**
 * Estimates the error of each dtype: encodes a sample of the rows in all dtypes for the report.
 * The sample is spread over a shard built in memory, or over the first range of a larger shard;
 * ranges are by mixed key, so both are representative.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { TABLE_DTYPES } from '../../lib/core/manifest.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import {
  encodeRows,
  mergeRowErrors,
  type RowDtype,
  type RowErrors,
} from '../../lib/core/row-codec.ts';
import { RECORD_HEAD_WORDS } from './records.ts';

/** Maximum number of sampled rows of a shard. */
const SAMPLE_ROWS = 256;
const SAMPLE_ELEMENTS = 16 << 10;

export const ROW_DTYPES: readonly RowDtype[] = TABLE_DTYPES.filter((dtype) => dtype !== 'bytes');

/** Errors by dtype; undefined if an element of a sampled row is out of the dtype's range. */
export type DtypeErrors = Readonly<Record<RowDtype, RowErrors | undefined>>;

/** @param words records with f32 rows. @param offsets word offsets of the records to sample */
export function sampleDtypes(
  words: Uint32Array,
  offsets: Uint32Array,
  dim: number,
  search: QuantizationSearch,
): DtypeErrors | undefined {
  const most = Math.max(1, Math.min(SAMPLE_ROWS, Math.floor(SAMPLE_ELEMENTS / dim)));
  const count = Math.min(most, offsets.length);
  if (count === 0) return undefined;
  const bits = new Uint32Array(count * dim);
  for (let i = 0; i < count; i++) {
    const from = offsets[Math.floor((i * offsets.length) / count)]! + RECORD_HEAD_WORDS;
    bits.set(words.subarray(from, from + dim), i * dim);
  }
  const rows = new Float32Array(bits.buffer);
  return Object.fromEntries(
    ROW_DTYPES.map((dtype) => [dtype, measureErrors(dtype, rows, dim, search)]),
  ) as DtypeErrors;
}

function measureErrors(
  dtype: RowDtype,
  rows: Float32Array,
  dim: number,
  search: QuantizationSearch,
): RowErrors | undefined {
  try {
    return encodeRows(dtype, rows, dim, { search }).errors;
  } catch (error) {
    if (CubeError.from(error).code === 'INVALID_ARGUMENT') return undefined;
    throw error;
  }
}

/** Merges the samples of two shards. */
export function mergeSamples(
  a: DtypeErrors | undefined,
  b: DtypeErrors | undefined,
): DtypeErrors | undefined {
  if (a === undefined || b === undefined) return a ?? b;
  const both = (one: RowErrors | undefined, other: RowErrors | undefined): RowErrors | undefined =>
    one && other && mergeRowErrors(one, other);
  return Object.fromEntries(
    ROW_DTYPES.map((dtype) => [dtype, both(a[dtype], b[dtype])]),
  ) as DtypeErrors;
}
