/**
 * The general model service as JSON, in the mapping of Protocol Buffers. Reads names as in the
 * .proto file or in camelCase, 64-bit integers as numbers (exact at any size) or strings, and bytes
 * as base64. Writes as brpc does, with the names of the .proto file.
 */
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader, quoteLongIntegers } from '../lib/core/json.ts';
import type { SlicedWork } from '../lib/core/json-slices.ts';
import { parseNonFiniteJson } from '../lib/core/non-finite-json.ts';
import {
  FETCH_NAMES_MAX,
  type GeneralModelOutput,
  type GeneralModelRequest,
  type GeneralModelResponse,
  tooManyFetchNamesError,
  tooManyTensorsError,
} from './general-model.ts';
import {
  ELEM_TYPES,
  EMPTY_TENSOR,
  type GeneralModelLimits,
  type GeneralTensor,
  type GeneralTensorType,
  type OutputTensor,
  type ValueBudget,
} from './general-tensor.ts';

const INT32_MIN = -(2 ** 31);
const INT32_MAX = 2 ** 31 - 1;
const UINT32_MAX = 2 ** 32 - 1;
const BASE64 = /^[A-Za-z0-9+/_-]*={0,2}$/;

/**
 * Parses a request in slices. @throws CubeError INVALID_ARGUMENT naming the place, TOO_LARGE over a
 * limit
 */
export function* parseGeneralRequest(
  text: string,
  source: string,
  limits: GeneralModelLimits,
): SlicedWork<GeneralModelRequest> {
  const json = yield* JsonReader.parseInSlices(text, source, parseExactIntegers);
  const budget = { values: limits.values };
  const tensors = readList(json, 'tensor', limits.tensors, () => tooManyTensorsError(limits));
  const names = readList(json, 'fetch_var_names', FETCH_NAMES_MAX, tooManyFetchNamesError);
  const read: GeneralTensor[] = [];
  for (const tensor of tensors) {
    read.push(readJsonTensor(tensor, budget, GENERAL_TENSOR_FIELDS));
    yield;
  }
  return {
    tensors: read,
    fetchNames: names.map((name) => name.string()),
    profileServer: getJsonField(json, 'profile_server')?.boolean() ?? false,
    logId: getJsonField(json, 'log_id')?.u64() ?? 0n,
  };
}

function parseExactIntegers(text: string): unknown {
  return parseNonFiniteJson(quoteLongIntegers(text));
}

function readList(
  json: JsonReader,
  name: string,
  max: number,
  tooMany: () => CubeError,
): JsonReader[] {
  const list = getJsonField(json, name);
  if (list === undefined) return [];
  if (Array.isArray(list.value) && list.value.length > max) throw tooMany();
  return list.items();
}

/** The field under its own name or in camelCase; undefined when it is absent or null. */
export function getJsonField(json: JsonReader, name: string): JsonReader | undefined {
  const own = json.field(name);
  if (!own.isMissing) return own;
  const camel = json.field(name.replace(/_([a-z])/g, (_, letter: string) => letter.toUpperCase()));
  return camel.isMissing ? undefined : camel;
}

/** Names of the fields that the tensors of two services name differently. */
interface TensorFields {
  readonly strings: string;
  readonly content: string;
}

const GENERAL_TENSOR_FIELDS: TensorFields = { strings: 'data', content: 'tensor_content' };
export const PIPELINE_TENSOR_FIELDS: TensorFields = { strings: 'str_data', content: 'byte_data' };

/** @throws CubeError INVALID_ARGUMENT naming the place, TOO_LARGE over the budget */
export function readJsonTensor(
  json: JsonReader,
  budget: ValueBudget,
  fields: TensorFields,
): GeneralTensor {
  const items = (name: string): JsonReader[] => readItems(getJsonField(json, name), budget);
  const int32s = (name: string): Int32Array =>
    Int32Array.from(items(name), (item) => readInteger(item, INT32_MIN, INT32_MAX));
  return {
    name: getJsonField(json, 'name')?.string() ?? '',
    aliasName: getJsonField(json, 'alias_name')?.string() ?? '',
    elemType: readInteger(
      getJsonField(json, 'elem_type') ?? JsonReader.of(0, ''),
      INT32_MIN,
      INT32_MAX,
    ),
    shape: Array.from(int32s('shape')),
    lod: int32s('lod'),
    int64Words: toInt64Words(items('int64_data')),
    float32: Float32Array.from(items('float_data'), readFloat),
    int32: int32s('int_data'),
    float64: Float64Array.from(items('float64_data'), readFloat),
    uint32: Uint32Array.from(items('uint32_data'), (item) => readInteger(item, 0, UINT32_MAX)),
    bool: Uint8Array.from(items('bool_data'), (item) => (item.boolean() ? 1 : 0)),
    strings: items(fields.strings).map((item) => item.string()),
    content: readContent(getJsonField(json, fields.content)),
  };
}

