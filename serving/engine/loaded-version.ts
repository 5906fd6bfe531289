/** A loaded version of either kind. */
import { CubeError } from '../../lib/core/errors.ts';
import { LoadedBundle } from './loaded-bundle.ts';
import type { TensorModel } from './tensor-model.ts';

export type LoadedVersion = LoadedBundle | TensorModel;

/** Why requests for a loaded ensemble fail: one of its steps is not served, or does not fit. */
export function findMissingStep(loaded: LoadedVersion): string | undefined {
  return isTensorModel(loaded) ? loaded.findMissingStep?.() : undefined;
}

/** @throws CubeError NOT_READY naming a step of the ensemble that is not served or does not fit */
export function requireSteps(loaded: LoadedVersion): void {
  const reason = findMissingStep(loaded);
  if (reason !== undefined) throw new CubeError('NOT_READY', reason);
}

/** Whether requests for the version are tensors, not rows of features. */
export function isTensorModel(loaded: LoadedVersion): loaded is TensorModel {
  return !(loaded instanceof LoadedBundle);
}
