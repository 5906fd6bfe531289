/**
 * KServe inference independent of the encoding (JSON, binary, gRPC): tensors and parameters to a
 * `ParsedRequest`, and a prediction to response tensors and parameters.
 */

import { CubeError } from '../../lib/core/errors.ts';
import { type TensorSpec, toWireShape } from '../../lib/core/graph-signature.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import type { OipOutput, OipParameter, OipParameters, OipScores } from '../../proto/oip.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { GraphPrediction } from '../engine/loaded-graph.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import { isTensorModel } from '../engine/loaded-version.ts';
import type { Prediction } from '../engine/prediction.ts';
import type { TensorModel } from '../engine/tensor-model.ts';
import { toClasses } from './class-outputs.ts';
import { getGraphInputs } from './graph-tensors.ts';
import type { ParsedGraphRequest, ParsedRequest } from './handle-prediction.ts';
import type { InputTensor } from './input-tensor.ts';
import { checkExperimentKey, TIMEOUT_MS_MAX } from './request-limits.ts';
import { CATEGORICAL, DENSE, indexByName, toRows } from './tensor-rows.ts';

export interface InferRequest {
  /** Empty when the request has none. */
  readonly id: string;
  readonly parameters: OipParameters;
  readonly inputs: readonly InputTensor[];
  /** Empty: all outputs. */
  readonly outputs: readonly RequestedOutput[];
}

export interface RequestedOutput {
  readonly name: string;
  readonly parameters: OipParameters;
}

/** The response to a request, independent of its encoding. */
export interface InferResponse<O extends OipOutput = OipOutput> {
  readonly modelName: string;
  readonly modelVersion: string;
  readonly id: string;
  readonly parameters: Readonly<Record<string, OipParameter>>;
  readonly outputs: readonly O[];
}

/** The model of a request, with the name that the request used. */
export interface RequestedModel {
  readonly model: string;
  readonly bundle: LoadedBundle;
}

export interface TensorMetadata {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
}

export interface ModelMetadata {
  readonly name: string;
  readonly versions: readonly string[];
  readonly platform: string;
  readonly inputs: readonly TensorMetadata[];
  readonly outputs: readonly TensorMetadata[];
}

export const PLATFORM = 'onnx_hypercube';
/** Triton's priorities: 0 is the default, 1 is the highest. */
const PRIORITY_MAX = 16;
const MICROS_PER_MS = 1000;
const CLASS_COUNT_MAX = 2 ** 31 - 1;

/** @param model the name in the request */
export function getModelMetadata(model: string, loaded: LoadedVersion): ModelMetadata {
  const names = { name: model, versions: [loaded.version], platform: PLATFORM };
  if (isTensorModel(loaded)) {
    const { inputs, outputs } = loaded.signature;
    if (loaded.steps !== undefined) names.platform = 'ensemble';
    return { ...names, inputs: inputs.map(describe), outputs: outputs.map(describe) };
  }
  const { plan, pool } = loaded;
  const tensor = (name: string, datatype: string, columns: number): TensorMetadata => {
    return { name, datatype, shape: [-1, columns] };
  };
  const inputs =
    loaded.ids === undefined
      ? [tensor(CATEGORICAL, 'BYTES', plan.slotNum)]
      : getGraphInputs(loaded);
  if (loaded.ids === undefined && plan.denseNum > 0) {
    inputs.push(tensor(DENSE, 'FP32', plan.denseNum));
  }
  return {
    ...names,
    inputs,
    outputs: pool.outputs.map(({ name, width }) => tensor(name, 'FP32', width)),
  };
}

/** An output of unknown rank has one dimension of unknown size, as in Triton. */
function describe({ name, dataType, dims }: TensorSpec): TensorMetadata {
  return { name, datatype: dataType, shape: dims === undefined ? [-1] : toWireShape(dims) };
}

