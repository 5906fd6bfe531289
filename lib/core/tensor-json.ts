/**
 * Tensors as JSON in files: those of KServe v2 requests, with 64-bit integers as decimal strings
 * and FP16 as numbers. NaN and infinities are written as NaN, Infinity and -Infinity.
 */
import { TENSOR_TYPE_BYTES, type TensorType } from './graph-signature.ts';
import { f16ToNumber, f32BitsToF16 } from './half-floats.ts';
import type { JsonReader } from './json.ts';
import { encodeJsonElements, formatJsonElements } from './json-elements.ts';
import { countElements, type NamedTensor, viewElements } from './tensor.ts';

const DATATYPES = (Object.keys(TENSOR_TYPE_BYTES) as TensorType[]).filter((t) => t !== 'BF16');
const ELEMENTS_MAX = 1 << 26;

export function formatTensor(tensor: NamedTensor): string {
  const { name, dataType: datatype, shape } = tensor;
  const head = JSON.stringify({ name, datatype, shape });
  return `${head.slice(0, -1)},"data":[${formatElements(tensor).join()}]}`;
}

function formatElements(tensor: NamedTensor): readonly string[] {
  const { dataType, data } = tensor;
  if (dataType === 'FP16' && data instanceof Uint8Array) {
    return Array.from(
      viewElements(dataType, data) as Uint16Array,
      (bits) => `${f16ToNumber(bits)}`,
    );
  }
  const elements = formatJsonElements(tensor);
  return dataType.endsWith('INT64') ? elements.map((digits) => `"${digits}"`) : elements;
}

/** @throws CubeError INVALID_ARGUMENT naming the field */
export function readTensor(json: JsonReader): NamedTensor {
  json.rejectUnknownFields(['name', 'datatype', 'shape', 'data']);
  const name = json.field('name').string();
  const dataType = json.field('datatype').choice(DATATYPES);
  const field = json.field('shape');
  const shape = field.items({ max: 16 }).map((dim) => dim.integer(0));
  const count = countElements(shape);
  if (count > ELEMENTS_MAX) field.fail(`at most ${ELEMENTS_MAX} elements`);
  const items = json.field('data').items({ min: count, max: count });
  if (dataType === 'BYTES') return { name, dataType, shape, data: items.map((i) => i.string()) };
  const values = items.map(({ value }) => value);
  const isHalf = dataType === 'FP16';
  const bytes = encodeJsonElements(isHalf ? 'FP32' : dataType, values, (i) => items[i]!);
  if (!isHalf) return { name, dataType, shape, data: bytes };
  const halves = Uint16Array.from(new Uint32Array(bytes.buffer), f32BitsToF16);
  return { name, dataType, shape, data: new Uint8Array(halves.buffer) };
}
