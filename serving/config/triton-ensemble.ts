/** Reads Triton's `ensemble_scheduling`: the steps of an ensemble, and how tensors flow. */
import type { TextMessage } from '../../proto/text-format.ts';
import type { EnsembleStep } from '../engine/ensemble-plan.ts';
import { readMap } from './triton-fields.ts';

const STEPS_MAX = 256;

/** @returns undefined for a model with a graph @throws CubeError INVALID_ARGUMENT */
export function readEnsemble(root: TextMessage): EnsembleStep[] | undefined {
  const [node] = root.messages('ensemble_scheduling');
  if (node === undefined) return undefined;
  const steps = node.messages('step');
  if (steps.length === 0) node.fail('ensemble_scheduling has no steps');
  if (steps.length > STEPS_MAX) node.fail(`ensemble_scheduling has more than ${STEPS_MAX} steps`);
  return steps.map(readStep);
}

function readStep(node: TextMessage): EnsembleStep {
  const model = node.string('model_name') || node.fail('the step has no model_name');
  const version = node.integer('model_version', -1, Number.MAX_SAFE_INTEGER) ?? -1;
  if (version === 0) node.failField('model_version', 'model_version: expected -1 or 1 and more');
  return {
    model,
    version: version < 0 ? undefined : String(version),
    inputMap: readTensorMap(node, 'input_map', model),
    outputMap: readTensorMap(node, 'output_map', model),
    location: node.location,
  };
}

function readTensorMap(node: TextMessage, field: string, model: string): Map<string, string> {
  const tensors = new Map<string, string>();
  for (const [name, entry] of readMap(node, field)) {
    const tensor = entry.string('value') ?? '';
    if (name === '' || tensor === '') entry.fail(`step ${model}: ${field} needs a key and a value`);
    tensors.set(name, tensor);
  }
  if (tensors.size === 0) node.fail(`step ${model} has no ${field}`);
  return tensors;
}
