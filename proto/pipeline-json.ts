/**
 * The pipeline service as JSON, in the mapping of Protocol Buffers. Reads names as in the .proto
 * file or in camelCase. Writes as the original's gateway does: names of the .proto file, every
 * field of the response, also those with default values.
 */
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader, quoteLongIntegers } from '../lib/core/json.ts';
import type { SlicedWork } from '../lib/core/json-slices.ts';
import { parseNonFiniteJson } from '../lib/core/non-finite-json.ts';
import { getJsonField, PIPELINE_TENSOR_FIELDS, readJsonTensor } from './general-model-json.ts';
import type { GeneralModelLimits, GeneralTensor } from './general-tensor.ts';
import { PIPELINE_KEYS_MAX, type PipelineRequest, type PipelineResponse } from './pipeline.ts';

const CHUNK = 8_192;

/**
 * Parses a request in slices. @throws CubeError INVALID_ARGUMENT naming the place, TOO_LARGE over a
 * limit
 */
export function* parsePipelineRequest(
  text: string,
  source: string,
  limits: GeneralModelLimits,
): SlicedWork<PipelineRequest> {
  const json = yield* JsonReader.parseInSlices(text, source, (part) =>
    parseNonFiniteJson(quoteLongIntegers(part)),
  );
  const budget = { values: limits.values };
  const tensors: GeneralTensor[] = [];
  for (const tensor of readList(json, 'tensors', limits.tensors)) {
    tensors.push(readJsonTensor(tensor, budget, PIPELINE_TENSOR_FIELDS));
    yield;
  }
  const keys = readList(json, 'key', PIPELINE_KEYS_MAX).map((key) => key.string());
  const values = readList(json, 'value', PIPELINE_KEYS_MAX).map((value) => value.string());
  if (keys.length !== values.length) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source}: ${keys.length} keys and ${values.length} values; send one value for each key`,
    );
  }
  return {
    layout: 'tensors',
    keys,
    values,
    tensors,
    name: getJsonField(json, 'name')?.string() ?? '',
    method: getJsonField(json, 'method')?.string() ?? '',
    logId: getJsonField(json, 'logid')?.i64() ?? 0n,
    clientIp: getJsonField(json, 'clientip')?.string() ?? '',
  };
}

function readList(json: JsonReader, name: string, max: number): JsonReader[] {
  const list = getJsonField(json, name);
  if (list === undefined) return [];
  if (Array.isArray(list.value) && list.value.length > max) list.fail(`at most ${max} items`);
  return list.items();
}

export function formatPipelineResponse(response: PipelineResponse): string {
  const { errNo, errMsg, keys, values, tensors } = response;
  return JSON.stringify({
    err_no: errNo,
    err_msg: errMsg,
    key: keys,
    value: values,
    tensors: tensors.map(formatTensor),
  });
}

function formatTensor(tensor: GeneralTensor): object {
  const { int64Words, content } = tensor;
  const int64s = Array.from({ length: int64Words.length / 2 }, (_, i) => {
    const value = BigInt(int64Words[2 * i] ?? 0) | (BigInt(int64Words[2 * i + 1] ?? 0) << 32n);
    return BigInt.asIntN(64, value).toString();
  });
  return {
    ...(int64s.length > 0 && { int64_data: int64s }),
    ...numbers('float_data', tensor.float32),
    ...numbers('int_data', tensor.int32),
    ...numbers('float64_data', tensor.float64),
    ...numbers('uint32_data', tensor.uint32),
    ...(tensor.bool.length > 0 && { bool_data: Array.from(tensor.bool, (value) => value !== 0) }),
    ...(tensor.strings.length > 0 && { str_data: tensor.strings }),
    ...(content.length > 0 && { byte_data: toBase64(content) }),
    elem_type: tensor.elemType,
    shape: tensor.shape,
    ...numbers('lod', tensor.lod),
    name: tensor.name,
  };
}

/** Numbers that JSON does not have are strings, as the mapping requires. */
function numbers(name: string, values: ArrayLike<number>): object {
  if (values.length === 0) return {};
  return {
    [name]: Array.from(values, (value) => (Number.isFinite(value) ? value : String(value))),
  };
}

function toBase64(bytes: Uint8Array): string {
  let text = '';
  for (let at = 0; at < bytes.length; at += CHUNK) {
    text += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  }
  return btoa(text);
}