function readItems(json: JsonReader | undefined, budget: ValueBudget): JsonReader[] {
  if (json === undefined) return [];
  if (Array.isArray(json.value)) budget.values -= json.value.length;
  if (budget.values < 0) {
    throw new CubeError('TOO_LARGE', 'too many tensor values: send fewer rows per call');
  }
  return json.items();
}

function toInt64Words(items: readonly JsonReader[]): Uint32Array {
  const words = new Uint32Array(2 * items.length);
  items.forEach((item, i) => {
    const value = BigInt.asUintN(64, item.i64());
    words[2 * i] = Number(value & 0xffff_ffffn);
    words[2 * i + 1] = Number(value >> 32n);
  });
  return words;
}

/** Reads a number, or a number as a string, as the mapping allows. */
function readInteger(json: JsonReader, min: number, max: number): number {
  const { value } = json;
  const number = typeof value === 'string' && /^-?\d{1,11}$/.test(value) ? Number(value) : value;
  if (!Number.isSafeInteger(number) || (number as number) < min || (number as number) > max) {
    json.fail(`an integer in ${min}..${max}`);
  }
  return number as number;
}

function readFloat(json: JsonReader): number {
  const { value } = json;
  if (typeof value === 'number') return value;
  if (value === 'NaN' || value === 'Infinity' || value === '-Infinity') return Number(value);
  if (typeof value === 'string' && /^-?\d+(\.\d+)?([eE][+-]?\d+)?$/.test(value)) {
    return Number(value);
  }
  return json.fail('a number');
}

function readContent(json: JsonReader | undefined): Uint8Array {
  if (json === undefined) return EMPTY_TENSOR.content;
  const base64 = json.string(BASE64, 'bytes as base64').replaceAll('-', '+').replaceAll('_', '/');
  try {
    return Uint8Array.from(atob(base64), (character) => character.charCodeAt(0));
  } catch {
    return json.fail('bytes as base64');
  }
}

/** Formats a response. Fields with default values are omitted, except err_no. */
export function formatGeneralResponse(response: GeneralModelResponse): string {
  const { outputs, profileTime, profileServer, logId, errNo, errMsg } = response;
  const rest = JSON.stringify({
    ...(profileTime.length === 0 ? {} : { profile_time: profileTime }),
    ...(profileServer ? { profile_server: true } : {}),
    ...(logId === 0n ? {} : { log_id: toJsonInteger(logId) }),
    err_no: errNo,
    ...(errMsg === '' ? {} : { err_msg: errMsg }),
  });
  return outputs.length === 0
    ? rest
    : `{"outputs":[${outputs.map(formatOutput).join()}],${rest.slice(1)}`;
}

function formatOutput({ tensors, engineName }: GeneralModelOutput): string {
  const name = JSON.stringify(engineName);
  return `{"tensor":[${tensors.map(formatTensor).join()}],"engine_name":${name}}`;
}

function formatTensor({ dataType, data, shape, name, aliasName }: OutputTensor): string {
  const rest = { elem_type: ELEM_TYPES[dataType], shape, name, alias_name: aliasName };
  return `{${formatValues(dataType, data)},${JSON.stringify(rest).slice(1)}`;
}

/** 64-bit integers are numbers with all digits; NaN and infinities are strings. */
function formatValues(dataType: GeneralTensorType, data: OutputTensor['data']): string {
  if (!(data instanceof Uint8Array)) return `"data":${JSON.stringify(data)}`;
  const { buffer } = new Uint8Array(data);
  switch (dataType) {
    case 'FP32':
      return `"float_data":[${Array.from(new Float32Array(buffer), formatFloat).join()}]`;
    case 'FP64':
      return `"float64_data":[${Array.from(new Float64Array(buffer), formatFloat).join()}]`;
    case 'INT32':
      return `"int_data":[${new Int32Array(buffer).join()}]`;
    case 'INT64':
      return `"int64_data":[${new BigInt64Array(buffer).join()}]`;
    case 'BOOL':
      return `"bool_data":[${Array.from(data, (byte) => byte !== 0).join()}]`;
    default:
      return `"tensor_content":"${Buffer.from(data).toString('base64')}"`;
  }
}

function formatFloat(value: number): string {
  return Number.isFinite(value) ? String(value) : `"${value}"`;
}

/** A number where that is exact, otherwise a string. */
function toJsonInteger(value: bigint): number | string {
  return value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : value.toString();
}
