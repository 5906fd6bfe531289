/**
 * An inference request of the KServe protocol, whichever way it came: its tensors and parameters to a question for the model, and
 * the prediction to outputs.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { OipOutput, OipParameter, OipParameters } from '../../proto/oip.ts';
import type { Prediction } from '../engine/predictor.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import { TIMEOUT_MS_MAX } from '../serving-limits.ts';
import type { Question } from './answer.ts';
import { graphInputs } from './graph-tensors.ts';
import { byName, CATEGORICAL, DENSE, rowsOf } from './tensor-rows.ts';
import type { InputTensor } from './tensors.ts';

export interface InferRequest {
  /** Empty: none. */
  readonly id: string;
  readonly parameters: OipParameters;
  readonly inputs: readonly InputTensor[];
  /** None: all. */
  readonly outputs: readonly OutputWish[];
}

export interface OutputWish {
  readonly name: string;
  /** As bytes rather than JSON numbers. */
  readonly isBinary: boolean;
}

/** What the answer to a request says, whichever way it goes. */
export interface InferAnswer {
  readonly modelName: string;
  readonly modelVersion: string;
  readonly id: string;
  readonly parameters: Readonly<Record<string, OipParameter>>;
  readonly outputs: readonly OipOutput[];
}

/** Which model a request asks, by the name that it gave. */
export interface Asked {
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
/** Triton's: 0 is the default, 1 goes first, larger ones later. */
const PRIORITY_MAX = 3;
const MICROS_PER_MS = 1000;

/** @param model what requests call it */
export function modelMetadata(model: string, bundle: LoadedBundle): ModelMetadata {
  const { manifest, plan, pool } = bundle;
  const tensor = (name: string, datatype: string, columns: number): TensorMetadata => {
    return { name, datatype, shape: [-1, columns] };
  };
  const inputs =
    bundle.ids === undefined ? [tensor(CATEGORICAL, 'BYTES', plan.slotNum)] : graphInputs(bundle);
  if (bundle.ids === undefined && plan.denseNum > 0) {
    inputs.push(tensor(DENSE, 'FP32', plan.denseNum));
  }
  return {
    name: model,
    versions: [manifest.version],
    platform: PLATFORM,
    inputs,
    outputs: pool.outputs.map(({ name, width }) => tensor(name, 'FP32', width)),
  };
}

/** @throws CubeError INVALID_ARGUMENT naming input, output or parameter; TOO_LARGE */
export function questionOf<T>(
  request: InferRequest,
  { model, bundle }: Asked,
  write: (answer: InferAnswer) => T,
): Question<T> {
  const { parameters, outputs } = request;
  checkOutputs(outputs, bundle);
  if (parameters.get('sequence_id')) {
    refuse('parameters.sequence_id: sequences are not supported: models here keep no state');
  }
  const timeoutMicros = integerOf(parameters, 'timeout', TIMEOUT_MS_MAX * MICROS_PER_MS);
  const priority = integerOf(parameters, 'priority', Number.MAX_SAFE_INTEGER);
  const detail = parameters.get('detail');
  if (detail !== undefined && typeof detail !== 'boolean') {
    refuse(`parameters.detail: expected true or false, got ${JSON.stringify(detail)}`);
  }
  return {
    bundle,
    rows: rowsOf(byName(request.inputs), bundle),
    ...(timeoutMicros ? { timeoutMs: timeoutMicros / MICROS_PER_MS } : {}),
    ...(priority ? { priority: Math.min(priority, PRIORITY_MAX) - 1 } : {}),
    ...(detail === undefined ? {} : { detail }),
    answer: (prediction) => write(answerOf(request, model, bundle, prediction)),
  };
}

function answerOf(
  { id, outputs: wishes }: InferRequest,
  modelName: string,
  { version: modelVersion }: LoadedBundle,
  prediction: Prediction,
): InferAnswer {
  const { rowCount } = prediction;
  const all = prediction.outputs.map(({ name, width, data }): OipOutput => {
    return { name, shape: [rowCount, width], data };
  });
  const wanted = wishes.map((wish) => all.find(({ name }) => name === wish.name)!);
  return {
    ...{ modelName, modelVersion, id },
    parameters: parametersOf(prediction),
    outputs: wishes.length === 0 ? all : wanted,
  };
}

/** What the answer says beside its outputs; slot by slot and the engine's times only when asked for. */
function parametersOf(prediction: Prediction): Record<string, OipParameter> {
  const { version, unseen, unavailable, degraded, slots, timings } = prediction;
  const parameters: Record<string, OipParameter> = {
    tables_version: version,
    ...{ unseen, unavailable, degraded },
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

function checkOutputs(wishes: readonly OutputWish[], bundle: LoadedBundle): void {
  const known = bundle.pool.outputs.map(({ name }) => name);
  wishes.forEach(({ name }, i) => {
    if (!known.includes(name)) {
      refuse(`outputs[${i}].name: expected one of ${known.join(', ')}, got ${show(name)}`);
    }
    if (wishes.findIndex((wish) => wish.name === name) < i) {
      refuse(`outputs[${i}].name: expected each output once, got ${show(name)} again`);
    }
  });
}

/** A parameter that is an integer from 0 on, as number or text. */
function integerOf(parameters: OipParameters, name: string, max: number): number | undefined {
  const value = parameters.get(name);
  if (value === undefined) return undefined;
  const integer = typeof value === 'boolean' || value === '' ? Number.NaN : Number(value);
  if (Number.isSafeInteger(integer) && integer >= 0 && integer <= max) return integer;
  refuse(`parameters.${name}: expected an integer in 0..${max}, got ${show(String(value))}`);
}

function show(text: string): string {
  return JSON.stringify(text.slice(0, 128));
}

function refuse(message: string): never {
  throw new CubeError('INVALID_ARGUMENT', message);
}
