/**
 * Codec of the pipeline service (pipeline.proto). Reads both layouts of Request: clients of v0.4 to
 * v0.6 number the fields after `value` differently and know no tensors.
 */
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { decodeTensor, type GeneralModelLimits, type GeneralTensor } from './general-tensor.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

export const PIPELINE_SERVICE = 'baidu.paddle_serving.pipeline_serving.PipelineService';
export const PIPELINE_KEYS_MAX = 4096;

/** `plain`: Request of v0.4 to v0.6, without tensors; `tensors`: Request of v0.7 to v0.9. */
export type PipelineLayout = 'plain' | 'tensors';

/** Element types of pipeline tensors beyond those that equal the general model's (0 to 11). */
export const PIPELINE_STRING = 12;
/** The content is a `.npy` file. */
export const PIPELINE_BYTES = 13;

/** Codes of `err_no`. Users may answer codes of their own from `PRODUCT_ERROR` (50) to 99. */
export const PIPELINE_ERROR = {
  OK: 0,
  PRODUCT_ERROR: 50,
  NOT_IMPLEMENTED: 3000,
  CLOSED: 3001,
  NO_SERVICE: 3002,
  INIT_ERROR: 3003,
  CONF_ERROR: 4000,
  INPUT_PARAMS_ERROR: 5000,
  TIMEOUT: 6000,
  TYPE_ERROR: 7000,
  RPC_PACKAGE_ERROR: 8000,
  CLIENT_ERROR: 9000,
  UNKNOWN: 10_000,
} as const;

const ERR_NO: Partial<Record<ErrorCode, number>> = {
  INVALID_ARGUMENT: PIPELINE_ERROR.INPUT_PARAMS_ERROR,
  TOO_LARGE: PIPELINE_ERROR.INPUT_PARAMS_ERROR,
  NOT_FOUND: PIPELINE_ERROR.NO_SERVICE,
  UNSUPPORTED: PIPELINE_ERROR.NOT_IMPLEMENTED,
  STOPPING: PIPELINE_ERROR.CLOSED,
  DEADLINE_EXCEEDED: PIPELINE_ERROR.TIMEOUT,
  UNAVAILABLE: PIPELINE_ERROR.CLIENT_ERROR,
};

/** The `err_no` of an error; where the original has none, 9000 if a retry may help, else 10000. */
export function toPipelineErrNo({ code, status }: CubeError): number {
  return ERR_NO[code] ?? (status.retryable ? PIPELINE_ERROR.CLIENT_ERROR : PIPELINE_ERROR.UNKNOWN);
}

export interface PipelineRequest {
  readonly layout: PipelineLayout;
  readonly keys: readonly string[];
  /** As many as keys. */
  readonly values: readonly string[];
  /** With elemType of pipeline.proto; `content` is byte_data, a copy. */
  readonly tensors: readonly GeneralTensor[];
  /** Name of the service; empty when the client sends none. */
  readonly name: string;
  readonly method: string;
  readonly logId: bigint;
  readonly clientIp: string;
}

export interface PipelineResponse {
  readonly errNo: number;
  readonly errMsg: string;
  readonly keys: readonly string[];
  readonly values: readonly string[];
  readonly tensors: readonly GeneralTensor[];
}

/** Field numbers of Request by layout; 0: the layout has no such field. */
const REQUEST_FIELDS = {
  plain: { tensors: 0, name: 3, method: 4, logId: 5, clientIp: 6 },
  tensors: { tensors: 3, name: 4, method: 5, logId: 6, clientIp: 7 },
} as const;

/**
 * @param fallback layout of requests that fit both: those without logid and clientip, and
 *   without the method of v0.7 to v0.9
 * @throws CubeError INVALID_ARGUMENT when the bytes are not a Request or keys and values differ in
 *   number, TOO_LARGE over a limit
 */
export function decodePipelineRequest(
  bytes: Uint8Array,
  limits: GeneralModelLimits,
  fallback: PipelineLayout = 'tensors',
): PipelineRequest {
  const layout = findLayout(new WireReader(bytes)) ?? fallback;
  const fields = REQUEST_FIELDS[layout];
  const reader = new WireReader(bytes);
  const lists = new ListReader(limits);
  const texts: string[] = [];
  let logId = 0n;
  while (reader.next()) {
    const { field } = reader;
    if (field === 1) lists.readKey(reader);
    else if (field === 2) lists.readValue(reader);
    else if (field === fields.tensors) lists.readTensor(reader);
    else if (field === fields.logId) {
      reader.expect(WIRE_VARINT);
      logId = reader.int64();
    } else if (field === fields.name || field === fields.method || field === fields.clientIp) {
      texts[field] = readText(reader);
    } else reader.skip();
  }
  lists.checkPairs();
  const { keys, values, tensors } = lists;
  const [name = '', method = ''] = [texts[fields.name], texts[fields.method]];
  return {
    layout,
    keys,
    values,
    tensors,
    name,
    method,
    logId,
    clientIp: texts[fields.clientIp] ?? '',
  };
}

