/** A loaded version of either kind. */
import { LoadedBundle } from './loaded-bundle.ts';
import type { TensorModel } from './tensor-model.ts';

export type LoadedVersion = LoadedBundle | TensorModel;

/** Whether requests for the version are tensors, not rows of features. */
export function isTensorModel(loaded: LoadedVersion): loaded is TensorModel {
  return !(loaded instanceof LoadedBundle);
}