/** @throws CubeError INVALID_ARGUMENT naming input, output or parameter; TOO_LARGE */
export function toParsedRequest<T>(
  request: InferRequest,
  { model, bundle }: RequestedModel,
  format: (response: InferResponse<OipScores>) => T,
): ParsedRequest<T> {
  checkOutputs(
    request.outputs,
    bundle.pool.outputs.map(({ name }) => name),
  );
  request.outputs.forEach(({ parameters }, i) => {
    if (readClassCount(parameters, `outputs[${i}].parameters`) === 0) return;
    rejectRequest(
      `outputs[${i}].parameters.classification: not supported by models with slots; leave it out ` +
        'to get the values of the output',
    );
  });
  return {
    bundle,
    ...readOptions(request.parameters),
    rows: toRows(indexByName(request.inputs), bundle),
    formatResponse: (prediction) => format(toInferResponse(request, model, bundle, prediction)),
  };
}

/** The same for a plain model. */
export function toParsedGraphRequest<T>(
  request: InferRequest,
  { model, graph }: { readonly model: string; readonly graph: TensorModel },
  format: (response: InferResponse<NamedTensor>) => T,
): ParsedGraphRequest<T> {
  checkOutputs(
    request.outputs,
    graph.signature.outputs.map(({ name }) => name),
  );
  const { detail, timeoutMs, ...options } = readOptions(request.parameters);
  const inputs = request.inputs.map((input) => input.toTensor());
  const outputs = request.outputs.map(({ name }) => name);
  const classCounts = new Map(
    request.outputs.map(({ name, parameters }, i) => {
      return [name, readClassCount(parameters, `outputs[${i}].parameters`)];
    }),
  );
  const convert = (tensor: NamedTensor): NamedTensor => {
    const count = classCounts.get(tensor.name) ?? 0;
    if (count === 0) return tensor;
    return toClasses(tensor, count, graph.isBatched, graph.labels?.get(tensor.name));
  };
  return {
    graph,
    ...options,
    ...(timeoutMs !== undefined && toTimeout(timeoutMs, graph)),
    call: { inputs, outputs },
    formatResponse: (prediction) =>
      format({
        modelName: model,
        modelVersion: graph.version,
        id: request.id,
        parameters: toGraphParameters(prediction, graph.version, detail ?? false),
        outputs: prediction.outputs.map(convert),
      }),
  };
}

/** Response parameters; engine times are included only when requested. */
function toGraphParameters(
  { lookups, timings }: GraphPrediction,
  version: string,
  hasDetail: boolean,
): Record<string, OipParameter> {
  const parameters: Record<string, OipParameter> = {};
  if (lookups !== undefined) {
    const { unseen, unavailable, degraded } = lookups;
    Object.assign(parameters, { tables_version: version, unseen, unavailable, degraded });
  }
  if (!hasDetail) return parameters;
  parameters['queue_micros'] = timings.queueMicros;
  if (lookups !== undefined) parameters['lookup_micros'] = lookups.lookupMicros;
  parameters['infer_micros'] = timings.inferMicros;
  return parameters;
}

function toTimeout(
  timeoutMs: number,
  { limitsQueueTimeout }: TensorModel,
): Pick<ParsedGraphRequest<unknown>, 'timeoutMs' | 'queueTimeoutMs'> {
  return limitsQueueTimeout ? { queueTimeoutMs: timeoutMs } : { timeoutMs };
}

/** @throws CubeError INVALID_ARGUMENT naming the parameter */
function readOptions(
  parameters: OipParameters,
): Pick<ParsedRequest<unknown>, 'timeoutMs' | 'priority' | 'detail' | 'profile'> {
  if (parameters.get('sequence_id')) {
    rejectRequest(
      'parameters.sequence_id: sequences are not supported, because models keep no state',
    );
  }
  const timeoutMicros = readIntegerParameter(parameters, 'timeout', TIMEOUT_MS_MAX * MICROS_PER_MS);
  const priority = readIntegerParameter(parameters, 'priority', Number.MAX_SAFE_INTEGER);
  const detail = readBooleanParameter(parameters, 'detail');
  const profile = readBooleanParameter(parameters, 'profile');
  return {
    ...(timeoutMicros ? { timeoutMs: timeoutMicros / MICROS_PER_MS } : {}),
    ...(priority ? { priority: Math.min(priority, PRIORITY_MAX) - 1 } : {}),
    ...(detail === undefined ? {} : { detail }),
    ...(profile === undefined ? {} : { profile }),
  };
}

