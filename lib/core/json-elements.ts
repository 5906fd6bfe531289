/** Elements of tensors in JSON: numbers, booleans and strings, as in KServe and TensorFlow. */
import { CubeError } from './errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from './graph-signature.ts';
import type { JsonReader } from './json.ts';
import { quoteInput } from './shown-input.ts';
import type { NamedTensor } from './tensor.ts';

/** Writes element `i` to a view. */
type Writer = (view: DataView, i: number, field: JsonReader) => void;

const WRITERS: Readonly<Partial<Record<TensorType, Writer>>> = {
  BOOL: (view, i, field) => view.setUint8(i, toBit(field)),
  INT8: (view, i, field) => view.setInt8(i, field.integer(-128, 127)),
  UINT8: (view, i, field) => view.setUint8(i, field.integer(0, 255)),
  INT16: (view, i, field) => view.setInt16(2 * i, field.integer(-(2 ** 15), 2 ** 15 - 1), true),
  UINT16: (view, i, field) => view.setUint16(2 * i, field.integer(0, 2 ** 16 - 1), true),
  INT32: (view, i, field) => view.setInt32(4 * i, field.integer(-(2 ** 31), 2 ** 31 - 1), true),
  UINT32: (view, i, field) => view.setUint32(4 * i, field.integer(0, 2 ** 32 - 1), true),
  INT64: (view, i, field) => view.setBigInt64(8 * i, field.i64(), true),
  UINT64: (view, i, field) => view.setBigUint64(8 * i, field.u64(), true),
  FP32: (view, i, field) => view.setFloat32(4 * i, toFloat(field), true),
  FP64: (view, i, field) => view.setFloat64(8 * i, toFloat(field), true),
};

/** @throws CubeError INVALID_ARGUMENT naming the element */
export function encodeJsonElements(
  dataType: TensorType,
  values: readonly unknown[],
  at: (i: number) => JsonReader,
): Uint8Array {
  const write = WRITERS[dataType];
  if (write === undefined) throw new CubeError('INTERNAL', `${dataType} has no form in JSON`);
  const bytes = new Uint8Array(values.length * TENSOR_TYPE_BYTES[dataType]);
  const view = new DataView(bytes.buffer);
  for (let i = 0; i < values.length; i++) write(view, i, at(i));
  return bytes;
}

/** NaN and infinities are values of a tensor. */
function toFloat(field: JsonReader): number {
  return typeof field.value === 'number' ? field.value : field.fail('a number');
}

function toBit(field: JsonReader): number {
  if (field.value === 0 || field.value === 1) return field.value;
  return field.boolean() ? 1 : 0;
}

/** Reads element `i` of a view. */
type Reader = (view: DataView, i: number) => unknown;

const READERS: Readonly<Partial<Record<TensorType, Reader>>> = {
  BOOL: (view, i) => view.getUint8(i) !== 0,
  INT8: (view, i) => view.getInt8(i),
  UINT8: (view, i) => view.getUint8(i),
  INT16: (view, i) => view.getInt16(2 * i, true),
  UINT16: (view, i) => view.getUint16(2 * i, true),
  INT32: (view, i) => view.getInt32(4 * i, true),
  UINT32: (view, i) => view.getUint32(4 * i, true),
  INT64: (view, i) => view.getBigInt64(8 * i, true),
  UINT64: (view, i) => view.getBigUint64(8 * i, true),
  FP32: (view, i) => view.getFloat32(4 * i, true),
  FP64: (view, i) => view.getFloat64(8 * i, true),
};

/**
 * The elements as JSON texts; 64-bit integers keep all digits, and floats may be NaN or Infinity.
 * @throws CubeError INVALID_ARGUMENT for 16-bit floats
 */
export function formatJsonElements({ name, dataType, data }: NamedTensor): string[] {
  if (!(data instanceof Uint8Array)) return data.map((text) => JSON.stringify(text));
  const read = READERS[dataType];
  if (read === undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `output ${quoteInput(name)}: ${dataType} has no form in JSON; ask for binary data`,
    );
  }
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  const count = data.length / TENSOR_TYPE_BYTES[dataType];
  return Array.from({ length: count }, (_, i) => String(read(view, i)));
}
