/**
 * Tensors of the general model service as tensors of a plain model, and back. A request may have
 * values in any field, if the input's type can hold them. A lod whose rows are equally long gives
 * the dimension of their length.
 */
import { LINE_CHARS_MAX } from '../../lib/core/feature-rows.ts';
import {
  TENSOR_TYPE_BYTES,
  type TensorSpec,
  type TensorType,
  toWireShape,
} from '../../lib/core/graph-signature.ts';
import { bf16ToF32Bits, f16ToF32Bits, f32BitsToF16 } from '../../lib/core/half-floats.ts';
import { countElements, type NamedTensor, viewElements } from '../../lib/core/tensor.ts';
import {
  ELEM_TYPES,
  type GeneralTensor,
  type GeneralTensorType,
  type OutputTensor,
} from '../../proto/general-tensor.ts';
import { countValues, rejectTensor } from './paddle-values.ts';

type NumberType = Exclude<TensorType, 'BYTES'>;

/** Numbers of a request, as they are in its field. */
interface SentNumbers {
  readonly dataType: NumberType;
  readonly bytes: Uint8Array;
}

const TYPES_BY_ELEM_TYPE: ReadonlyMap<number, TensorType> = new Map(
  Object.entries(ELEM_TYPES).map(([type, elemType]) => [elemType, type as TensorType]),
);
/** The types of answers whose type has no element type: they hold every value of it. */
const WIDER_TYPES: Readonly<Partial<Record<TensorType, GeneralTensorType>>> = {
  UINT16: 'INT32',
  UINT32: 'INT64',
};

/** @throws CubeError INVALID_ARGUMENT naming the tensor as the caller does */
export function toGraphTensor(tensor: GeneralTensor, spec: TensorSpec): NamedTensor {
  const { name, dataType } = spec;
  const count = countValues(tensor);
  const shape = readShape(tensor, spec, count);
  if (dataType === 'BYTES') return { name, dataType, shape, data: readTexts(tensor, count) };
  if (tensor.strings.length > 0) rejectType(tensor, dataType, 'strings');
  const sent = readNumbers(tensor);
  return { name, dataType, shape, data: convertNumbers(tensor, sent, dataType) };
}

/** Whether `toOutputTensor` accepts the type. */
export function isAnswerable(dataType: TensorType): boolean {
  return dataType in ELEM_TYPES || dataType in WIDER_TYPES;
}

/** @param tensor of a type that is answerable */
export function toOutputTensor(tensor: NamedTensor, aliasName: string): OutputTensor {
  const { name, shape, dataType, data } = tensor;
  const wider = WIDER_TYPES[dataType];
  if (wider === undefined || !(data instanceof Uint8Array)) {
    return { name, aliasName, dataType: dataType as GeneralTensorType, shape, data };
  }
  const values = viewElements(dataType as NumberType, data);
  const widened =
    wider === 'INT32'
      ? Int32Array.from(values as Uint16Array)
      : BigInt64Array.from(values as Uint32Array, BigInt);
  return { name, aliasName, dataType: wider, shape, data: new Uint8Array(widened.buffer) };
}

/** The shape that the caller gives; without one, all values are in one dimension. */
function readShape(tensor: GeneralTensor, spec: TensorSpec, count: number): readonly number[] {
  const { shape, lod } = tensor;
  const rank = spec.dims?.length;
  if (shape.length === 0) {
    if (rank === 0 && count === 1) return [];
    if (rank === 1 || rank === undefined) return applyLod([count], lod, tensor, rank);
    const expected = toWireShape(spec.dims ?? []).join(', ');
    return rejectTensor(tensor, `it has no shape; expected [${expected}]`);
  }
  if (shape.some((dim) => dim < 0) || countElements(shape) !== count) {
    rejectTensor(tensor, `its shape [${shape.join(', ')}] does not match its ${count} values`);
  }
  return applyLod(shape, lod, tensor, rank);
}