function toInferResponse(
  { id, outputs: requested }: InferRequest,
  modelName: string,
  { version: modelVersion }: LoadedBundle,
  prediction: Prediction,
): InferResponse<OipScores> {
  const { rowCount } = prediction;
  const all = prediction.outputs.map(({ name, width, data }): OipScores => {
    return { name, shape: [rowCount, width], data };
  });
  const selected = requested.flatMap(({ name }) => all.filter((output) => output.name === name));
  return {
    modelName,
    modelVersion,
    id,
    parameters: toResponseParameters(prediction),
    outputs: requested.length === 0 ? all : selected,
  };
}

/** Response parameters; outcomes per slot and engine times are included only when requested. */
function toResponseParameters(prediction: Prediction): Record<string, OipParameter> {
  const { version, unseen, unavailable, degraded, slots, timings } = prediction;
  const parameters: Record<string, OipParameter> = {
    tables_version: version,
    unseen,
    unavailable,
    degraded,
  };
  if (slots === undefined) return parameters;
  for (const counts of slots) {
    parameters[`${counts.slot}.hit`] = counts.hit;
    parameters[`${counts.slot}.unseen`] = counts.unseen;
    parameters[`${counts.slot}.unavailable`] = counts.unavailable;
  }
  parameters['queue_micros'] = timings.queueMicros;
  parameters['lookup_micros'] = timings.lookupMicros;
  parameters['infer_micros'] = timings.inferMicros;
  return parameters;
}

function checkOutputs(requested: readonly RequestedOutput[], known: readonly string[]): void {
  requested.forEach(({ name, parameters }, i) => {
    rejectOutputParameters(parameters, `outputs[${i}].parameters`);
    if (!known.includes(name)) {
      rejectRequest(
        `outputs[${i}].name: expected one of ${known.join(', ')}, got ${quoteText(name)}`,
      );
    }
    if (requested.findIndex((output) => output.name === name) < i) {
      rejectRequest(`outputs[${i}].name: expected each output once, got ${quoteText(name)} again`);
    }
  });
}

function rejectOutputParameters(parameters: OipParameters, place: string): void {
  if (parameters.get('shared_memory_region') === undefined) return;
  rejectRequest(
    `${place}.shared_memory_region: not supported; leave it out to get the values of the output`,
  );
}

/** The number of classes that an output is to list; 0: its values are wanted. */
function readClassCount(parameters: OipParameters, place: string): number {
  return readIntegerParameter(parameters, 'classification', CLASS_COUNT_MAX, place) ?? 0;
}

/** @param place the path of the parameters, for errors */
export function readBooleanParameter(
  parameters: OipParameters,
  name: string,
  place = 'parameters',
): boolean | undefined {
  const value = parameters.get(name);
  if (value === undefined || typeof value === 'boolean') return value;
  rejectRequest(`${place}.${name}: expected true or false, got ${quoteText(String(value))}`);
}

/** The experiment key of a request. @throws CubeError INVALID_ARGUMENT naming the parameter */
export function readExperimentKey(parameters: OipParameters): string | undefined {
  return checkExperimentKey(parameters.get('experiment_key'), 'parameters.experiment_key');
}

/** Reads a non-negative integer parameter, given as a number or as text. */
function readIntegerParameter(
  parameters: OipParameters,
  name: string,
  max: number,
  place = 'parameters',
): number | undefined {
  const value = parameters.get(name);
  if (value === undefined) return undefined;
  const integer = typeof value === 'boolean' || value === '' ? Number.NaN : Number(value);
  if (Number.isSafeInteger(integer) && integer >= 0 && integer <= max) return integer;
  rejectRequest(
    `${place}.${name}: expected an integer in 0..${max}, got ${quoteText(String(value))}`,
  );
}

function quoteText(text: string): string {
  return quoteInput(text);
}

function rejectRequest(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
