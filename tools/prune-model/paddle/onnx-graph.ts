/** An ONNX model being built: nodes in order, constants, inputs and outputs, encoded at the end. */
import { CubeError } from '../../../lib/core/errors.ts';
import { WireWriter } from '../../../proto/wire.ts';
import type { TensorDtype } from './tensor.ts';

const IR_VERSION = 8;
/** The first that has LayerNormalization. */
const OPSET = 17;
/** Element types. */
export const ONNX_TYPES: Readonly<Record<TensorDtype, number>> = {
  ...{ float32: 1, int32: 6, int64: 7, bool: 9, float64: 11 },
};
const ATTRIBUTE_FLOAT = 1;
const ATTRIBUTE_INT = 2;
const ATTRIBUTE_INTS = 7;
/** A protobuf message may have 2 GB. */
const MODEL_BYTES_MAX = 1.9e9;

type OnnxAttributes = Readonly<
  Record<string, number | readonly number[] | { readonly float: number }>
>;

/** -1 is the batch. */
export interface OnnxValue {
  readonly name: string;
  readonly elemType: number;
  readonly dims: readonly number[];
}

export class OnnxGraph {
  readonly #nodes: Uint8Array[] = [];
  readonly #constants = new Map<string, Uint8Array>();
  readonly #taken = new Set<string>();
  readonly #reserved: ReadonlySet<string>;
  #bytes = 0;

  /** @param reserved names of variables: nothing else is called so */
  constructor(reserved: Iterable<string>) {
    this.#reserved = new Set(reserved);
  }

  /** A name for something that is no variable of the program. */
  claim(wanted: string): string {
    let name = wanted;
    for (let i = 2; this.#taken.has(name) || this.#reserved.has(name); i++) name = `${wanted}@${i}`;
    this.#taken.add(name);
    return name;
  }

  /** A variable's own name; another when it is made again, which ONNX does not know. */
  claimVariable(name: string): string {
    if (this.#taken.has(name)) return this.claim(name);
    this.#taken.add(name);
    return name;
  }

  /** @returns the name of the node's first output */
  node(
    type: string,
    inputs: readonly string[],
    output: string | readonly string[],
    attributes: OnnxAttributes = {},
  ): string {
    const writer = new WireWriter();
    const outputs = typeof output === 'string' ? [output] : output;
    for (const name of inputs) writer.string(1, name);
    for (const name of outputs) writer.string(2, name);
    writer.string(4, type);
    for (const [name, value] of Object.entries(attributes)) {
      writer.bytes(5, encodeAttribute(name, value));
    }
    this.#nodes.push(writer.finish());
    return outputs[0]!;
  }

  /** @param name claimed before */
  floats(name: string, dims: readonly number[], values: ArrayLike<number>): string {
    return this.constant(name, 'float32', dims, values);
  }

  /** @param name claimed before */
  integers(
    name: string,
    values: readonly number[],
    dims: readonly number[] = [values.length],
  ): string {
    return this.constant(name, 'int64', dims, values);
  }

  /** @param name claimed before */
  constant(
    name: string,
    dtype: TensorDtype,
    dims: readonly number[],
    values: ArrayLike<number>,
  ): string {
    const data = encodeElements(dtype, Array.from(values));
    return this.#constant(name, ONNX_TYPES[dtype], dims, new Uint8Array(data.buffer));
  }

  encode(inputs: readonly OnnxValue[], outputs: readonly OnnxValue[]): Uint8Array {
    const graph = new WireWriter(this.#bytes + 65536);
    for (const node of this.#nodes) graph.bytes(1, node);
    graph.string(2, 'pruned');
    for (const constant of this.#constants.values()) graph.bytes(5, constant);
    for (const input of inputs) graph.bytes(11, encodeValue(input));
    for (const output of outputs) graph.bytes(12, encodeValue(output));
    return new WireWriter(graph.length + 64)
      .uint(1, IR_VERSION)
      .string(2, 'prune-model')
      .bytes(7, graph.finish())
      .message(8, (opset) => opset.string(1, '').uint(2, OPSET))
      .finish();
  }

  #constant(name: string, elemType: number, dims: readonly number[], data: Uint8Array): string {
    this.#bytes += data.length;
    if (this.#bytes > MODEL_BYTES_MAX) {
      throw new CubeError(
        'UNSUPPORTED',
        'cannot convert this program: it has more than 1.9 GB of parameters',
      );
    }
    const writer = new WireWriter(data.length + 256);
    for (const dim of dims) writer.uint(1, dim);
    this.#constants.set(name, writer.uint(2, elemType).string(8, name).bytes(9, data).finish());
    return name;
  }
}

function encodeElements(
  dtype: TensorDtype,
  values: readonly number[],
): Float32Array | Float64Array | Int32Array | BigInt64Array | Uint8Array {
  if (dtype === 'float32') return Float32Array.from(values);
  if (dtype === 'float64') return Float64Array.from(values);
  if (dtype === 'int64') return BigInt64Array.from(values, BigInt);
  return dtype === 'int32' ? Int32Array.from(values) : Uint8Array.from(values);
}

function encodeAttribute(name: string, value: OnnxAttributes[string]): Uint8Array {
  const writer = new WireWriter().string(1, name);
  if (typeof value === 'number')
    return writer.uint(3, BigInt(value)).uint(20, ATTRIBUTE_INT).finish();
  if ('float' in value) {
    const bytes = new Uint8Array(Float32Array.of(value.float).buffer);
    return writer.tag(2, 5).raw(bytes).uint(20, ATTRIBUTE_FLOAT).finish();
  }
  for (const item of value) writer.uint(8, BigInt(item));
  return writer.uint(20, ATTRIBUTE_INTS).finish();
}

function encodeValue({ name, elemType, dims }: OnnxValue): Uint8Array {
  const shape = new WireWriter();
  for (const [i, dim] of dims.entries()) {
    shape.message(1, (field) => {
      if (dim >= 0) field.uint(1, dim);
      else field.string(2, i === 0 ? 'batch' : `${name}_${i}`);
    });
  }
  const type = new WireWriter().uint(1, elemType).bytes(2, shape.finish()).finish();
  return new WireWriter()
    .string(1, name)
    .message(2, (inner) => inner.bytes(1, type))
    .finish();
}
