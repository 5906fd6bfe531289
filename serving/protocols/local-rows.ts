/** Rows of a bundle from the tensors of a pipeline's op, in the forms of tensor-rows.ts. */
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { JsonReader } from '../../lib/core/json.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { InputTensor } from './input-tensor.ts';
import { indexByName, toRows } from './tensor-rows.ts';

/** @throws CubeError INVALID_ARGUMENT naming the input, TOO_LARGE */
export function readTensorRows(
  tensors: readonly NamedTensor[],
  bundle: LoadedBundle,
): FeatureRows | KeyedRows {
  return toRows(indexByName(tensors.map(toInputTensor)), bundle);
}

function toInputTensor({ name, dataType, shape, data }: NamedTensor): InputTensor {
  const head = { name, datatype: dataType, shape };
  if (data instanceof Uint8Array) return InputTensor.fromBytes(head, data);
  return InputTensor.fromJson(head, JsonReader.of(data, `input ${name}`));
}
