/**
 * A view of an ONNX graph for small changes: nodes and float weights by name, and every field with
 * its exact bytes, so that unchanged fields are written back byte for byte. Field numbers:
 * onnx.proto of the ONNX project.
 */
import { CubeError } from '../lib/core/errors.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

const MODEL_GRAPH = 7;
const MODEL_OPSETS = 8;
const GRAPH_NODE = 1;
const GRAPH_INITIALIZER = 5;
const GRAPH_INPUT = 11;
const GRAPH_OUTPUT = 12;
const GRAPH_VALUE_INFO = 13;
const ATTRIBUTE_INTS = 8;
const ATTRIBUTE_TENSOR = 5;
const INT64_DATA = 7;
const INT32_DATA = 5;
const FLOAT_DATA = 4;
const RAW_DATA = 9;
const ELEM_FLOAT = 1;
const ELEM_INT32 = 6;
const ELEM_INT64 = 7;
const DIMS_MAX = 64;
/** Longer constants of integers are no axes, shapes or columns. */
const INTEGERS_MAX = 65_536;

/** A field of a message with its exact bytes. */
export interface RawField {
  readonly field: number;
  /** Tag and value. */
  readonly bytes: Uint8Array;
}

export interface GraphNode {
  /** Position of the node in the fields of the graph. */
  readonly position: number;
  readonly opType: string;
  /** '' for the standard operators. */
  readonly domain: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /** Attributes that are an integer or a float. */
  readonly numbers: ReadonlyMap<string, number>;
  /** Attributes that are lists of integers. */
  readonly lists: ReadonlyMap<string, readonly number[]>;
  /** The output of a Constant. */
  readonly constant: Constant | undefined;
  /** Whether it has graphs inside, such as the branches of If. */
  readonly hasBodies: boolean;
}

/** A float32 constant whose elements are in the graph's own file. */
export interface FloatWeight {
  readonly position: number;
  readonly name: string;
  readonly dims: readonly number[];
  readonly values: Float32Array;
}

/** A constant tensor of any type. */
export interface Constant {
  readonly dims: readonly number[];
  /** Its elements in row-major order, of short constants of int32 and int64. */
  readonly integers: readonly number[] | undefined;
}

/** An input that the graph declares. */
export interface GraphPort {
  readonly position: number;
  readonly elemType: number;
  /** Sizes, names of dynamic sizes, or undefined. */
  readonly dims: readonly (number | string | undefined)[];
}

export interface GraphEdit {
  /** NodeProto messages that replace the field at a position; an empty list removes it. */
  readonly nodes: ReadonlyMap<number, readonly Uint8Array[]>;
  /** ValueInfoProto messages that replace the input at a position. */
  readonly inputs?: ReadonlyMap<number, readonly Uint8Array[]>;
  /** Removes the declared shapes of values inside the graph, which the edit makes wrong. */
  readonly dropsShapes?: boolean;
  /** NodeProto messages before all others. */
  readonly firstNodes: readonly Uint8Array[];
  /** TensorProto messages to add. */
  readonly initializers: readonly Uint8Array[];
}

export class OnnxGraph {
  readonly #modelFields: readonly RawField[];
  readonly #graphFields: readonly RawField[];
  /** Version of the standard operators. */
  readonly opset: number;
  readonly nodes: readonly GraphNode[];
  /** Weights that requests cannot replace: constants that are not inputs too. */
  readonly weights: ReadonlyMap<string, FloatWeight>;
  /** Weights that are inputs too: the values of these inputs when a request has none. */
  readonly defaults: ReadonlyMap<string, FloatWeight>;
  readonly outputs: readonly string[];
  /** Constants by name: those of `weights` and of every other type, and the outputs of Constant. */
  readonly constants: ReadonlyMap<string, Constant>;
  readonly inputs: ReadonlyMap<string, GraphPort>;

