/**
 * Tensors of pipeline messages to tensors of ops, and back. The declared shape and type are checked
 * against the values.
 */
import { CubeError } from '../lib/core/errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../lib/core/graph-signature.ts';
import { f16ToF32Bits, f32BitsToF16 } from '../lib/core/half-floats.ts';
import { decodeNpyTensor } from '../lib/core/npy-tensor.ts';
import { quoteInput } from '../lib/core/shown-input.ts';
import { countElements, type Tensor } from '../lib/core/tensor.ts';
import { ELEM_TYPE, EMPTY_TENSOR, type GeneralTensor } from './general-tensor.ts';
import { PIPELINE_BYTES, PIPELINE_STRING } from './pipeline.ts';

/** Fields of a message that hold values. */
type ValueField = 'int64Words' | 'float32' | 'int32' | 'float64' | 'uint32' | 'bool' | 'strings';

interface ElementType {
  readonly dataType: TensorType;
  readonly field: ValueField;
}

/** By elem_type: the type of the tensor, and the field with its values. */
const ELEMENT_TYPES: ReadonlyMap<number, ElementType> = new Map([
  [ELEM_TYPE.INT64, { dataType: 'INT64', field: 'int64Words' }],
  [ELEM_TYPE.FP32, { dataType: 'FP32', field: 'float32' }],
  [ELEM_TYPE.INT32, { dataType: 'INT32', field: 'int32' }],
  [ELEM_TYPE.FP64, { dataType: 'FP64', field: 'float64' }],
  [ELEM_TYPE.INT16, { dataType: 'INT16', field: 'int32' }],
  [ELEM_TYPE.FP16, { dataType: 'FP16', field: 'float32' }],
  [ELEM_TYPE.BF16, { dataType: 'BF16', field: 'uint32' }],
  [ELEM_TYPE.UINT8, { dataType: 'UINT8', field: 'uint32' }],
  [ELEM_TYPE.INT8, { dataType: 'INT8', field: 'int32' }],
  [ELEM_TYPE.BOOL, { dataType: 'BOOL', field: 'bool' }],
]);
const VALUE_FIELDS: readonly ValueField[] = [
  'int64Words',
  'float32',
  'int32',
  'float64',
  'uint32',
  'bool',
  'strings',
];
const INTEGER_RANGES: Partial<Record<TensorType, readonly [min: number, max: number]>> = {
  INT16: [-32_768, 32_767],
  INT8: [-128, 127],
  UINT8: [0, 255],
  BF16: [0, 65_535],
};

/**
 * @returns the text of a STRING tensor, its strings joined as in the original; a tensor of others
 * @throws CubeError INVALID_ARGUMENT naming the tensor, UNSUPPORTED for complex numbers
 */
export function readPipelineTensor(tensor: GeneralTensor): Tensor | string {
  const { elemType, shape, name } = tensor;
  const what = `tensor ${quoteInput(name)}`;
  if (elemType === PIPELINE_STRING) {
    checkOnly(tensor, 'strings', what);
    return tensor.strings.join('');
  }
  if (elemType === PIPELINE_BYTES) return readNpy(tensor, what);
  const type = ELEMENT_TYPES.get(elemType);
  if (type === undefined) {
    throw new CubeError('UNSUPPORTED', `${what}: elem_type ${elemType} is not supported`);
  }
  checkOnly(tensor, type.field, what);
  const length = tensor[type.field].length;
  const count = type.field === 'int64Words' ? length / 2 : length;
  checkShape(shape, count, what);
  return { dataType: type.dataType, shape, data: encodeElements(tensor, type, what) };
}

/** The lod of a tensor as the original hands it to ops: INT32, two rows; undefined without one. */
export function readLod({ lod, name }: GeneralTensor): Tensor | undefined {
  if (lod.length === 0) return undefined;
  if (lod.length % 2 !== 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `tensor ${quoteInput(name)}: ${lod.length} values of lod; expected two rows of equal length`,
    );
  }
  return { dataType: 'INT32', shape: [2, lod.length / 2], data: copyBytes(lod) };
}

