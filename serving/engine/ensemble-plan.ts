/**
 * Checks the steps of an ensemble and puts them in order: pure functions on names, types and
 * shapes. Every tensor has one source, an input of the ensemble or an output of a step, and steps
 * form no cycle.
 */
import { CubeError } from '../../lib/core/errors.ts';
import {
  type GraphSignature,
  type TensorSpec,
  toWireShape,
} from '../../lib/core/graph-signature.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';

/** One model of an ensemble. */
export interface EnsembleStep {
  readonly model: string;
  /** Undefined: the version that serves requests without a version. */
  readonly version: string | undefined;
  /** The model's inputs to tensors of the ensemble. */
  readonly inputMap: ReadonlyMap<string, string>;
  /** The model's outputs to tensors of the ensemble; outputs that are not named are dropped. */
  readonly outputMap: ReadonlyMap<string, string>;
  /** File and line, for errors. */
  readonly location: string;
}

/** The tensors of a step's model. */
export interface StepModel {
  readonly signature: GraphSignature;
  readonly isBatched: boolean;
  /** Inputs that a step may leave out: the model has defaults for them. */
  readonly optionalInputs?: ReadonlyMap<string, unknown>;
}

/** Where a tensor of the ensemble comes from. */
interface TensorSource {
  readonly spec: TensorSpec;
  /** Without the batch; undefined: unknown rank. */
  readonly dims: readonly number[] | undefined;
  /** Undefined for an input of the ensemble. */
  readonly step: EnsembleStep | undefined;
  readonly place: string;
}

/**
 * @param ensemble the declared inputs and outputs
 * @param source the file of the ensemble, for errors
 * @returns the steps in an order in which each comes after those that it needs
 * @throws CubeError INVALID_ARGUMENT with the place of the step and the tensor
 */
export function planEnsemble(
  ensemble: StepModel,
  steps: readonly EnsembleStep[],
  models: ReadonlyMap<EnsembleStep, StepModel>,
  source: string,
): EnsembleStep[] {
  const sources = listSources(ensemble, steps, models, source);
  for (const step of steps) checkInputs(step, getModel(models, step), sources);
  for (const output of ensemble.signature.outputs) {
    const found = sources.get(output.name);
    if (found === undefined) {
      rejectStep(source, `output ${output.name} is not the output of any step`);
    }
    checkSame(found, { ...output, dims: output.dims }, ensemble.isBatched, source);
  }
  return sortSteps(steps, sources);
}

function listSources(
  ensemble: StepModel,
  steps: readonly EnsembleStep[],
  models: ReadonlyMap<EnsembleStep, StepModel>,
  place: string,
): Map<string, TensorSource> {
  const sources = new Map<string, TensorSource>();
  for (const spec of ensemble.signature.inputs) {
    const dims = toOwnDims(spec, ensemble.isBatched);
    sources.set(spec.name, { spec, dims, step: undefined, place: `input ${spec.name}` });
  }
  for (const step of steps) {
    const { signature, isBatched } = getModel(models, step);
    for (const [output, tensor] of step.outputMap) {
      const spec = findSpec(signature.outputs, output, step, 'output');
      const earlier = sources.get(tensor);
      if (earlier !== undefined) {
        rejectStep(
          step.location,
          `tensor ${tensor} has two sources: ${earlier.place} and ${step.model}`,
        );
      }
      const dims = toOwnDims(spec, isBatched);
      sources.set(tensor, { spec, dims, step, place: `output ${output} of ${step.model}` });
    }
  }
  if (steps.length === 0) rejectStep(place, 'the ensemble has no steps');
  return sources;
}

function getModel(models: ReadonlyMap<EnsembleStep, StepModel>, step: EnsembleStep): StepModel {
  const model = models.get(step);
  if (model !== undefined) return model;
  throw new CubeError('INTERNAL', `${step.location}: the model ${step.model} was not looked up`);
}

function checkInputs(
  step: EnsembleStep,
  { signature, isBatched, optionalInputs }: StepModel,
  sources: ReadonlyMap<string, TensorSource>,
): void {
  for (const [input, tensor] of step.inputMap) {
    const spec = findSpec(signature.inputs, input, step, 'input');
    const found = sources.get(tensor);
    if (found === undefined) {
      const hint = suggestNames(tensor, sources.keys());
      rejectStep(
        step.location,
        `step ${step.model}: input ${input} takes the tensor ${tensor}, which is neither an ` +
          `input of the ensemble nor an output of a step; ${hint}`,
      );
    }
    checkSame(found, spec, isBatched, `${step.location}: step ${step.model}`);
  }
  const missing = signature.inputs.find(
    ({ name }) => !step.inputMap.has(name) && !optionalInputs?.has(name),
  );
  if (missing !== undefined) {
    rejectStep(step.location, `step ${step.model}: input_map has no input ${missing.name}`);
  }
}

/** Types must be equal, and sizes that both sides know. */
function checkSame(
  source: TensorSource,
  target: TensorSpec,
  isBatched: boolean,
  place: string,
): void {
  if (source.spec.dataType !== target.dataType) {
    rejectStep(
      place,
      `${target.name} is ${target.dataType}, but ${source.place} is ${source.spec.dataType}`,
    );
  }
  const dims = toOwnDims(target, isBatched);
  if (source.dims === undefined || dims === undefined) return;
  const fits =
    dims.length === source.dims.length &&
    dims.every((size, i) => size === -1 || source.dims?.[i] === -1 || size === source.dims?.[i]);
  if (fits) return;
  rejectStep(
    place,
    `${target.name} has the shape [${dims.join(', ')}], but ${source.place} ` +
      `[${source.dims.join(', ')}]`,
  );
}

function toOwnDims({ dims }: TensorSpec, isBatched: boolean): readonly number[] | undefined {
  return dims && toWireShape(isBatched ? dims.slice(1) : dims);
}

function findSpec(
  specs: readonly TensorSpec[],
  name: string,
  { model, location }: EnsembleStep,
  kind: string,
): TensorSpec {
  const found = specs.find((spec) => spec.name === name);
  if (found !== undefined) return found;
  const names = specs.map((spec) => spec.name);
  return rejectStep(
    location,
    `step ${model}: the model has no ${kind} ${name}; ${suggestNames(name, names)}`,
  );
}

/** @throws CubeError naming the models of a cycle */
function sortSteps(
  steps: readonly EnsembleStep[],
  sources: ReadonlyMap<string, TensorSource>,
): EnsembleStep[] {
  const sorted: EnsembleStep[] = [];
  let waiting = [...steps];
  const isReady = (step: EnsembleStep): boolean =>
    [...step.inputMap.values()].every((tensor) => {
      const source = sources.get(tensor)?.step;
      return source === undefined || sorted.includes(source);
    });
  while (waiting.length > 0) {
    const ready = waiting.filter(isReady);
    const [first] = waiting;
    if (ready.length === 0 && first !== undefined) {
      const names = waiting.map(({ model }) => model).join(', ');
      rejectStep(first.location, `the steps ${names} wait for each other`);
    }
    sorted.push(...ready);
    waiting = waiting.filter((step) => !ready.includes(step));
  }
  return sorted;
}

function rejectStep(place: string, text: string): never {
  throw new CubeError('INVALID_ARGUMENT', `${place}: ${text}`);
}
