/**
 * Builds an ONNX model: nodes in order, constants, inputs and outputs, encoded at the end.
 * Converters add the nodes of one operator each, through a `Conversion`.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import {
  encodeOnnxModel,
  encodeOnnxNode,
  encodeTensor,
  encodeValueInfo,
  type NewOnnxNode,
} from '../../../proto/onnx-encoding.ts';
import { describeOp, type Op } from './program.ts';
import type { Tensor, TensorDtype } from './tensor.ts';

const IR_VERSION = 8;
/** The first opset with LayerNormalization. */
const OPSET = 17;
/** Element types. */
export const ONNX_TYPES: Readonly<Record<TensorDtype, number>> = {
  float32: 1,
  int32: 6,
  int64: 7,
  bool: 9,
  float64: 11,
};
/** A protobuf message has at most 2 GB. */
const MODEL_BYTES_MAX = 1.9e9;

/** An input or output; -1 is an axis of unknown size. */
export interface OnnxPort {
  readonly name: string;
  readonly elemType: number;
  readonly dims: readonly number[];
}

export class OnnxGraphBuilder {
  readonly #nodes: Uint8Array[] = [];
  readonly #constants = new Map<string, Uint8Array>();
  readonly #taken = new Set<string>();
  readonly #reserved: ReadonlySet<string>;
  #bytes = 0;

  /** @param reserved names of variables, which only claimVariable returns */
  constructor(reserved: Iterable<string>) {
    this.#reserved = new Set(reserved);
  }

  /** Claims a name for a value that is not a variable of the program. */
  claimName(base: string): string {
    let name = base;
    for (let i = 2; this.#taken.has(name) || this.#reserved.has(name); i++) name = `${base}@${i}`;
    this.#taken.add(name);
    return name;
  }

  /** Claims the name of a variable; another name when it is computed again, which ONNX forbids. */
  claimVariable(name: string): string {
    if (this.#taken.has(name)) return this.claimName(name);
    this.#taken.add(name);
    return name;
  }

  /** @returns the name of the node's first output */
  addNode(
    type: string,
    inputs: readonly string[],
    output: string | readonly string[],
    attributes: NewOnnxNode['attributes'] = {},
  ): string {
    const outputs = typeof output === 'string' ? [output] : output;
    this.#nodes.push(encodeOnnxNode({ opType: type, inputs, outputs, attributes }));
    const [first = ''] = outputs;
    return first;
  }

  /** @param name claimed before */
  addFloats(name: string, dims: readonly number[], values: ArrayLike<number>): string {
    return this.addConstant(name, 'float32', dims, values);
  }

  /** @param name claimed before */
  addIntegers(
    name: string,
    values: readonly number[],
    dims: readonly number[] = [values.length],
  ): string {
    return this.addConstant(name, 'int64', dims, values);
  }

  /** @param name claimed before */
  addConstant(
    name: string,
    dtype: TensorDtype,
    dims: readonly number[],
    values: ArrayLike<number>,
  ): string {
    const data = encodeElements(dtype, Array.from(values));
    return this.#constant(name, ONNX_TYPES[dtype], dims, new Uint8Array(data.buffer));
  }

  encode(inputs: readonly OnnxPort[], outputs: readonly OnnxPort[]): Uint8Array {
    return encodeOnnxModel({
      irVersion: IR_VERSION,
      opset: OPSET,
      producer: 'prune-model',
      graphName: 'pruned',
      nodes: this.#nodes,
      initializers: [...this.#constants.values()],
      inputs: inputs.map(encodeValue),
      outputs: outputs.map(encodeValue),
    });
  }

  #constant(name: string, elemType: number, dims: readonly number[], data: Uint8Array): string {
    this.#bytes += data.length;
    if (this.#bytes > MODEL_BYTES_MAX) {
      throw new CubeError(
        'UNSUPPORTED',
        'cannot convert this program to ONNX: it has more than 1.9 GB of parameters; leave ' +
          'out --to',
      );
    }
    this.#constants.set(name, encodeTensor(name, elemType, dims, data));
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

function encodeValue({ name, elemType, dims }: OnnxPort): Uint8Array {
  const named = dims.map((dim, i) => (dim >= 0 ? dim : i === 0 ? 'batch' : `${name}_${i}`));
  return encodeValueInfo(name, elemType, named);
}

/** The shape of a variable, from two runs with different batch sizes. */
export interface VariableShape {
  /** -1 where the size depends on the batch. */
  readonly dims: readonly number[];
  readonly dtype: Tensor['dtype'];
}

export interface Conversion {
  readonly op: Op;
  readonly graph: OnnxGraphBuilder;
  /** Name in the graph of the first variable of a parameter; '' when the parameter is absent. */
  input(parameter: string): string;
  inputs(parameter: string): readonly string[];
  shape(parameter: string, position?: number): VariableShape;
  outputShape(parameter: string): VariableShape;
  /** Claims the name of an output. */
  claimOutput(parameter: string, position?: number): string;
  /** Claims a name for an intermediate value. */
  claimName(what: string): string;
  /** Length of the sequences of an input; undefined when it has none. */
  sequenceLength(parameter: string): number | undefined;
}

export type Converter = (conversion: Conversion) => void;

/** @param reason what is not supported, as a clause about the operator */
export function conversionError(op: Op, reason: string): CubeError {
  return new CubeError('UNSUPPORTED', `cannot convert ${describeOp(op)} to ONNX: ${reason}`);
}
