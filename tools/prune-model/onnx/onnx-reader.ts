/**
 * Reads the bytes of an ONNX file into a `ModelProto`: one pass, views instead of copies, every
 * length checked before it is used. Limits on depth and on the number of items bound time and
 * memory for hostile bytes. Bytes that are not an ONNX model are CORRUPT.
 */

import { CubeError } from '../../../lib/core/errors.ts';
import { WIRE_FIXED32, WIRE_VARINT, type WireReader } from '../../../proto/wire.ts';
import type { Dim } from '../cut/cut-model.ts';
import {
  FieldReader,
  failCorrupt,
  type RawField,
  readBytes,
  readName,
  readVarint,
} from '../cut/protobuf-fields.ts';
import {
  type AttributeProto,
  type FunctionProto,
  GRAPH_ANNOTATION,
  GRAPH_INITIALIZER,
  GRAPH_INPUT,
  GRAPH_NODE,
  GRAPH_OUTPUT,
  GRAPH_SPARSE_INITIALIZER,
  GRAPH_VALUE_INFO,
  type GraphProto,
  MODEL_GRAPH,
  type ModelProto,
  type NodeProto,
  type TensorProto,
  type ValueInfo,
} from './onnx-model.ts';
import { checkDim, type ExternalData, TensorDataCollector } from './tensor-data.ts';

/** Maximum nesting of bodies; real models have one or two levels. */
export const GRAPH_DEPTH_MAX = 32;

/**
 * @param source names the model in errors
 * @param external files with the model's data; short integer constants are read from them at once
 * @throws CubeError CORRUPT with what is wrong with the bytes
 */
export function readOnnxModel(
  bytes: Uint8Array,
  source: string,
  external?: ExternalData,
): ModelProto {
  if (bytes.length === 0) throw new CubeError('CORRUPT', `${source} is empty, not an ONNX model`);
  try {
    return new ModelReader(external).model(bytes);
  } catch (error) {
    if (!(error instanceof CubeError) || error.code === 'UNSUPPORTED') throw error;
    throw new CubeError('CORRUPT', `${source} is not a valid ONNX model: ${error.message}`, {
      cause: error,
    });
  }
}

const GRAPH_MESSAGES: ReadonlySet<number> = new Set([
  GRAPH_NODE,
  GRAPH_INITIALIZER,
  GRAPH_INPUT,
  GRAPH_OUTPUT,
  GRAPH_VALUE_INFO,
  GRAPH_ANNOTATION,
  GRAPH_SPARSE_INITIALIZER,
]);
const EMPTY_MESSAGE = new Uint8Array(0);

class ModelReader {
  readonly #external: ExternalData | undefined;
  readonly #fields = new FieldReader();
  #depth = 0;

  constructor(external: ExternalData | undefined) {
    this.#external = external;
  }

