/**
 * Rows of a bundle from the feed of a pipeline's op: tensors in the forms of tensor-rows.ts, or
 * tab-separated lines.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import { parseTsvKeys } from '../../lib/core/tsv-keys.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { InputTensor } from './input-tensor.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';
import { indexByName, toRows } from './tensor-rows.ts';

/** @throws CubeError INVALID_ARGUMENT naming the input, TOO_LARGE */
export function readLocalRows(
  feed: readonly NamedTensor[] | string,
  bundle: LoadedBundle,
): FeatureRows | KeyedRows {
  if (typeof feed !== 'string') return toRows(indexByName(feed.map(toInputTensor)), bundle);
  if (feed === '') throw new CubeError('INVALID_ARGUMENT', 'rows: send at least one line');
  return parseTsvKeys(Buffer.from(feed), bundle.features, ROWS_PER_REQUEST_MAX);
}

function toInputTensor({ name, dataType, shape, data }: NamedTensor): InputTensor {
  const head = { name, datatype: dataType, shape };
  if (data instanceof Uint8Array) return InputTensor.fromBytes(head, data);
  return InputTensor.fromJson(head, JsonReader.of(data, `input ${name}`));
}
