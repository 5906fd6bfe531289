/**
 * What each dtype would make of a table: encodes some of its rows in all of them, so that the report shows them side by side.
 * Of a shard built in memory they are spread over it, of a larger one over its first range: keys are mixed, so that is as good.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { TABLE_DTYPES } from '../../lib/core/manifest.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import { addErrors, encodeRows, type RowDtype, type RowErrors } from '../../lib/core/row-codec.ts';
import { RECORD_HEAD_WORDS } from './records.ts';

/** Of a shard; a hundred of them are enough for any table. */
const SAMPLE_ROWS = 256;
const SAMPLE_ELEMENTS = 16 << 10;

export const ROW_DTYPES: readonly RowDtype[] = TABLE_DTYPES.filter((dtype) => dtype !== 'bytes');

/** Undefined: a row has an element that the dtype cannot hold. */
export type DtypeErrors = Readonly<Record<RowDtype, RowErrors | undefined>>;

/** @param words records with f32 rows. @param offsets those that are meant */
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
    ROW_DTYPES.map((dtype) => [dtype, errorsAs(dtype, rows, dim, search)]),
  ) as DtypeErrors;
}

function errorsAs(
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

/** The samples of two shards together. */
export function addSamples(
  a: DtypeErrors | undefined,
  b: DtypeErrors | undefined,
): DtypeErrors | undefined {
  if (a === undefined || b === undefined) return a ?? b;
  const both = (one: RowErrors | undefined, other: RowErrors | undefined): RowErrors | undefined =>
    one && other && addErrors(one, other);
  return Object.fromEntries(
    ROW_DTYPES.map((dtype) => [dtype, both(a[dtype], b[dtype])]),
  ) as DtypeErrors;
}
