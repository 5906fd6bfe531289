/** Assigns the recorder of a model to a version that was loaded. */
import { CubeError } from '../../lib/core/errors.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';
import { isTensorModel, type LoadedVersion } from '../engine/loaded-version.ts';
import type { Recorder, Recorders } from './recorder.ts';

/** Retires the version when it fails. @throws CubeError for redacted names that it has not */
export async function assignRecorder<T extends LoadedVersion>(
  model: T,
  recorders: Recorders,
  recorder: Recorder | undefined,
): Promise<T> {
  if (recorder === undefined) return model;
  try {
    checkRedacted(recorder, model);
  } catch (error) {
    await model.retire();
    throw error;
  }
  recorders.assign(model, recorder);
  return model;
}

/**
 * Checks that a model has what `record-redact` names: a misspelled name would be recorded.
 * @throws CubeError INVALID_ARGUMENT naming the name that is no input, slot or dense feature
 */
function checkRedacted(recorder: Recorder, model: LoadedVersion): void {
  const { kind, names } = listRedactable(model);
  const unknown = recorder.redacted.find((redacted) => !names.includes(redacted));
  if (unknown === undefined) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${model.name} ${model.version}: record-redact names ${JSON.stringify(unknown)}, which is ` +
      `not ${kind} of the model; ${suggestNames(unknown, names)}`,
  );
}

function listRedactable(model: LoadedVersion): { kind: string; names: readonly string[] } {
  if (isTensorModel(model)) {
    return { kind: 'an input', names: model.signature.inputs.map(({ name }) => name) };
  }
  const { slots, dense } = model.features;
  const names = [...slots, ...(dense?.features ?? [])].map(({ name }) => name);
  return { kind: 'a slot or dense feature', names };
}