/** A lod groups the first dimension to rows. */
function applyLod(
  shape: readonly number[],
  lod: Int32Array,
  tensor: GeneralTensor,
  rank: number | undefined,
): readonly number[] {
  if (lod.length === 0) return shape;
  const [total = 0, ...rest] = shape;
  const rows = lod.length - 1;
  const width = (lod[1] ?? 0) - (lod[0] ?? 0);
  for (let row = 0; row < rows; row++) {
    const length = lod[row + 1]! - lod[row]!;
    if (length < 0) rejectTensor(tensor, 'its lod must not fall');
    if (length === width) continue;
    rejectTensor(
      tensor,
      `its lod has rows of ${width} and of ${length} values, but a plain model takes rows of one ` +
        'length: pad them, or send each in its own request',
    );
  }
  if (rows === 0 || lod[0] !== 0 || lod[rows] !== total) {
    rejectTensor(tensor, `its lod must rise from 0 to its first dimension (${total})`);
  }
  if (width === 1 && shape.length === rank) return shape;
  const grouped = [rows, width, ...rest];
  while (rank !== undefined && grouped.length > rank && grouped.at(-1) === 1) grouped.pop();
  return grouped;
}

function readTexts(tensor: GeneralTensor, count: number): readonly string[] {
  const { strings } = tensor;
  if (strings.length !== count) rejectType(tensor, 'BYTES', 'numbers');
  const long = strings.find((text) => text.length > LINE_CHARS_MAX);
  if (long !== undefined) {
    rejectTensor(tensor, `a string of ${long.length} characters, the limit is ${LINE_CHARS_MAX}`);
  }
  return strings;
}

/** The one field that has values; without any, no elements of the declared type. */
function readNumbers(tensor: GeneralTensor): SentNumbers {
  const { int64Words, float32, int32, float64, uint32, bool, content, elemType } = tensor;
  const fields: readonly (readonly [NumberType, ArrayBufferView])[] = [
    ['INT64', int64Words],
    ['FP32', float32],
    ['INT32', int32],
    ['FP64', float64],
    ['UINT32', uint32],
    ['BOOL', bool],
  ];
  for (const [dataType, { buffer, byteOffset, byteLength }] of fields) {
    if (byteLength > 0) return { dataType, bytes: new Uint8Array(buffer, byteOffset, byteLength) };
  }
  const declared = TYPES_BY_ELEM_TYPE.get(elemType);
  if (declared === undefined || declared === 'BYTES') return { dataType: 'BOOL', bytes: content };
  return { dataType: declared, bytes: content };
}

function convertNumbers(
  tensor: GeneralTensor,
  { dataType: from, bytes }: SentNumbers,
  to: NumberType,
): Uint8Array {
  if (from === to && to !== 'BOOL') return bytes;
  if (isFloat(to)) return toFloats(from, bytes, to);
  if (isFloat(from) && bytes.length > 0) rejectType(tensor, to, from);
  const values = viewElements(from, bytes);
  const result = new Uint8Array(values.length * TENSOR_TYPE_BYTES[to]);
  const target = viewElements(to, result);
  const isWide = target instanceof BigInt64Array || target instanceof BigUint64Array;
  for (let i = 0; i < values.length; i++) {
    const value = values[i]!;
    if (isWide) target[i] = BigInt(value);
    else target[i] = Number(value);
    const written = target[i]!;
    // Comparisons of numbers with bigints are exact.
    if (written < value || written > value || (to === 'BOOL' && written > 1)) {
      rejectTensor(tensor, `value ${i} is ${value}, which is not ${to}`);
    }
  }
  return result;
}

/** Rounds to nearest. */
function toFloats(from: NumberType, bytes: Uint8Array, to: NumberType): Uint8Array {
  const values = Float64Array.from(viewElements(from, bytes) as ArrayLike<number>, toNumber(from));
  if (to === 'FP64') return new Uint8Array(values.buffer);
  const { buffer } = Float32Array.from(values);
  if (to === 'FP32') return new Uint8Array(buffer);
  return new Uint8Array(Uint16Array.from(new Uint32Array(buffer), f32BitsToF16).buffer);
}

/** Reads an element of `viewElements`. */
function toNumber(type: NumberType): (element: number | bigint) => number {
  const toBits = { FP16: f16ToF32Bits, BF16: bf16ToF32Bits }[type as string];
  if (toBits === undefined) return Number;
  return (half) => bitsToNumber(toBits(Number(half)));
}

const float = new Float32Array(1);
const floatBits = new Uint32Array(float.buffer);

function bitsToNumber(bits: number): number {
  floatBits[0] = bits;
  return float[0]!;
}

function isFloat(type: TensorType): boolean {
  return type === 'BF16' || type.startsWith('FP');
}

function rejectType(tensor: GeneralTensor, expected: TensorType, got: string): never {
  const what = expected === 'BYTES' ? 'strings in data' : expected;
  return rejectTensor(tensor, `expected ${what}, got ${got}`);
}
