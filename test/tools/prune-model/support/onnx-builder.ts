/** Builds small ONNX models byte by byte, independently of the reader and writer under test. */
import { WireWriter } from '../../../../proto/wire.ts';

export const FLOAT = 1;
export const UINT8 = 2;
export const INT32 = 6;
export const INT64 = 7;
export const BOOL = 9;
export const FLOAT16 = 10;

type Bytes = Uint8Array;
export type Shape = readonly (number | string)[];

/**
 * An attribute: a number is INT, a list INTS, text STRING; tensors and graphs are their encoded
 * bytes.
 */
export type Attribute =
  | number
  | readonly number[]
  | string
  | { readonly tensor: Bytes }
  | { readonly graph: Bytes };

const text = new TextEncoder();

function attribute(name: string, value: Attribute): Bytes {
  const writer = new WireWriter().string(1, name);
  if (typeof value === 'number') return writer.uint(3, BigInt(value)).uint(20, 2).finish();
  if (typeof value === 'string') return writer.bytes(4, text.encode(value)).uint(20, 3).finish();
  if ('tensor' in value) return writer.bytes(5, value.tensor).uint(20, 4).finish();
  if ('graph' in value) return writer.bytes(6, value.graph).uint(20, 5).finish();
  for (const int of value) writer.uint(8, BigInt(int));
  return writer.uint(20, 7).finish();
}

export interface NodeOptions {
  readonly name?: string;
  readonly domain?: string;
  readonly attributes?: Readonly<Record<string, Attribute>>;
}

export function node(
  op: string,
  inputs: readonly string[],
  outputs: readonly string[],
  options: NodeOptions = {},
): Bytes {
  const writer = new WireWriter();
  for (const input of inputs) writer.string(1, input);
  for (const output of outputs) writer.string(2, output);
  if (options.name !== undefined) writer.string(3, options.name);
  writer.string(4, op);
  for (const [name, value] of Object.entries(options.attributes ?? {})) {
    writer.bytes(5, attribute(name, value));
  }
  if (options.domain !== undefined) writer.string(7, options.domain);
  return writer.finish();
}

const raw = (data: ArrayBufferView): Bytes =>
  new Uint8Array(data.buffer, data.byteOffset, data.byteLength);

/** A tensor with raw_data. */
export function tensor(
  name: string,
  elemType: number,
  dims: readonly number[],
  data: ArrayBufferView,
): Bytes {
  const writer = new WireWriter();
  for (const dim of dims) writer.uint(1, dim);
  return writer.uint(2, elemType).string(8, name).bytes(9, raw(data)).finish();
}

export function floats(name: string, dims: readonly number[], values: Iterable<number>): Bytes {
  return tensor(name, FLOAT, dims, Float32Array.from(values));
}

/** A float tensor in the float_data field, packed or one field per element, with packed dims. */
export function floatsInField(
  name: string,
  dims: readonly number[],
  values: readonly number[],
  packed: boolean,
): Bytes {
  const writer = new WireWriter();
  const packedDims = new WireWriter();
  for (const dim of dims) packedDims.varint(dim);
  writer.bytes(1, packedDims.finish()).uint(2, FLOAT);
  const bytes = raw(Float32Array.from(values));
  if (packed) writer.bytes(4, bytes);
  else for (let i = 0; i < bytes.length; i += 4) writer.tag(4, 5).raw(bytes.subarray(i, i + 4));
  return writer.string(8, name).finish();
}

/** A float tensor with its data in another file. */
export function externalFloats(name: string, dims: readonly number[], location: string): Bytes {
  const writer = new WireWriter();
  for (const dim of dims) writer.uint(1, dim);
  writer.uint(2, FLOAT).string(8, name);
  writer.message(13, (entry) => entry.string(1, 'location').string(2, location));
  return writer.uint(14, 1).finish();
}

