/**
 * The decoded view of an ONNX model: names and types, and every field with its exact bytes, so that
 * unchanged fields are written back byte for byte, unknown fields included. Field numbers:
 * onnx.proto of the ONNX project.
 */

import { CubeError } from '../../../lib/core/errors.ts';
import type { Dim } from '../cut/cut-model.ts';
import type { RawField } from '../cut/protobuf-fields.ts';

export const ELEM_FLOAT = 1;
export const ELEM_UINT8 = 2;
export const ELEM_INT8 = 3;
export const ELEM_INT32 = 6;
export const ELEM_INT64 = 7;
export const ELEM_BOOL = 9;
export const ELEM_FLOAT16 = 10;
export const ELEM_DOUBLE = 11;
export const ELEM_BFLOAT16 = 16;

const ELEM_NAMES: Readonly<Record<number, string>> = {
  1: 'float32',
  2: 'uint8',
  3: 'int8',
  4: 'uint16',
  5: 'int16',
  6: 'int32',
  7: 'int64',
  8: 'string',
  9: 'bool',
  10: 'float16',
  11: 'float64',
  12: 'uint32',
  13: 'uint64',
  16: 'bfloat16',
  17: 'float8e4m3fn',
  18: 'float8e4m3fnuz',
  19: 'float8e5m2',
  20: 'float8e5m2fnuz',
  21: 'uint4',
  22: 'int4',
};

export function getElementTypeName(elemType: number): string {
  return ELEM_NAMES[elemType] ?? `element type ${elemType}`;
}

export interface ModelProto {
  readonly irVersion: number;
  /** In file order; the graph is the one with field number MODEL_GRAPH. */
  readonly fields: readonly RawField[];
  readonly graph: GraphProto;
  readonly functions: readonly FunctionProto[];
  readonly hasTraining: boolean;
  /** Version of the standard operators; 0 when the model does not declare it. */
  readonly opset: number;
}

export const MODEL_GRAPH = 7;

export interface GraphProto {
  readonly fields: readonly RawField[];
  readonly nodes: readonly NodeProto[];
  readonly initializers: readonly TensorProto[];
  /** Names of sparse initializers: constants whose values are never read. */
  readonly sparseInitializers: readonly string[];
  readonly inputs: readonly ValueInfo[];
  readonly outputs: readonly ValueInfo[];
  readonly values: readonly ValueInfo[];
  /** Tensor name of each quantization annotation. */
  readonly annotations: ReadonlyMap<RawField, string>;
}

export const GRAPH_NODE = 1;
export const GRAPH_INITIALIZER = 5;
export const GRAPH_INPUT = 11;
export const GRAPH_OUTPUT = 12;
export const GRAPH_VALUE_INFO = 13;
export const GRAPH_ANNOTATION = 14;
export const GRAPH_SPARSE_INITIALIZER = 15;

export interface NodeProto {
  readonly raw: RawField;
  readonly name: string;
  readonly opType: string;
  /** "" for the standard operators, also when the file says "ai.onnx". */
  readonly domain: string;
  /** "" is an optional input that is absent. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: ReadonlyMap<string, AttributeProto>;
  /** Graphs inside attributes: bodies of If, Loop, Scan. */
  readonly bodies: readonly GraphProto[];
}

export interface AttributeProto {
  readonly raw: RawField;
  /** In a function: the attribute of the call whose value this attribute takes. */
  readonly reference: string | undefined;
  readonly int: bigint | undefined;
  readonly float: number | undefined;
  readonly ints: readonly bigint[];
  readonly text: string | undefined;
  readonly tensor: TensorProto | undefined;
}

export interface TensorProto {
  readonly raw: RawField;
  readonly name: string;
  readonly elemType: number;
  readonly dims: readonly number[];
  /** Bytes of raw_data or of the field for this element type; undefined when there is neither. */
  readonly data: TensorData | undefined;
  /** Set when the data is in another file: the entries of external_data. */
  readonly external: ReadonlyMap<string, string> | undefined;
}

/** `packed`: little-endian elements. `varints`: those of int32_data or int64_data. */
export interface TensorData {
  readonly encoding: 'packed' | 'varints';
  readonly pieces: readonly Uint8Array[];
}

export interface ValueInfo {
  readonly raw: RawField;
  readonly name: string;
  /** 0 when the value is not a tensor or has no type. */
  readonly elemType: number;
  /** Undefined: not even the rank is known. */
  readonly shape: readonly Dim[] | undefined;
}

export interface FunctionProto {
  readonly domain: string;
  readonly name: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly nodes: readonly NodeProto[];
  /** Values of attributes that a call may leave out. */
  readonly defaults: ReadonlyMap<string, AttributeProto>;
  /** Version of the standard operators; 0 when the function does not declare it. */
  readonly opset: number;
}

export function getIntAttribute(node: NodeProto, name: string, defaultValue: number): number {
  return Number(node.attributes.get(name)?.int ?? defaultValue);
}

/** Names a node in messages. */
export function describeNode(node: NodeProto): string {
  const op = node.domain === '' ? node.opType : `${node.domain}.${node.opType}`;
  if (node.name !== '') return `node ${JSON.stringify(node.name)} (${op})`;
  const output = node.outputs.find((name) => name !== '');
  return output === undefined
    ? `an unnamed ${op} node`
    : `the ${op} node that computes ${JSON.stringify(output)}`;
}

/**
 * @param tensor the tensor in question: the table or the ids
 * @param reason what is not supported, as a clause about the node, and what to do about it
 */
export function refuseNode(node: NodeProto, tensor: string, reason: string): never {
  throw new CubeError(
    'UNSUPPORTED',
    `cannot prune ${describeNode(node)}, tensor ${JSON.stringify(tensor)}: ${reason}`,
  );
}

/** Names that a body reads from the graphs around it. */
export function findCapturedNames(graph: GraphProto): Set<string> {
  const defined = new Set<string>(graph.sparseInitializers);
  for (const { name } of [...graph.inputs, ...graph.initializers]) defined.add(name);
  const captured = new Set<string>();
  const use = (name: string): void => {
    if (name !== '' && !defined.has(name)) captured.add(name);
  };
  for (const node of graph.nodes) {
    for (const name of node.inputs) use(name);
    for (const body of node.bodies) for (const name of findCapturedNames(body)) use(name);
    for (const name of node.outputs) defined.add(name);
  }
  for (const { name } of graph.outputs) use(name);
  return captured;
}

/** Every name that a node reads: its inputs and the names that its bodies capture. */
export function findUsedNames(node: NodeProto): string[] {
  const names = node.inputs.filter((name) => name !== '');
  for (const body of node.bodies) for (const name of findCapturedNames(body)) names.push(name);
  return names;
}
