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
const FLOAT_DATA = 4;
const RAW_DATA = 9;
const ELEM_FLOAT = 1;
const DIMS_MAX = 64;

interface RawField {
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

export interface GraphEdit {
  /** NodeProto messages that replace the field at a position; an empty list removes it. */
  readonly nodes: ReadonlyMap<number, readonly Uint8Array[]>;
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

  /** @throws CubeError CORRUPT when the bytes are not an ONNX model */
  constructor(model: Uint8Array, source: string) {
    try {
      this.#modelFields = splitFields(model);
      const graph = this.#modelFields.findLast(({ field }) => field === MODEL_GRAPH);
      this.#graphFields = splitFields(graph === undefined ? new Uint8Array() : getValue(graph));
      this.opset = readOpset(this.#modelFields);
      const list = [...this.#graphFields.entries()];
      this.nodes = list.flatMap(([position, raw]) =>
        raw.field === GRAPH_NODE ? [readNode(position, getValue(raw))] : [],
      );
      const weights = list.flatMap(([position, raw]) =>
        raw.field === GRAPH_INITIALIZER ? (readWeight(position, getValue(raw)) ?? []) : [],
      );
      const inputs = new Set(this.#readNames(GRAPH_INPUT));
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
      const reader = new WireReader(getValue(raw));
      let name = '';
      while (reader.next()) {
        if (reader.field === 1) name = reader.string();
        else reader.skip();
      }
      return name;
    });
  }

  write({ nodes, firstNodes, initializers }: GraphEdit): Uint8Array {
    const size = initializers.reduce((sum, { length }) => sum + length + 16, 4096);
    const graph = new WireWriter(size);
    for (const node of firstNodes) graph.bytes(GRAPH_NODE, node);
    for (const [position, { bytes }] of this.#graphFields.entries()) {
      const replacement = nodes.get(position);
      if (replacement === undefined) graph.raw(bytes);
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

function splitFields(message: Uint8Array): RawField[] {
  const reader = new WireReader(message);
  const fields: RawField[] = [];
  while (reader.next()) {
    reader.skip();
    const bytes = message.subarray(reader.fieldStart, reader.position);
    fields.push({ field: reader.field, bytes });
  }
  return fields;
}

function getValue({ bytes }: RawField): Uint8Array {
  const reader = new WireReader(bytes);
  reader.next();
  reader.expect(WIRE_BYTES);
  return reader.view();
}

function readOpset(fields: readonly RawField[]): number {
  for (const raw of fields.filter(({ field }) => field === MODEL_OPSETS)) {
    const reader = new WireReader(getValue(raw));
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
  let [opType, domain, hasBodies] = ['', '', false];
  while (reader.next()) {
    if (reader.field === 1) inputs.push(reader.string());
    else if (reader.field === 2) outputs.push(reader.string());
    else if (reader.field === 4) opType = reader.string();
    else if (reader.field === 7) domain = reader.string();
    else if (reader.field === 5) {
      const attribute = readAttribute(reader.message());
      if (attribute.number !== undefined) numbers.set(attribute.name, attribute.number);
      hasBodies ||= attribute.isGraph;
    } else reader.skip();
  }
  const standard = domain === 'ai.onnx' ? '' : domain;
  return { position, opType, domain: standard, inputs, outputs, numbers, hasBodies };
}

interface Attribute {
  readonly name: string;
  readonly number: number | undefined;
  readonly isGraph: boolean;
}

function readAttribute(reader: WireReader): Attribute {
  let name = '';
  let number: number | undefined;
  let isGraph = false;
  while (reader.next()) {
    if (reader.field === 1) name = reader.string();
    else if (reader.field === 2) number = reader.float32();
    else if (reader.field === 3) number = Number(reader.int64());
    else {
      isGraph ||= reader.field === 6 || reader.field === 11;
      reader.skip();
    }
  }
  return { name, number, isGraph };
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

function readDims(reader: WireReader, dims: number[]): void {
  if (reader.wireType === WIRE_VARINT) dims.push(Number(reader.int64()));
  else {
    const packed = reader.message();
    while (packed.position < packed.end) dims.push(Number(packed.int64()));
  }
  if (dims.length > DIMS_MAX) {
    throw new CubeError('CORRUPT', `a tensor has over ${DIMS_MAX} dimensions`);
  }
}