export function ints(name: string, dims: readonly number[], values: readonly number[]): Bytes {
  return tensor(name, INT64, dims, BigInt64Array.from(values, BigInt));
}

/** A graph input, output or value_info. */
export function value(name: string, elemType: number, shape: Shape): Bytes {
  const dims = new WireWriter();
  for (const dim of shape) {
    dims.message(1, (field) => {
      if (typeof dim === 'number') field.uint(1, dim);
      else field.string(2, dim);
    });
  }
  const type = new WireWriter().uint(1, elemType).bytes(2, dims.finish()).finish();
  return new WireWriter()
    .string(1, name)
    .message(2, (t) => t.bytes(1, type))
    .finish();
}

export interface GraphParts {
  readonly nodes: readonly Bytes[];
  readonly inputs: readonly Bytes[];
  readonly outputs: readonly Bytes[];
  readonly initializers?: readonly Bytes[];
  readonly values?: readonly Bytes[];
}

export function graph(parts: GraphParts): Bytes {
  const writer = new WireWriter();
  for (const bytes of parts.nodes) writer.bytes(1, bytes);
  writer.string(2, 'test');
  for (const bytes of parts.initializers ?? []) writer.bytes(5, bytes);
  for (const bytes of parts.inputs) writer.bytes(11, bytes);
  for (const bytes of parts.outputs) writer.bytes(12, bytes);
  for (const bytes of parts.values ?? []) writer.bytes(13, bytes);
  return writer.finish();
}

export interface ModelParts extends GraphParts {
  readonly irVersion?: number;
  readonly opset?: number;
  /** Encoded FunctionProto messages, and the domain they are in. */
  readonly functions?: readonly Bytes[];
  readonly functionDomain?: string;
  /** Bytes of further fields of the model, as they should stay. */
  readonly extra?: Bytes;
}

export function model(parts: ModelParts): Bytes {
  const writer = new WireWriter()
    .uint(1, parts.irVersion ?? 8)
    .string(2, 'test')
    .bytes(7, graph(parts))
    .message(8, (opset) => opset.string(1, '').uint(2, parts.opset ?? 13));
  if (parts.functionDomain !== undefined) {
    writer.message(8, (opset) => opset.string(1, parts.functionDomain!).uint(2, 1));
  }
  for (const bytes of parts.functions ?? []) writer.bytes(25, bytes);
  if (parts.extra !== undefined) writer.raw(parts.extra);
  return writer.finish();
}

/** Values that differ from element to element, none of them round. */
export function ramp(count: number, scale = 1): number[] {
  return Array.from({ length: count }, (_, i) => Math.sin(i + 1) * scale);
}

/**
 * ids [batch, slots] → Gather → Reshape → concat with dense [batch, 2] → Gemm → Sigmoid: the
 * smallest CTR model.
 */
export function smallModel(slots = 3, rows = 7, dim = 4): Bytes {
  const width = slots * dim;
  return model({
    inputs: [value('ids', INT64, ['batch', slots]), value('dense', FLOAT, ['batch', 2])],
    outputs: [value('prob', FLOAT, ['batch', 1])],
    initializers: [
      floats('embedding.weight', [rows, dim], ramp(rows * dim)),
      ints('flat', [2], [-1, width]),
      floats('w', [width + 2, 1], ramp(width + 2)),
      floats('b', [1], [0.1]),
    ],
    nodes: [
      node('Gather', ['embedding.weight', 'ids'], ['rows'], { name: 'lookup' }),
      node('Reshape', ['rows', 'flat'], ['wide']),
      node('Concat', ['wide', 'dense'], ['x'], { attributes: { axis: 1 } }),
      node('Gemm', ['x', 'w', 'b'], ['logit']),
      node('Sigmoid', ['logit'], ['prob'], { name: 'click' }),
    ],
    values: [value('rows', FLOAT, ['batch', slots, dim]), value('x', FLOAT, ['batch', width + 2])],
  });
}