/**
 * Field 5 is a number only in `plain` and text only in `tensors`, field 6 the reverse, and only
 * `tensors` has field 7.
 * @throws CubeError INVALID_ARGUMENT when fields of both layouts occur
 */
function findLayout(reader: WireReader): PipelineLayout | undefined {
  let layout: PipelineLayout | undefined;
  while (reader.next()) {
    const { field, wireType } = reader;
    reader.skip();
    if (field < 5 || field > 7) continue;
    const isPlain =
      (field === 5 && wireType === WIRE_VARINT) || (field === 6 && wireType === WIRE_BYTES);
    const found = isPlain ? 'plain' : 'tensors';
    if (layout !== undefined && layout !== found) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `pipeline request: field ${field} has wire type ${wireType}, which contradicts the ` +
          'layout of the fields before it; use one version of the client',
      );
    }
    layout = found;
  }
  return layout;
}

/** Encodes a request in its layout. @throws CubeError UNSUPPORTED for tensors in `plain` */
export function encodePipelineRequest(request: PipelineRequest): Uint8Array {
  const { layout, keys, values, tensors, name, method, logId, clientIp } = request;
  const fields = REQUEST_FIELDS[layout];
  if (fields.tensors === 0 && tensors.length > 0) {
    throw new CubeError('UNSUPPORTED', 'pipeline request: v0.4 to v0.6 know no tensors; send keys');
  }
  const writer = new WireWriter(1024);
  for (const key of keys) writer.string(1, key);
  for (const value of values) writer.string(2, value);
  for (const tensor of tensors)
    writer.message(fields.tensors, (inner) => writeTensor(inner, tensor));
  if (name !== '') writer.string(fields.name, name);
  if (method !== '') writer.string(fields.method, method);
  if (logId !== 0n) writer.uint(fields.logId, logId);
  if (clientIp !== '') writer.string(fields.clientIp, clientIp);
  return writer.finish();
}

/** Encodes a response. Clients of both layouts read it: older ones skip the tensors. */
export function encodePipelineResponse(response: PipelineResponse): Uint8Array {
  const writer = new WireWriter(1024);
  if (response.errNo !== 0) writer.uint(1, BigInt(response.errNo));
  if (response.errMsg !== '') writer.string(2, response.errMsg);
  for (const key of response.keys) writer.string(3, key);
  for (const value of response.values) writer.string(4, value);
  for (const tensor of response.tensors) writer.message(5, (inner) => writeTensor(inner, tensor));
  return writer.finish();
}

/** @throws CubeError as decodePipelineRequest */
export function decodePipelineResponse(
  bytes: Uint8Array,
  limits: GeneralModelLimits,
): PipelineResponse {
  const reader = new WireReader(bytes);
  const lists = new ListReader(limits);
  let errNo = 0;
  let errMsg = '';
  while (reader.next()) {
    if (reader.field === 1) {
      reader.expect(WIRE_VARINT);
      errNo = reader.int32();
    } else if (reader.field === 2) errMsg = readText(reader);
    else if (reader.field === 3) lists.readKey(reader);
    else if (reader.field === 4) lists.readValue(reader);
    else if (reader.field === 5) lists.readTensor(reader);
    else reader.skip();
  }
  lists.checkPairs();
  const { keys, values, tensors } = lists;
  return { errNo, errMsg, keys, values, tensors };
}

/** Keys, values and tensors of one message, within its limits. */
class ListReader {
  readonly keys: string[] = [];
  readonly values: string[] = [];
  readonly tensors: GeneralTensor[] = [];
  readonly #tensorsMax: number;
  readonly #budget: { values: number };

  constructor(limits: GeneralModelLimits) {
    this.#tensorsMax = limits.tensors;
    this.#budget = { values: limits.values };
  }

  readKey(reader: WireReader): void {
    pushText(this.keys, reader, 'keys');
  }

  readValue(reader: WireReader): void {
    pushText(this.values, reader, 'values');
  }