  /** @throws CubeError CORRUPT when the bytes are not an ONNX model */
  constructor(model: Uint8Array, source: string) {
    try {
      this.#modelFields = splitFields(model);
      const graph = this.#modelFields.findLast(({ field }) => field === MODEL_GRAPH);
      this.#graphFields = splitFields(
        graph === undefined ? new Uint8Array() : getFieldValue(graph),
      );
      this.opset = readOpset(this.#modelFields);
      const list = [...this.#graphFields.entries()];
      this.nodes = list.flatMap(([position, raw]) =>
        raw.field === GRAPH_NODE ? [readNode(position, getFieldValue(raw))] : [],
      );
      const weights = list.flatMap(([position, raw]) =>
        raw.field === GRAPH_INITIALIZER ? (readWeight(position, getFieldValue(raw)) ?? []) : [],
      );
      const ports = list.flatMap(([position, raw]) =>
        raw.field === GRAPH_INPUT ? [readPort(position, getFieldValue(raw))] : [],
      );
      const inputs = new Map(ports.map(({ name, ...port }) => [name, port]));
      this.inputs = inputs;
      const tensors = list.flatMap(([, raw]) =>
        raw.field === GRAPH_INITIALIZER ? [readConstant(getFieldValue(raw))] : [],
      );
      this.constants = new Map([
        ...tensors
          .filter(({ name }) => !inputs.has(name))
          .map(({ name, constant }) => [name, constant] as const),
        ...this.nodes.flatMap(({ constant, outputs: [name = ''] }) =>
          constant === undefined ? [] : [[name, constant] as const],
        ),
      ]);
      const byName = (isInput: boolean): Map<string, FloatWeight> =>
        new Map(
          weights
            .filter(({ name }) => inputs.has(name) === isInput)
            .map((weight) => [weight.name, weight]),
        );
      this.weights = byName(false);
      this.defaults = byName(true);
      this.outputs = this.#readNames(GRAPH_OUTPUT);
    } catch (error) {
      const { message } = CubeError.from(error);
      throw new CubeError('CORRUPT', `${source} is not a valid ONNX model: ${message}`, {
        cause: error,
      });
    }
  }

  #readNames(port: number): string[] {
    const ports = this.#graphFields.filter(({ field }) => field === port);
    return ports.map((raw) => {
      const reader = new WireReader(getFieldValue(raw));
      let name = '';
      while (reader.next()) {
        if (reader.field === 1) name = reader.string();
        else reader.skip();
      }
      return name;
    });
  }

  /**
   * @param rename returns the name to write for the name of a value
   * @returns the NodeProto of a node with other names of inputs and outputs
   */
  renameValues(node: GraphNode, rename: (name: string) => string): Uint8Array {
    const raw = this.#graphFields[node.position];
    if (raw === undefined) throw new Error(`no node at position ${node.position}`);
    const writer = new WireWriter(raw.bytes.length + 256);
    for (const input of node.inputs) writer.string(1, rename(input));
    for (const output of node.outputs) writer.string(2, rename(output));
    for (const { field, bytes } of splitFields(getFieldValue(raw)))
      if (field > 2) writer.raw(bytes);
    return writer.finish();
  }

  write(edit: GraphEdit): Uint8Array {
    const { nodes, firstNodes, initializers, inputs, dropsShapes } = edit;
    const size = initializers.reduce((sum, { length }) => sum + length + 16, 4096);
    const graph = new WireWriter(size);
    for (const node of firstNodes) graph.bytes(GRAPH_NODE, node);
    for (const [position, { field, bytes }] of this.#graphFields.entries()) {
      if (dropsShapes && field === GRAPH_VALUE_INFO) continue;
      const ports = inputs?.get(position);
      const replacement = nodes.get(position);
      if (ports !== undefined) for (const port of ports) graph.bytes(GRAPH_INPUT, port);
      else if (replacement === undefined) graph.raw(bytes);
      else for (const node of replacement) graph.bytes(GRAPH_NODE, node);
    }
    for (const tensor of initializers) graph.bytes(GRAPH_INITIALIZER, tensor);
    const writer = new WireWriter(graph.length + 4096);
    for (const { field, bytes } of this.#modelFields) {
      if (field === MODEL_GRAPH) writer.bytes(MODEL_GRAPH, graph.finish());
      else writer.raw(bytes);
    }
    return writer.finish();
  }
}

