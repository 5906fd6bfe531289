/** Requests of the general model service to a plain model, and its answers. */
import { CubeError } from '../../lib/core/errors.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import type { GeneralModelOutput, GeneralModelRequest } from '../../proto/general-model.ts';
import type { GeneralTensor, OutputTensor } from '../../proto/general-tensor.ts';
import type { GraphCall, GraphPrediction } from '../engine/loaded-graph.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { isAnswerable, toGraphTensor, toOutputTensor } from './paddle-tensors.ts';
import { rejectTensor } from './paddle-values.ts';

interface PaddleGraphCall {
  readonly call: GraphCall;
  /** The fetched outputs, in the requested order. */
  formatOutputs(prediction: GraphPrediction): OutputTensor[];
}

/** A fetched output; the caller may use another name for it. */
interface FetchedOutput {
  readonly name: string;
  readonly aliasName: string;
}

/**
 * @param aliases tensor names used by clients, to the names in the model
 * @throws CubeError INVALID_ARGUMENT naming the tensor
 */
export function toPaddleGraphCall(
  { tensors, fetchNames }: Pick<GeneralModelRequest, 'tensors' | 'fetchNames'>,
  graph: TensorModel,
  aliases: ReadonlyMap<string, string>,
): PaddleGraphCall {
  const fetched = selectOutputs(fetchNames, graph, aliases);
  const inputs = tensors.map((tensor) => readInput(tensor, graph, aliases));
  const outputs = [...new Set(fetched.map(({ name }) => name))];
  return {
    call: { inputs, outputs },
    formatOutputs: (prediction) => {
      const byName = new Map(prediction.outputs.map((output) => [output.name, output]));
      return fetched.flatMap(({ name, aliasName }) => {
        const output = byName.get(name);
        return output === undefined ? [] : [toOutputTensor(output, aliasName)];
      });
    },
  };
}

/** The additional output of `debug`: strings of the form `name=value`. */
export function formatGraphDebug(
  { name: model, version }: TensorModel,
  { timings }: GraphPrediction,
): GeneralModelOutput {
  const data = [
    `model=${model}`,
    `version=${version}`,
    `queue_micros=${Math.round(timings.queueMicros)}`,
    `infer_micros=${Math.round(timings.inferMicros)}`,
  ];
  return formatDebugTensor(data);
}

export function formatDebugTensor(data: readonly string[]): GeneralModelOutput {
  const name = 'debug';
  const shape = [data.length];
  return {
    tensors: [{ name, aliasName: name, dataType: 'BYTES', shape, data }],
    engineName: name,
  };
}

function readInput(
  tensor: GeneralTensor,
  { signature: { inputs } }: TensorModel,
  aliases: ReadonlyMap<string, string>,
): NamedTensor {
  for (const given of [tensor.name, tensor.aliasName]) {
    const spec = inputs.find(({ name }) => name === given || name === aliases.get(given));
    if (spec !== undefined && given !== '') return toGraphTensor(tensor, spec);
  }
  const names = inputs.map(({ name }) => name).join(', ');
  return rejectTensor(tensor, `not an input of the model, which takes ${names}`);
}

/** @param fetchNames empty: all outputs */
function selectOutputs(
  fetchNames: readonly string[],
  { signature: { outputs } }: TensorModel,
  aliases: ReadonlyMap<string, string>,
): FetchedOutput[] {
  const all = outputs.map(({ name }) => name);
  const fetched = (fetchNames.length === 0 ? all : fetchNames).map((aliasName) => {
    const resolved = [aliasName, aliases.get(aliasName)].find((name) => all.includes(name ?? ''));
    if (resolved !== undefined) return { name: resolved, aliasName };
    throw new CubeError(
      'INVALID_ARGUMENT',
      `fetch_var_names: the model has no output ${quoteInput(aliasName)}; ` +
        `its outputs are ${all.join(', ')}`,
    );
  });
  for (const { name } of fetched) {
    const dataType = outputs.find((output) => output.name === name)?.dataType;
    if (dataType === undefined || isAnswerable(dataType)) continue;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `fetch_var_names: output ${quoteInput(name)} is ${dataType}, which this protocol has no ` +
        'type for; fetch other outputs, or call the model over KServe v2',
    );
  }
  return fetched;
}
