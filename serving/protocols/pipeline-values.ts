/** Requests of the pipeline service to values of ops, and answers of pipelines to responses. */
import { CubeError } from '../../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES } from '../../lib/core/graph-signature.ts';
import { ERROR_TEXT_CHARS_MAX } from '../../lib/core/limits.ts';
import { formatNumpyText } from '../../lib/core/numpy-text.ts';
import { quoteInput } from '../../lib/core/shown-input.ts';
import { countElements, type Tensor } from '../../lib/core/tensor.ts';
import type { GeneralTensor } from '../../proto/general-tensor.ts';
import {
  PIPELINE_ERROR,
  type PipelineRequest,
  type PipelineResponse,
  toPipelineErrNo,
} from '../../proto/pipeline.ts';
import { readLod, readPipelineTensor, writePipelineTensor } from '../../proto/pipeline-tensors.ts';
import type { OpValues } from '../pipeline/op.ts';
import {
  findArrayType,
  fromByteTensor,
  isTensor,
  type PipelineTensor,
  toByteTensor,
} from '../pipeline/pipeline-tensor.ts';

/** The key by which a request asks for its times, and under which they come back. */
export const PROFILE_KEY = 'pipeline.profile';
const PARAMETER_KEYS: readonly string[] = [PROFILE_KEY];

export interface UnpackedRequest {
  readonly values: OpValues;
  readonly parameters: Readonly<Record<string, string>>;
}

/**
 * Strings stay strings, also NumPy's text form; tensors become `PipelineTensor`, lods INT32 tensors
 * with the name and `.lod`.
 * @throws CubeError INVALID_ARGUMENT naming the value, UNSUPPORTED
 */
export function unpackPipelineRequest({ keys, values, tensors }: PipelineRequest): UnpackedRequest {
  const named = new Map<string, unknown>();
  const parameters = new Map<string, string>();
  for (const [i, key] of keys.entries()) {
    const value = values[i] ?? '';
    if (PARAMETER_KEYS.includes(key)) parameters.set(key, value);
    else addValue(named, key, value);
  }
  for (const tensor of tensors) {
    const value = readPipelineTensor(tensor);
    addValue(named, tensor.name, typeof value === 'string' ? value : fromByteTensor(value));
    const lod = readLod(tensor);
    if (lod !== undefined) addValue(named, `${tensor.name}.lod`, fromByteTensor(lod));
  }
  return { values: Object.fromEntries(named), parameters: Object.fromEntries(parameters) };
}

function addValue(named: Map<string, unknown>, name: string, value: unknown): void {
  if (named.has(name)) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `value ${quoteInput(name)} is there twice; send it once`,
    );
  }
  if (name === '') throw new CubeError('INVALID_ARGUMENT', 'a tensor has no name; name it');
  named.set(name, value);
}

/**
 * Strings and arrays as key and value, arrays in NumPy's text form.
 * @param asTensors arrays as tensors instead
 */
export function packPipelineResponse(values: OpValues, asTensors: boolean): PipelineResponse {
  const keys: string[] = [];
  const texts: string[] = [];
  const tensors: GeneralTensor[] = [];
  try {
    for (const [name, value] of Object.entries(values)) {
      const tensor = readAnswerValue(name, value);
      if (typeof tensor !== 'string' && asTensors) {
        tensors.push(writePipelineTensor(name, tensor));
        continue;
      }
      keys.push(name);
      texts.push(typeof tensor === 'string' ? tensor : formatNumpyText(tensor));
    }
  } catch (error) {
    const { message } = CubeError.from(error);
    return makeErrorResponse(PIPELINE_ERROR.TYPE_ERROR, message);
  }
  return { errNo: 0, errMsg: '', keys, values: texts, tensors };
}

function readAnswerValue(name: string, value: unknown): string | Tensor {
  if (typeof value === 'string') return value;
  const tensor = isTensor(value) ? value : toVector(value);
  if (tensor !== undefined) return toCheckedTensor(name, tensor);
  const kind = value === null ? 'null' : Array.isArray(value) ? 'a list' : typeof value;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `answer value ${quoteInput(name)} is ${kind}; a response holds text and arrays: convert it ` +
      'in packResponse',
  );
}

/** A bare typed array as a tensor of one dimension. */
function toVector(value: unknown): PipelineTensor | undefined {
  const dataType = findArrayType(value);
  if (dataType === undefined) return undefined;
  const data = value as PipelineTensor['data'];
  return { dataType, shape: [data.length], data };
}

/** Ops make tensors as plain objects, which nothing has checked. */
function toCheckedTensor(name: string, tensor: PipelineTensor): Tensor {
  const { dataType, shape, data } = tensor;
  const isText = dataType === 'BYTES';
  const bytes = toByteTensor(tensor);
  const expected = isText
    ? countElements(shape)
    : countElements(shape) * TENSOR_TYPE_BYTES[dataType];
  if (isText === Array.isArray(data) && bytes.data.length === expected) return bytes;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `answer value ${quoteInput(name)}: ${data.length} values do not fit type ${dataType} and ` +
      `shape [${shape.join(', ')}]`,
  );
}

export function makeErrorResponse(errNo: number, message: string): PipelineResponse {
  const errMsg = message.slice(0, ERROR_TEXT_CHARS_MAX);
  return { errNo, errMsg, keys: [], values: [], tensors: [] };
}

export function toErrorResponse(error: unknown): PipelineResponse {
  const failure = CubeError.from(error);
  return makeErrorResponse(toPipelineErrNo(failure), failure.message);
}