  readTensor(reader: WireReader): void {
    reader.expect(WIRE_BYTES);
    if (this.tensors.length === this.#tensorsMax) {
      throw new CubeError('TOO_LARGE', `pipeline message: more than ${this.#tensorsMax} tensors`);
    }
    this.tensors.push(
      decodeTensor(
        toGeneralTensor(reader.message(), this.#budget.values + TENSOR_FIELDS),
        this.#budget,
      ),
    );
  }

  checkPairs(): void {
    const [keys, values] = [this.keys.length, this.values.length];
    if (keys === values) return;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `pipeline message: ${keys} keys and ${values} values; send one value for each key`,
    );
  }
}

function pushText(texts: string[], reader: WireReader, what: string): void {
  if (texts.length === PIPELINE_KEYS_MAX) {
    throw new CubeError('TOO_LARGE', `pipeline message: more than ${PIPELINE_KEYS_MAX} ${what}`);
  }
  texts.push(readText(reader));
}

function readText(reader: WireReader): string {
  reader.expect(WIRE_BYTES);
  return reader.string();
}

/** Field numbers of a pipeline tensor where they differ from those of the general model. */
const GENERAL_FIELD = new Map([
  [10, 15],
  [20, 10],
  [21, 11],
  [22, 12],
  [23, 13],
]);
const SHARED_FIELD_MAX = 9;
/** Fields of a tensor besides its values, far above what a valid one needs. */
const TENSOR_FIELDS = 16;

/**
 * Renumbers the fields of a pipeline tensor, so that one decoder with its limits reads both. Fields
 * with equal numbers are copied in runs.
 * @param fieldsMax of the other fields, which a valid tensor has once, or once a dimension
 * @throws CubeError TOO_LARGE over it
 */
function toGeneralTensor(reader: WireReader, fieldsMax: number): WireReader {
  const { bytes } = reader;
  const writer = new WireWriter(reader.end - reader.position + 16);
  let runStart = reader.position;
  let fields = 0;
  while (reader.next()) {
    const { field, fieldStart, wireType, position } = reader;
    reader.skip();
    if (field <= SHARED_FIELD_MAX) continue;
    if (++fields > fieldsMax) {
      throw new CubeError('TOO_LARGE', `pipeline tensor: more than ${fieldsMax} fields`);
    }
    writer.raw(bytes.subarray(runStart, fieldStart));
    runStart = reader.position;
    const to = GENERAL_FIELD.get(field);
    if (to !== undefined) writer.tag(to, wireType).raw(bytes.subarray(position, runStart));
  }
  writer.raw(bytes.subarray(runStart, reader.end));
  return new WireReader(writer.finish());
}

function writeTensor(writer: WireWriter, tensor: GeneralTensor): void {
  const { int64Words, float32, float64, int32, uint32, bool, shape, lod } = tensor;
  const int64s = Array.from({ length: int64Words.length / 2 }, (_, i) => {
    return BigInt(int64Words[2 * i]!) | (BigInt(int64Words[2 * i + 1]!) << 32n);
  });
  writeVarints(writer, 1, int64s);
  writeFixed(writer, 2, 4, float32);
  writeVarints(writer, 3, Array.from(int32, BigInt));
  writeFixed(writer, 4, 8, float64);
  writeVarints(writer, 5, Array.from(uint32));
  writeVarints(writer, 6, Array.from(bool));
  for (const text of tensor.strings) writer.string(9, text);
  if (tensor.content.length > 0) writer.bytes(10, tensor.content);
  if (tensor.elemType !== 0) writer.uint(20, BigInt(tensor.elemType));
  writeVarints(writer, 21, shape.map(BigInt));
  writeVarints(writer, 22, Array.from(lod, BigInt));
  if (tensor.name !== '') writer.string(23, tensor.name);
}

/** @param values numbers ≥ 0, or bigints of either sign */
function writeVarints(
  writer: WireWriter,
  field: number,
  values: readonly (number | bigint)[],
): void {
  if (values.length === 0) return;
  const run = new WireWriter(10 * values.length);
  for (const value of values) run.varint(value);
  writer.bytes(field, run.finish());
}

function writeFixed(
  writer: WireWriter,
  field: number,
  width: 4 | 8,
  values: Float32Array | Float64Array,
): void {
  if (values.length === 0) return;
  const bytes = new Uint8Array(width * values.length);
  const view = new DataView(bytes.buffer);
  values.forEach((value, i) => {
    if (width === 4) view.setFloat32(4 * i, value, true);
    else view.setFloat64(8 * i, value, true);
  });
  writer.bytes(field, bytes);
}