function readNpy({ content }: GeneralTensor, what: string): Tensor {
  try {
    return decodeNpyTensor(content, what);
  } catch (error) {
    const { message } = CubeError.from(error);
    throw new CubeError('INVALID_ARGUMENT', message, { cause: error });
  }
}

/** Values in another field than that of the type would be lost. */
function checkOnly(tensor: GeneralTensor, field: ValueField, what: string): void {
  const other = VALUE_FIELDS.find((one) => one !== field && tensor[one].length > 0);
  if (other === undefined && tensor.content.length === 0) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${what}: elem_type ${tensor.elemType} does not fit the field of its values`,
  );
}

function checkShape(shape: readonly number[], count: number, what: string): void {
  const product = countElements(shape);
  if (shape.every((dim) => dim >= 0) && product === count) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${what}: shape [${shape.join(', ')}] does not fit ${count} values`,
  );
}

function encodeElements(
  tensor: GeneralTensor,
  { dataType, field }: ElementType,
  what: string,
): Uint8Array {
  if (dataType === 'FP16') return Uint8Array.from(copyBytes(toF16(tensor.float32)));
  const range = INTEGER_RANGES[dataType];
  if (range === undefined) return copyBytes(tensor[field] as Uint8Array);
  const values = tensor[field] as Int32Array | Uint32Array;
  for (const value of values) {
    if (value >= range[0] && value <= range[1]) continue;
    throw new CubeError('INVALID_ARGUMENT', `${what}: ${value} does not fit ${dataType}`);
  }
  return copyBytes(
    TENSOR_TYPE_BYTES[dataType] === 1 ? Uint8Array.from(values) : Uint16Array.from(values),
  );
}

function toF16(values: Float32Array): Uint16Array {
  const bits = new Uint32Array(values.buffer, values.byteOffset, values.length);
  return Uint16Array.from(bits, f32BitsToF16);
}

function copyBytes({ buffer, byteOffset, byteLength }: ArrayBufferView): Uint8Array {
  return new Uint8Array(new Uint8Array(buffer, byteOffset, byteLength));
}

/** A tensor of an answer as a message. @throws CubeError UNSUPPORTED for unsigned 16 to 64 bits */
export function writePipelineTensor(
  name: string,
  { dataType, shape, data }: Tensor,
): GeneralTensor {
  const base = { ...EMPTY_TENSOR, name, shape };
  if (!(data instanceof Uint8Array)) return { ...base, elemType: PIPELINE_STRING, strings: data };
  const bytes = copyBytes(data).buffer as ArrayBuffer;
  const { INT64, FP32, INT32, FP64, INT16, FP16, BF16, UINT8, INT8, BOOL } = ELEM_TYPE;
  switch (dataType) {
    case 'INT64':
      return { ...base, elemType: INT64, int64Words: new Uint32Array(bytes) };
    case 'FP32':
      return { ...base, elemType: FP32, float32: new Float32Array(bytes) };
    case 'INT32':
      return { ...base, elemType: INT32, int32: new Int32Array(bytes) };
    case 'FP64':
      return { ...base, elemType: FP64, float64: new Float64Array(bytes) };
    case 'INT16':
      return { ...base, elemType: INT16, int32: Int32Array.from(new Int16Array(bytes)) };
    case 'FP16': {
      const bits = Uint32Array.from(new Uint16Array(bytes), f16ToF32Bits);
      return { ...base, elemType: FP16, float32: new Float32Array(bits.buffer) };
    }
    case 'BF16':
      return { ...base, elemType: BF16, uint32: Uint32Array.from(new Uint16Array(bytes)) };
    case 'UINT8':
      return { ...base, elemType: UINT8, uint32: Uint32Array.from(data) };
    case 'INT8':
      return { ...base, elemType: INT8, int32: Int32Array.from(new Int8Array(bytes)) };
    case 'BOOL':
      return { ...base, elemType: BOOL, bool: data };
    default:
      throw new CubeError(
        'UNSUPPORTED',
        `answer value ${name}: ${dataType} has no type in pipeline messages; convert it to INT64`,
      );
  }
}
