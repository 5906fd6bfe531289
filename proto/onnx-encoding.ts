/** Encodes ONNX models and their parts. Field numbers: onnx.proto of the ONNX project. */
import { WireWriter } from './wire.ts';

/** A size, the name of a dynamic size, or undefined for a size without name. */
type Dim = number | string | undefined;

const WIRE_FIXED32 = 5;
const ATTRIBUTE_FLOAT = 1;
const ATTRIBUTE_INT = 2;
const ATTRIBUTE_TENSOR = 4;
const ATTRIBUTE_INTS = 7;

/** A number is an INT, a list INTS; a tensor is an encoded TensorProto. */
export type OnnxAttributeValue =
  | number
  | readonly number[]
  | { readonly float: number }
  | { readonly tensor: Uint8Array };

export interface NewOnnxNode {
  readonly opType: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly name?: string;
  readonly attributes: Readonly<Record<string, OnnxAttributeValue>>;
}

/** @returns a NodeProto */
export function encodeOnnxNode(node: NewOnnxNode): Uint8Array {
  const writer = new WireWriter();
  for (const input of node.inputs) writer.string(1, input);
  for (const output of node.outputs) writer.string(2, output);
  if (node.name !== undefined) writer.string(3, node.name);
  writer.string(4, node.opType);
  for (const [name, value] of Object.entries(node.attributes)) {
    writer.bytes(5, encodeAttribute(name, value));
  }
  return writer.finish();
}

function encodeAttribute(name: string, value: OnnxAttributeValue): Uint8Array {
  const writer = new WireWriter().string(1, name);
  if (typeof value === 'number') {
    writer.uint(3, BigInt(value)).uint(20, ATTRIBUTE_INT);
  } else if ('float' in value) {
    const bytes = new Uint8Array(Float32Array.of(value.float).buffer);
    writer.tag(2, WIRE_FIXED32).raw(bytes).uint(20, ATTRIBUTE_FLOAT);
  } else if ('tensor' in value) {
    writer.bytes(5, value.tensor).uint(20, ATTRIBUTE_TENSOR);
  } else {
    for (const item of value) writer.uint(8, BigInt(item));
    writer.uint(20, ATTRIBUTE_INTS);
  }
  return writer.finish();
}

/** @returns the ValueInfoProto of a graph input or output */
export function encodeValueInfo(name: string, elemType: number, dims: readonly Dim[]): Uint8Array {
  const shape = new WireWriter();
  for (const dim of dims) {
    shape.message(1, (field) => {
      if (typeof dim === 'number') field.uint(1, dim);
      else if (dim !== undefined) field.string(2, dim);
    });
  }
  const tensor = new WireWriter().uint(1, elemType).bytes(2, shape.finish()).finish();
  return new WireWriter()
    .string(1, name)
    .message(2, (type) => type.bytes(1, tensor))
    .finish();
}

/** @param data little-endian elements @returns a TensorProto */
export function encodeTensor(
  name: string,
  elemType: number,
  dims: readonly number[],
  data: Uint8Array,
): Uint8Array {
  const writer = new WireWriter(data.length + 256);
  for (const dim of dims) writer.uint(1, dim);
  return writer.uint(2, elemType).string(8, name).bytes(9, data).finish();
}

export interface OnnxModelParts {
  readonly irVersion: number;
  readonly opset: number;
  /** The program that makes the model. */
  readonly producer: string;
  readonly graphName: string;
  /** NodeProto messages in the order in which they run. */
  readonly nodes: readonly Uint8Array[];
  /** TensorProto messages. */
  readonly initializers: readonly Uint8Array[];
  /** ValueInfoProto messages. */
  readonly inputs: readonly Uint8Array[];
  readonly outputs: readonly Uint8Array[];
}

/** @returns the bytes of an ONNX file */
export function encodeOnnxModel(parts: OnnxModelParts): Uint8Array {
  const fields: [number, readonly Uint8Array[]][] = [
    [5, parts.initializers],
    [11, parts.inputs],
    [12, parts.outputs],
  ];
  const bytes = [...parts.nodes, ...fields.flatMap(([, list]) => list)];
  const graph = new WireWriter(bytes.reduce((sum, { length }) => sum + length + 16, 256));
  for (const node of parts.nodes) graph.bytes(1, node);
  graph.string(2, parts.graphName);
  for (const [field, list] of fields) for (const item of list) graph.bytes(field, item);
  return new WireWriter(graph.length + 64)
    .uint(1, parts.irVersion)
    .string(2, parts.producer)
    .bytes(7, graph.finish())
    .message(8, (opset) => opset.string(1, '').uint(2, parts.opset))
    .finish();
}
