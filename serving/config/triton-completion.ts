/**
 * Completes Triton's configuration of a model from its graph, as Triton's auto-complete does, and
 * checks what the configuration says against the graph.
 */
import { CubeError } from '../../lib/core/errors.ts';
import {
  type GraphSignature,
  hasBatchDimension,
  type TensorSpec,
  toWireShape,
} from '../../lib/core/graph-signature.ts';
import { suggestNames } from '../../lib/core/nearest-name.ts';
import type { TritonModelConfig } from './triton-model-config.ts';
import type { TritonInput, TritonOutput, TritonTensor } from './triton-tensors.ts';
import type { TritonWarmUp } from './triton-warm-up.ts';

export interface CompleteTritonConfig extends TritonModelConfig {
  readonly maxBatch: number;
}

/** Triton's default for graphs whose tensors all have a dynamic first dimension. */
const DEFAULT_MAX_BATCH = 4;

/**
 * @param path the model file, for errors
 * @throws CubeError INVALID_ARGUMENT naming the configuration and the graph where they differ
 */
export function completeTritonConfig(
  config: TritonModelConfig,
  graph: GraphSignature,
  path: string,
): CompleteTritonConfig {
  const maxBatch = config.maxBatch ?? chooseMaxBatch(config, graph);
  const place: Place = { config: config.source, path, hasBatch: maxBatch > 0 };
  if (maxBatch > 0) checkBatchable(graph, maxBatch, place);
  const inputs = completeInputs(config.inputs, graph.inputs, place);
  const outputs = completeOutputs(config.outputs, graph.outputs, place);
  for (const warmUp of config.warmUps) {
    checkWarmUp(warmUp, { inputs, maxBatch, source: config.source });
  }
  return { ...config, maxBatch, inputs, outputs };
}

interface Place {
  readonly config: string;
  readonly path: string;
  readonly hasBatch: boolean;
}

function chooseMaxBatch({ inputs, outputs }: TritonModelConfig, graph: GraphSignature): number {
  if (!hasBatchDimension(graph)) return 0;
  const isWhole = (declared: TritonTensor, tensors: readonly TensorSpec[]): boolean =>
    tensors.find(({ name }) => name === declared.name)?.dims?.length ===
    (declared.reshape ?? declared.dims).length;
  const declaresWhole =
    inputs.some((input) => isWhole(input, graph.inputs)) ||
    outputs.some((output) => isWhole(output, graph.outputs));
  return declaresWhole ? 0 : DEFAULT_MAX_BATCH;
}

function checkBatchable(graph: GraphSignature, maxBatch: number, { config, path }: Place): void {
  const fixed = [...graph.inputs, ...graph.outputs].find(
    ({ dims }) => dims !== undefined && typeof dims[0] !== 'string',
  );
  if (fixed?.dims === undefined) return;
  rejectConfig(
    `${config}: max_batch_size is ${maxBatch}, but ${path} has no batch: ${fixed.name} has the ` +
      `shape [${toWireShape(fixed.dims).join(', ')}], and its first dimension is not ` +
      'dynamic; set max_batch_size: 0',
  );
}

function completeInputs(
  declared: readonly TritonInput[],
  tensors: readonly TensorSpec[],
  place: Place,
): TritonInput[] {
  if (declared.length === 0) {
    return tensors.map((tensor) => ({ ...toDeclared(tensor, place), optional: false }));
  }
  for (const input of declared) {
    checkTensor(input, tensors, 'input', place);
  }
  const missing = tensors.find(({ name }) => declared.every((input) => input.name !== name));
  if (missing !== undefined) {
    rejectConfig(
      `${place.config}: the input ${missing.name} of ${place.path} is not declared; declare all ` +
        'inputs or none',
    );
  }
  return [...declared];
}

/** Requests get the declared outputs only. */
function completeOutputs(
  declared: readonly TritonOutput[],
  tensors: readonly TensorSpec[],
  place: Place,
): TritonOutput[] {
  if (declared.length === 0) return tensors.map((tensor) => toDeclared(tensor, place));
  for (const output of declared) checkTensor(output, tensors, 'output', place);
  return [...declared];
}

/** A tensor with nothing but a batch has one column in requests. */
function toDeclared({ name, dataType, dims }: TensorSpec, place: Place): TritonTensor {
  if (dims === undefined) {
    rejectConfig(`${place.config}: ${place.path} has no shape for ${name}; declare its dims`);
  }
  const own = toWireShape(place.hasBatch ? dims.slice(1) : dims);
  const base = { name, datatype: dataType, location: place.path };
  if (place.hasBatch && own.length === 0) return { ...base, dims: [1], reshape: [] };
  return { ...base, dims: own };
}

function checkTensor(
  { name, datatype, dims, reshape, location }: TritonTensor,
  tensors: readonly TensorSpec[],
  kind: string,
  { path, hasBatch }: Place,
): void {
  const tensor = tensors.find((one) => one.name === name);
  if (tensor === undefined) {
    const names = tensors.map((one) => one.name);
    rejectConfig(`${location}: ${kind} ${name} is not in ${path}; ${suggestNames(name, names)}`);
  }
  if (tensor.dataType !== datatype) {
    rejectConfig(
      `${location}: ${kind} ${name} is ${datatype}, but ${tensor.dataType} in ${path}; correct ` +
        'data_type',
    );
  }
  if (tensor.dims === undefined) return;
  const expected = toWireShape(hasBatch ? tensor.dims.slice(1) : tensor.dims);
  const given = reshape ?? dims;
  const fits =
    given.length === expected.length &&
    expected.every((size, i) => size === -1 || size === given[i]);
  if (fits) return;
  const field = reshape === undefined ? 'dims' : 'reshape';
  rejectConfig(
    `${location}: ${kind} ${name} has ${field} [${given.join(', ')}], but ${path} has ` +
      `[${expected.join(', ')}]${hasBatch ? ' after the batch' : ''}; correct ${field}`,
  );
}

function checkWarmUp(
  { name, inputs, rows }: TritonWarmUp,
  model: Pick<CompleteTritonConfig, 'inputs' | 'maxBatch' | 'source'>,
): void {
  const { inputs: declared, maxBatch, source } = model;
  const fail = (text: string): never => rejectConfig(`${source}: model_warmup ${name}: ${text}`);
  if (rows > Math.max(maxBatch, 1)) {
    fail(`batch_size ${rows} is more than max_batch_size ${maxBatch}`);
  }
  for (const [input, { datatype, dims }] of inputs) {
    const found = declared.find((one) => one.name === input);
    if (found === undefined) {
      const names = declared.map((one) => one.name);
      const hint = suggestNames(input, names);
      rejectConfig(`${source}: model_warmup ${name}: there is no input ${input}; ${hint}`);
    }
    if (found.datatype !== datatype) fail(`${input} is ${datatype}, expected ${found.datatype}`);
    const fits =
      dims.length === found.dims.length &&
      found.dims.every((size, i) => size === -1 || size === dims[i]);
    if (!fits) fail(`${input} has dims [${dims.join(', ')}], expected [${found.dims.join(', ')}]`);
  }
  const missing = declared.find((one) => !one.optional && !inputs.has(one.name));
  if (missing !== undefined) fail(`the input ${missing.name} is missing`);
}

function rejectConfig(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}
