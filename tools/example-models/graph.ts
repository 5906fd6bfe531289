/** Writes the small graphs of the examples as ONNX. */
import {
  encodeOnnxModel,
  encodeOnnxNode,
  encodeTensor,
  encodeValueInfo,
  type NewOnnxNode,
} from '../../proto/onnx-encoding.ts';

const IR_VERSION = 8;
const OPSET = 17;

/** Numbers of element types. */
export const FLOAT = 1;
export const UINT8 = 2;
export const INT8 = 3;
export const INT32 = 6;
export const INT64 = 7;
export const STRING = 8;

export class ExampleGraph {
  readonly #nodes: Uint8Array[] = [];
  readonly #constants: Uint8Array[] = [];
  readonly #inputs: Uint8Array[] = [];
  readonly #outputs: Uint8Array[] = [];

  /** @param dims the text names a dynamic size */
  addInput(name: string, elemType: number, dims: readonly (number | string)[]): string {
    this.#inputs.push(encodeValueInfo(name, elemType, dims));
    return name;
  }

  addOutput(name: string, elemType: number, dims: readonly (number | string)[]): string {
    this.#outputs.push(encodeValueInfo(name, elemType, dims));
    return name;
  }

  addFloats(name: string, dims: readonly number[], values: ArrayLike<number>): string {
    return this.#addConstant(name, FLOAT, dims, Float32Array.from(values));
  }

  addIntegers(name: string, dims: readonly number[], values: readonly number[]): string {
    return this.#addConstant(name, INT64, dims, BigInt64Array.from(values, BigInt));
  }

  /** @returns `output` */
  addNode(
    opType: string,
    inputs: readonly string[],
    output: string,
    attributes: NewOnnxNode['attributes'] = {},
  ): string {
    this.#nodes.push(encodeOnnxNode({ opType, inputs, outputs: [output], attributes }));
    return output;
  }

  encode(graphName: string): Uint8Array {
    return encodeOnnxModel({
      irVersion: IR_VERSION,
      opset: OPSET,
      producer: 'hypercube-example-models',
      graphName,
      nodes: this.#nodes,
      initializers: this.#constants,
      inputs: this.#inputs,
      outputs: this.#outputs,
    });
  }

  #addConstant(
    name: string,
    elemType: number,
    dims: readonly number[],
    values: Float32Array | BigInt64Array,
  ): string {
    this.#constants.push(encodeTensor(name, elemType, dims, new Uint8Array(values.buffer)));
    return name;
  }
}