/** @throws CubeError when the bytes are not a message */
export function splitFields(message: Uint8Array): RawField[] {
  const reader = new WireReader(message);
  const fields: RawField[] = [];
  while (reader.next()) {
    reader.skip();
    const bytes = message.subarray(reader.fieldStart, reader.position);
    fields.push({ field: reader.field, bytes });
  }
  return fields;
}

/** The value of a field that is a message or text. @throws CubeError for other fields */
export function getFieldValue({ bytes }: RawField): Uint8Array {
  const reader = new WireReader(bytes);
  reader.next();
  reader.expect(WIRE_BYTES);
  return reader.view();
}

function readOpset(fields: readonly RawField[]): number {
  for (const raw of fields.filter(({ field }) => field === MODEL_OPSETS)) {
    const reader = new WireReader(getFieldValue(raw));
    let domain = '';
    let version = 0;
    while (reader.next()) {
      if (reader.field === 1) domain = reader.string();
      else if (reader.field === 2) version = reader.uint32();
      else reader.skip();
    }
    if (domain === '' || domain === 'ai.onnx') return version;
  }
  return 0;
}

function readNode(position: number, bytes: Uint8Array): GraphNode {
  const reader = new WireReader(bytes);
  const inputs: string[] = [];
  const outputs: string[] = [];
  const numbers = new Map<string, number>();
  const lists = new Map<string, readonly number[]>();
  let constant: Constant | undefined;
  let [opType, domain, hasBodies] = ['', '', false];
  while (reader.next()) {
    if (reader.field === 1) inputs.push(reader.string());
    else if (reader.field === 2) outputs.push(reader.string());
    else if (reader.field === 4) opType = reader.string();
    else if (reader.field === 7) domain = reader.string();
    else if (reader.field === 5) {
      const attribute = readAttribute(reader.message());
      if (attribute.number !== undefined) numbers.set(attribute.name, attribute.number);
      if (attribute.list.length > 0) lists.set(attribute.name, attribute.list);
      if (attribute.name === 'value') constant = attribute.tensor;
      hasBodies ||= attribute.isGraph;
    } else reader.skip();
  }
  const standard = domain === 'ai.onnx' ? '' : domain;
  if (opType !== 'Constant') constant = undefined;
  return {
    position,
    opType,
    domain: standard,
    inputs,
    outputs,
    numbers,
    lists,
    constant,
    hasBodies,
  };
}

interface Attribute {
  readonly name: string;
  readonly number: number | undefined;
  readonly list: readonly number[];
  readonly tensor: Constant | undefined;
  readonly isGraph: boolean;
}

function readAttribute(reader: WireReader): Attribute {
  let name = '';
  let number: number | undefined;
  const list: number[] = [];
  let tensor: Constant | undefined;
  let isGraph = false;
  while (reader.next()) {
    if (reader.field === 1) name = reader.string();
    else if (reader.field === 2) number = reader.float32();
    else if (reader.field === 3) number = Number(reader.int64());
    else if (reader.field === ATTRIBUTE_INTS) readIntegers(reader, list, INTEGERS_MAX);
    else if (reader.field === ATTRIBUTE_TENSOR) tensor = readConstant(reader.view()).constant;
    else {
      isGraph ||= reader.field === 6 || reader.field === 11;
      reader.skip();
    }
  }
  return { name, number, list, tensor, isGraph };
}

