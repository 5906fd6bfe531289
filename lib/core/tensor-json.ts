/**
 * Tensors as JSON in files: those of KServe v2 requests, with 64-bit integers as decimal strings
 * and 16-bit floats as numbers. NaN and infinities are written as NaN, Infinity and -Infinity.
 */
import { TENSOR_TYPE_BYTES, type TensorType } from './graph-signature.ts';
import { bf16ToNumber, f16ToNumber, f32BitsToBf16, f32BitsToF16 } from './half-floats.ts';
import type { JsonReader } from './json.ts';
import { encodeJsonElements, formatJsonElements } from './json-elements.ts';
import { countElements, type NamedTensor, viewElements } from './tensor.ts';

const DATATYPES = Object.keys(TENSOR_TYPE_BYTES) as TensorType[];

interface HalfType {
  toNumber(bits: number): number;
  fromFloatBits(bits: number): number;
}

const HALVES: Readonly<Partial<Record<TensorType, HalfType>>> = {
  FP16: { toNumber: f16ToNumber, fromFloatBits: f32BitsToF16 },
  BF16: { toNumber: bf16ToNumber, fromFloatBits: f32BitsToBf16 },
};
const ELEMENTS_MAX = 1 << 26;

export function formatTensor(tensor: NamedTensor): string {
  const { name, dataType: datatype, shape } = tensor;
  const head = JSON.stringify({ name, datatype, shape });
  return `${head.slice(0, -1)},"data":[${formatElements(tensor).join()}]}`;
}

function formatElements(tensor: NamedTensor): readonly string[] {
  const { dataType, data } = tensor;
  const half = HALVES[dataType];
  if (half !== undefined && dataType !== 'BYTES' && data instanceof Uint8Array) {
    const elements = viewElements(dataType, data) as Uint16Array;
    return Array.from(elements, (bits) => `${half.toNumber(bits)}`);
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
  const half = HALVES[dataType];
  const stored = half === undefined ? dataType : 'FP32';
  const bytes = encodeJsonElements(stored, values, (i) => items[i]!);
  if (half === undefined) return { name, dataType, shape, data: bytes };
  const halves = Uint16Array.from(new Uint32Array(bytes.buffer), half.fromFloatBits);
  return { name, dataType, shape, data: new Uint8Array(halves.buffer) };
}