  model(bytes: Uint8Array): ModelProto {
    const fields: RawField[] = [];
    const functions: FunctionProto[] = [];
    let graph: GraphProto | undefined;
    let irVersion = 0;
    let hasTraining = false;
    let opset = 0;
    this.#fields.forEachField(bytes, (reader, keep) => {
      if (reader.field === 1) irVersion = readInt32(reader);
      else if (reader.field === MODEL_GRAPH) {
        if (graph !== undefined) failCorrupt('it has two graphs');
        graph = this.#graph(readBytes(reader));
      } else if (reader.field === 8) opset = this.#opset(readBytes(reader)) ?? opset;
      else if (reader.field === 25) functions.push(this.#function(readBytes(reader)));
      else {
        if (reader.field === 20) hasTraining = true;
        reader.skip();
      }
      fields.push(keep());
    });
    if (graph === undefined) failCorrupt('it has no graph');
    return { irVersion, fields, graph, functions, hasTraining, opset };
  }

  #graph(bytes: Uint8Array): GraphProto {
    if (++this.#depth > GRAPH_DEPTH_MAX) failCorrupt(`graphs nest deeper than ${GRAPH_DEPTH_MAX}`);
    const fields: RawField[] = [];
    const nodes: NodeProto[] = [];
    const initializers: TensorProto[] = [];
    const sparseInitializers: string[] = [];
    const inputs: ValueInfo[] = [];
    const outputs: ValueInfo[] = [];
    const values: ValueInfo[] = [];
    const annotations = new Map<RawField, string>();
    this.#fields.forEachField(bytes, (reader, keep) => {
      const { field } = reader;
      const body = GRAPH_MESSAGES.has(field) ? readBytes(reader) : EMPTY_MESSAGE;
      const raw = keep();
      fields.push(raw);
      if (field === GRAPH_NODE) nodes.push(this.#node(body, raw));
      else if (field === GRAPH_INITIALIZER) initializers.push(this.#tensor(body, raw));
      else if (field === GRAPH_INPUT) inputs.push(this.#value(body, raw));
      else if (field === GRAPH_OUTPUT) outputs.push(this.#value(body, raw));
      else if (field === GRAPH_VALUE_INFO) values.push(this.#value(body, raw));
      else if (field === GRAPH_ANNOTATION) annotations.set(raw, this.#annotatedTensor(body));
      else if (field === GRAPH_SPARSE_INITIALIZER) {
        sparseInitializers.push(this.#sparseName(body, raw));
      }
    });
    this.#depth--;
    return {
      fields,
      nodes,
      initializers,
      sparseInitializers,
      inputs,
      outputs,
      values,
      annotations,
    };
  }

  #node(bytes: Uint8Array, raw: RawField): NodeProto {
    const inputs: string[] = [];
    const outputs: string[] = [];
    const attributes = new Map<string, AttributeProto>();
    const bodies: GraphProto[] = [];
    let name = '';
    let opType = '';
    let domain = '';
    this.#fields.forEachField(bytes, (reader, keep) => {
      const { field } = reader;
      if (field === 1) inputs.push(readName(reader));
      else if (field === 2) outputs.push(readName(reader));
      else if (field === 3) name = readName(reader);
      else if (field === 4) opType = readName(reader);
      else if (field === 5) {
        const body = readBytes(reader);
        this.#attribute(body, keep(), attributes, bodies);
      } else if (field === 7) domain = readName(reader);
      else reader.skip();
    });
    if (opType === '') failCorrupt(`node ${JSON.stringify(name)} has no operator`);
    if (domain === 'ai.onnx') domain = '';
    return { raw, name, opType, domain, inputs, outputs, attributes, bodies };
  }

  #attribute(
    bytes: Uint8Array,
    raw: RawField,
    attributes: Map<string, AttributeProto>,
    bodies: GraphProto[],
  ): void {
    const ints: bigint[] = [];
    let name = '';
    let int: bigint | undefined;
    let float: number | undefined;
    let reference: string | undefined;
    let words: string | undefined;
    let tensor: TensorProto | undefined;
    this.#fields.forEachField(bytes, (reader, keep) => {
      const { field } = reader;
      if (field === 1) name = readName(reader);
      else if (field === 2) {
        reader.expect(WIRE_FIXED32);
        float = reader.float32();
      } else if (field === 3) int = readVarint(reader);
      else if (field === 4) words = readLooseText(readBytes(reader));
      else if (field === 5 || field === 10) {
        const body = readBytes(reader);
        tensor = this.#tensor(body, keep());
      } else if (field === 6 || field === 11) bodies.push(this.#graph(readBytes(reader)));
      else if (field === 8) this.#fields.readIntegers(reader, (value) => ints.push(value));
      else if (field === 21) reference = readName(reader);
      else reader.skip();
    });
    attributes.set(name, { raw, reference, int, float, ints, text: words, tensor });
  }

  #tensor(bytes: Uint8Array, raw: RawField): TensorProto {
    const dims: bigint[] = [];
    const fields = new TensorDataCollector();
    const entries = new Map<string, string>();
    let name = '';
    let elemType = 0;
    let isExternal = false;
    this.#fields.forEachField(bytes, (reader) => {
      const { field } = reader;
      if (field === 1) this.#fields.readIntegers(reader, (value) => dims.push(value));
      else if (field === 2) elemType = readInt32(reader);
      else if (field === 8) name = readName(reader);
      else if (field === 13) this.#entry(readBytes(reader), entries);
      else if (field === 14) isExternal = readInt32(reader) === 1;
      else if (!fields.collect(reader)) reader.skip();
    });
    const external = isExternal ? entries : undefined;
    const shape = dims.map((dim) => checkDim(dim, name));
    const tensor = { raw, name, elemType, dims: shape, data: fields.getData(), external };
    const loaded = external && this.#external?.loadIntegers(tensor);
    return loaded === undefined ? tensor : { ...tensor, data: loaded };
  }

  /** Reads one key and value of external_data. */
  #entry(bytes: Uint8Array, into: Map<string, string>): void {
    let key = '';
    let value = '';
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) key = readName(reader);
      else if (reader.field === 2) value = readName(reader);
      else reader.skip();
    });
    into.set(key, value);
  }

  /** @returns the version; undefined for operators of other domains */
  #opset(bytes: Uint8Array): number | undefined {
    let domain = '';
    let version = 0;
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) domain = readName(reader);
      else if (reader.field === 2) version = readInt32(reader);
      else reader.skip();
    });
    return domain === '' || domain === 'ai.onnx' ? version : undefined;
  }

  #value(bytes: Uint8Array, raw: RawField): ValueInfo {
    let name = '';
    let elemType = 0;
    let shape: Dim[] | undefined;
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) name = readName(reader);
      else if (reader.field === 2) {
        this.#fields.forEachField(readBytes(reader), (type) => {
          if (type.field !== 1) type.skip();
          else ({ elemType, shape } = this.#tensorType(readBytes(type)));
        });
      } else reader.skip();
    });
    return { raw, name, elemType, shape };
  }

  #tensorType(bytes: Uint8Array): { elemType: number; shape: Dim[] | undefined } {
    let elemType = 0;
    let shape: Dim[] | undefined;
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) elemType = readInt32(reader);
      else if (reader.field === 2) {
        const dims: Dim[] = [];
        this.#fields.forEachField(readBytes(reader), (dim) => {
          if (dim.field === 1) dims.push(this.#dim(readBytes(dim)));
          else dim.skip();
        });
        shape = dims;
      } else reader.skip();
    });
    return { elemType, shape };
  }

  #dim(bytes: Uint8Array): Dim {
    let dim: Dim;
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) {
        const value = readVarint(reader);
        // Some exporters write -1 or 0 for a dynamic dim.
        dim = value > 0n && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : undefined;
      } else if (reader.field === 2) {
        const symbol = readName(reader);
        dim = symbol === '' ? undefined : symbol;
      } else reader.skip();
    });
    return dim;
  }

  #function(bytes: Uint8Array): FunctionProto {
    const nodes: NodeProto[] = [];
    const inputs: string[] = [];
    const outputs: string[] = [];
    const defaults = new Map<string, AttributeProto>();
    let name = '';
    let domain = '';
    let opset = 0;
    this.#fields.forEachField(bytes, (reader, keep) => {
      const { field } = reader;
      if (field === 1) name = readName(reader);
      else if (field === 4) inputs.push(readName(reader));
      else if (field === 5) outputs.push(readName(reader));
      else if (field === 7) {
        const body = readBytes(reader);
        nodes.push(this.#node(body, keep()));
      } else if (field === 9) opset = this.#opset(readBytes(reader)) ?? opset;
      else if (field === 10) domain = readName(reader);
      else if (field === 11) {
        const body = readBytes(reader);
        this.#attribute(body, keep(), defaults, []);
      } else reader.skip();
    });
    if (domain === 'ai.onnx') domain = '';
    return { domain, name, inputs, outputs, nodes, defaults, opset };
  }

  /** The name of a sparse tensor is the name of its values. */
  #sparseName(bytes: Uint8Array, raw: RawField): string {
    let name = '';
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) ({ name } = this.#tensor(readBytes(reader), raw));
      else reader.skip();
    });
    return name;
  }

  #annotatedTensor(bytes: Uint8Array): string {
    let name = '';
    this.#fields.forEachField(bytes, (reader) => {
      if (reader.field === 1) name = readName(reader);
      else reader.skip();
    });
    return name;
  }
}

function readInt32(reader: WireReader): number {
  reader.expect(WIRE_VARINT);
  return reader.int32();
}

/** Attribute strings are bytes; they are only compared with short ASCII words. */
function readLooseText(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes.subarray(0, 256));
}