/** @returns undefined for other types, and for elements in another file */
function readWeight(position: number, bytes: Uint8Array): FloatWeight | undefined {
  const reader = new WireReader(bytes);
  const dims: number[] = [];
  let [name, elemType] = ['', 0];
  let data: Uint8Array | undefined;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (field === 1) readDims(reader, dims);
    else if (field === 2) elemType = reader.uint32();
    else if (field === 8) name = reader.string();
    else if (wireType === WIRE_BYTES && (field === RAW_DATA || field === FLOAT_DATA)) {
      data = reader.view();
    } else reader.skip();
  }
  const count = dims.reduce((product, dim) => product * dim, 1);
  if (elemType !== ELEM_FLOAT || data?.length !== 4 * count) return undefined;
  // A copy, because a view of floats must begin at a multiple of four bytes.
  const values = new Float32Array(new Uint8Array(data).buffer);
  return { position, name, dims, values };
}

/** Reads one field of a repeated integer: a single value, or packed values. */
function readIntegers(reader: WireReader, values: number[], most: number): void {
  if (reader.wireType === WIRE_VARINT) values.push(Number(reader.int64()));
  else {
    const packed = reader.message();
    while (packed.position < packed.end) values.push(Number(packed.int64()));
  }
  if (values.length > most) throw new CubeError('CORRUPT', `a list has over ${most} integers`);
}

function readDims(reader: WireReader, dims: number[]): void {
  readIntegers(reader, dims, DIMS_MAX);
}

function readConstant(bytes: Uint8Array): { name: string; constant: Constant } {
  const reader = new WireReader(bytes);
  const dims: number[] = [];
  const listed: number[] = [];
  let [name, elemType] = ['', 0];
  let raw: Uint8Array | undefined;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (field === 1) readDims(reader, dims);
    else if (field === 2) elemType = reader.uint32();
    else if (field === 8) name = reader.string();
    else if (field === RAW_DATA && wireType === WIRE_BYTES) raw = reader.view();
    else if (field === INT64_DATA || field === INT32_DATA) {
      if (elemType === ELEM_FLOAT) reader.skip();
      else readIntegers(reader, listed, Number.POSITIVE_INFINITY);
    } else reader.skip();
  }
  const count = dims.reduce((product, dim) => product * dim, 1);
  const integers = raw === undefined ? listed : readRawIntegers(raw, elemType);
  const isShort = count <= INTEGERS_MAX && integers?.length === count;
  return { name, constant: { dims, integers: isShort ? integers : undefined } };
}

/** @returns undefined for other types than int32 and int64 */
function readRawIntegers(raw: Uint8Array, elemType: number): number[] | undefined {
  if (raw.length > 8 * INTEGERS_MAX) return undefined;
  const { buffer } = new Uint8Array(raw);
  if (elemType === ELEM_INT64 && raw.length % 8 === 0) {
    return Array.from(new BigInt64Array(buffer), Number);
  }
  return elemType === ELEM_INT32 && raw.length % 4 === 0
    ? Array.from(new Int32Array(buffer))
    : undefined;
}

function readPort(position: number, bytes: Uint8Array): GraphPort & { name: string } {
  const reader = new WireReader(bytes);
  let [name, elemType] = ['', 0];
  const dims: (number | string | undefined)[] = [];
  while (reader.next()) {
    if (reader.field === 1) name = reader.string();
    else if (reader.field === 2) {
      const type = reader.message();
      while (type.next()) {
        if (type.field !== 1) {
          type.skip();
          continue;
        }
        const tensor = type.message();
        while (tensor.next()) {
          if (tensor.field === 1) elemType = tensor.uint32();
          else if (tensor.field === 2) readPortDims(tensor.message(), dims);
          else tensor.skip();
        }
      }
    } else reader.skip();
  }
  return { position, name, elemType, dims };
}

function readPortDims(shape: WireReader, dims: (number | string | undefined)[]): void {
  while (shape.next()) {
    if (shape.field !== 1) {
      shape.skip();
      continue;
    }
    const dim = shape.message();
    let size: number | string | undefined;
    while (dim.next()) {
      if (dim.field === 1) size = Number(dim.int64());
      else if (dim.field === 2) size = dim.string();
      else dim.skip();
    }
    dims.push(size);
    if (dims.length > DIMS_MAX) {
      throw new CubeError('CORRUPT', `an input has over ${DIMS_MAX} dimensions`);
    }
  }
}
