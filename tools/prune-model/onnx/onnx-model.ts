/**
 * What prune-model knows of an ONNX model: names and types decoded, everything else as the exact bytes it came in.
 * A field that is not touched is written back byte for byte, fields that we do not know included.
 * Field numbers: onnx.proto of the ONNX project.
 */

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

export function elemName(elemType: number): string {
  return ELEM_NAMES[elemType] ?? `element type ${elemType}`;
}

/** One field of a message: `bytes` is tag and value as they stood in the file. */
export interface RawField {
  readonly field: number;
  readonly bytes: Uint8Array;
}

export interface OnnxModel {
  readonly irVersion: number;
  /** In file order; the graph is the one with field number MODEL_GRAPH. */
  readonly fields: readonly RawField[];
  readonly graph: OnnxGraph;
  readonly functions: readonly OnnxFunction[];
  readonly hasTraining: boolean;
  /** Versions of the standard operators that the model uses; 0 when it does not say. */
  readonly opset: number;
}

export const MODEL_GRAPH = 7;

export interface OnnxGraph {
  readonly fields: readonly RawField[];
  readonly nodes: readonly OnnxNode[];
  readonly initializers: readonly OnnxTensor[];
  /** Names of sparse initializers: constants that we never read. */
  readonly sparseInitializers: readonly string[];
  readonly inputs: readonly OnnxValue[];
  readonly outputs: readonly OnnxValue[];
  readonly values: readonly OnnxValue[];
  /** Tensor names of quantization annotations, by field. */
  readonly annotations: ReadonlyMap<RawField, string>;
}

export const GRAPH_NODE = 1;
export const GRAPH_INITIALIZER = 5;
export const GRAPH_INPUT = 11;
export const GRAPH_OUTPUT = 12;
export const GRAPH_VALUE_INFO = 13;
export const GRAPH_ANNOTATION = 14;
export const GRAPH_SPARSE_INITIALIZER = 15;

export interface OnnxNode {
  readonly raw: RawField;
  readonly name: string;
  readonly opType: string;
  /** "" for the standard operators, also when the file says "ai.onnx". */
  readonly domain: string;
  /** "" is an optional input left out. */
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly attributes: ReadonlyMap<string, OnnxAttribute>;
  /** Graphs inside attributes: bodies of If, Loop, Scan. */
  readonly bodies: readonly OnnxGraph[];
}

export interface OnnxAttribute {
  readonly raw: RawField;
  /** Of a node in a function: the attribute of the call that stands here. */
  readonly reference: string | undefined;
  readonly int: bigint | undefined;
  readonly float: number | undefined;
  readonly ints: readonly bigint[];
  readonly text: string | undefined;
  readonly tensor: OnnxTensor | undefined;
}

export interface OnnxTensor {
  readonly raw: RawField;
  readonly name: string;
  readonly elemType: number;
  readonly dims: readonly number[];
  /** Bytes of raw_data, or of the field that holds this element type; undefined when there is neither. */
  readonly data: TensorData | undefined;
  /** Set when the data is in another file; the entries as they stand in the model. */
  readonly external: ReadonlyMap<string, string> | undefined;
}

/** `packed`: little-endian elements. `varints`: packed or repeated varints of int32_data or int64_data. */
export interface TensorData {
  readonly encoding: 'packed' | 'varints';
  readonly pieces: readonly Uint8Array[];
}

/** A dim is a number, a symbol, or undefined when the model does not say. */
export type OnnxDim = number | string | undefined;

export interface OnnxValue {
  readonly raw: RawField;
  readonly name: string;
  /** 0 when the value is not a tensor or has no type. */
  readonly elemType: number;
  /** Undefined: not even the rank is known. */
  readonly shape: readonly OnnxDim[] | undefined;
}

export interface OnnxFunction {
  readonly domain: string;
  readonly name: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  readonly nodes: readonly OnnxNode[];
  /** Attributes that a call may leave out. */
  readonly defaults: ReadonlyMap<string, OnnxAttribute>;
  /** Versions of the standard operators that its nodes use; 0 when it does not say. */
  readonly opset: number;
}

/** A node as a message should name it. */
export function describeNode(node: OnnxNode): string {
  const op = node.domain === '' ? node.opType : `${node.domain}.${node.opType}`;
  if (node.name !== '') return `node ${JSON.stringify(node.name)} (${op})`;
  const output = node.outputs.find((name) => name !== '');
  return output === undefined
    ? `a nameless ${op} node`
    : `the ${op} node that makes ${JSON.stringify(output)}`;
}

/** Names of outer values that a graph's nodes, or its outputs, take from the graphs around it. */
export function capturedNames(graph: OnnxGraph): Set<string> {
  const defined = new Set<string>(graph.sparseInitializers);
  for (const { name } of [...graph.inputs, ...graph.initializers]) defined.add(name);
  const captured = new Set<string>();
  const use = (name: string): void => {
    if (name !== '' && !defined.has(name)) captured.add(name);
  };
  for (const node of graph.nodes) {
    for (const name of node.inputs) use(name);
    for (const body of node.bodies) for (const name of capturedNames(body)) use(name);
    for (const name of node.outputs) defined.add(name);
  }
  for (const { name } of graph.outputs) use(name);
  return captured;
}

/** Every name a node reads: its inputs and what its bodies capture. */
export function usedNames(node: OnnxNode): string[] {
  const names = node.inputs.filter((name) => name !== '');
  for (const body of node.bodies) for (const name of capturedNames(body)) names.push(name);
  return names;
}
