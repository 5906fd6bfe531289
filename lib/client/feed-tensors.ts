/** Values of a feed as the input tensors of a model. */
import { CubeError } from '../core/errors.ts';
import type { TensorDim, TensorSpec, TensorType } from '../core/graph-signature.ts';
import {
  createNumericArray,
  findArrayType,
  isTensor,
  type PipelineTensor,
  toByteTensor,
} from '../core/pipeline-tensor.ts';
import type { NamedTensor } from '../core/tensor.ts';

/** What is known of an input; a remote service may not say. */
export type InputSpec = Partial<Pick<TensorSpec, 'dataType' | 'dims'>>;

/**
 * A value as a tensor: a `PipelineTensor`, a typed array, or (nested) lists of numbers, bigints,
 * booleans or strings, or one of those. Numbers take the type of the input. A flat list gets the
 * shape of the input where that has one dynamic dimension.
 * @throws CubeError INVALID_ARGUMENT naming the input
 */
export function toInputTensor(name: string, value: unknown, spec: InputSpec): NamedTensor {
  const tensor = readValue(name, value, spec);
  const typed = spec.dataType === undefined ? tensor : convert(name, tensor, spec.dataType);
  return { name, ...toByteTensor(typed) };
}

function readValue(name: string, value: unknown, spec: InputSpec): PipelineTensor {
  if (isTensor(value)) return value;
  const arrayType = findArrayType(value);
  if (arrayType !== undefined) {
    const data = value as PipelineTensor['data'];
    return { dataType: arrayType, shape: fitShape(data.length, spec.dims), data };
  }
  const isList = Array.isArray(value);
  const shape = isList ? measure(name, value) : [];
  const flat: readonly unknown[] = isList ? value.flat(shape.length) : [value];
  const fitted = shape.length <= 1 ? fitShape(flat.length, spec.dims, shape) : shape;
  return toTypedTensor(name, flat, fitted, spec.dataType);
}

/** The lengths of nested lists, which must be equal on each level. */
function measure(name: string, list: readonly unknown[]): number[] {
  const [first] = list;
  if (!Array.isArray(first)) {
    if (list.some((item) => Array.isArray(item))) fail(name, 'lists and values are mixed');
    return [list.length];
  }
  const inner = measure(name, first);
  for (const item of list) {
    const isEqual = Array.isArray(item) && measure(name, item).join() === inner.join();
    if (!isEqual) fail(name, 'the nested lists have different lengths');
  }
  return [list.length, ...inner];
}

/** The shape of a flat list: that of the input, where its only dynamic dimension is the first. */
function fitShape(
  count: number,
  dims: readonly TensorDim[] | undefined,
  flat: readonly number[] = [count],
): readonly number[] {
  if (dims === undefined || dims.length === flat.length) return flat;
  const dynamic = dims.filter((dim) => typeof dim !== 'number').length;
  const width = dims.reduce<number>((product, dim) => {
    return typeof dim === 'number' ? product * dim : product;
  }, 1);
  if (dynamic > 1 || width === 0 || count % width !== 0) return flat;
  return dims.map((dim) => (typeof dim === 'number' ? dim : count / width));
}

function toTypedTensor(
  name: string,
  flat: readonly unknown[],
  shape: readonly number[],
  wanted: TensorType | undefined,
): PipelineTensor {
  const [first] = flat;
  const isText = typeof first === 'string';
  const fallback = { string: 'BYTES', bigint: 'INT64', boolean: 'BOOL' } as const;
  const dataType =
    wanted ?? fallback[typeof first as keyof typeof fallback] ?? ('FP32' as TensorType);
  if (isText !== (dataType === 'BYTES') || flat.some((item) => typeof item !== typeof first)) {
    fail(name, `expected elements of type ${dataType}, got ${describe(flat)}`);
  }
  if (dataType === 'BYTES') return { dataType, shape, data: flat as readonly string[] };
  if (!['number', 'bigint', 'boolean'].includes(typeof first) && flat.length > 0) {
    fail(name, `expected numbers or strings, got ${describe(flat)}`);
  }
  return { dataType, shape, data: toArray(name, flat as readonly Numeric[], dataType) };
}

type Numeric = number | bigint | boolean;

function convert(name: string, tensor: PipelineTensor, wanted: TensorType): PipelineTensor {
  const { dataType, shape, data } = tensor;
  if (dataType === wanted) return tensor;
  const kinds = [dataType, wanted];
  // Bits of half floats are not numbers; strings are never numbers.
  if (kinds.some((kind) => kind === 'BYTES' || kind === 'FP16' || kind === 'BF16')) {
    fail(name, `expected a tensor of ${wanted}, got ${dataType}`);
  }
  if (isFloat(dataType) && !isFloat(wanted)) {
    fail(name, `expected a tensor of ${wanted}, got ${dataType}`);
  }
  const numbers = data as unknown as Iterable<Numeric>;
  return { dataType: wanted, shape, data: toArray(name, [...numbers], wanted) };
}

function isFloat(type: TensorType): boolean {
  return type === 'FP32' || type === 'FP64';
}

function toArray(
  name: string,
  values: readonly Numeric[],
  type: TensorType,
): PipelineTensor['data'] {
  const isWide = type === 'INT64' || type === 'UINT64';
  const array = createNumericArray(type, values.length);
  for (let i = 0; i < values.length; i++) {
    const value = values[i] as Numeric;
    if (!isFloat(type) && typeof value === 'number' && !Number.isInteger(value)) {
      fail(name, `value ${i}: expected an integer, got ${value}`);
    }
    array[i] = isWide ? BigInt(value) : Number(value);
    // Integers that do not fit wrap around.
    if (!isFloat(type) && BigInt(array[i] as number) !== BigInt(value)) {
      fail(name, `value ${i}: ${value} does not fit ${type}`);
    }
  }
  return array as unknown as PipelineTensor['data'];
}

function describe(flat: readonly unknown[]): string {
  return [...new Set(flat.map((item) => (item === null ? 'null' : typeof item)))].join(' and ');
}

function fail(name: string, problem: string): never {
  throw new CubeError('INVALID_ARGUMENT', `input ${JSON.stringify(name)}: ${problem}`);
}
