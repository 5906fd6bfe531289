/**
 * Reads the bytes of an ONNX file into `OnnxModel`: one pass, views instead of copies, every length checked before it is
 * used. Time and memory are bounded by limits on depth and on the number of things read, so that hostile bytes cost no
 * more than honest ones. What is not an ONNX model is CORRUPT.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { WIRE_BYTES, WIRE_FIXED32, WIRE_VARINT, WireReader } from '../../../proto/wire.ts';
import {
  GRAPH_ANNOTATION,
  GRAPH_INITIALIZER,
  GRAPH_INPUT,
  GRAPH_NODE,
  GRAPH_OUTPUT,
  GRAPH_SPARSE_INITIALIZER,
  GRAPH_VALUE_INFO,
  MODEL_GRAPH,
  type OnnxAttribute,
  type OnnxDim,
  type OnnxFunction,
  type OnnxGraph,
  type OnnxModel,
  type OnnxNode,
  type OnnxTensor,
  type OnnxValue,
  type RawField,
} from './onnx-model.ts';
import { type ExternalData, sizeOfDim, TensorFields } from './tensor-data.ts';

/** Bodies within bodies; real models have one or two. */
export const GRAPH_DEPTH_MAX = 32;
/** Fields, names, dims and numbers read in one model; a graph of 100,000 nodes has about two million. */
const ITEM_COUNT_MAX = 10_000_000;

const decoder = new TextDecoder('utf-8', { fatal: true, ignoreBOM: true });

/**
 * @param source what to call the model in errors
 * @param external the files beside the model; short integer constants are read from them at once
 * @throws CubeError CORRUPT saying what is wrong with the bytes
 */
export function readOnnxModel(
  bytes: Uint8Array,
  source: string,
  external?: ExternalData,
): OnnxModel {
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

class ModelReader {
  readonly #external: ExternalData | undefined;
  #items = 0;
  #depth = 0;

  constructor(external: ExternalData | undefined) {
    this.#external = external;
  }

  model(bytes: Uint8Array): OnnxModel {
    const fields: RawField[] = [];
    const functions: OnnxFunction[] = [];
    let graph: OnnxGraph | undefined;
    let irVersion = 0;
    let hasTraining = false;
    let opset = 0;
    this.#each(bytes, (reader, keep) => {
      if (reader.field === 1) irVersion = this.#int(reader);
      else if (reader.field === MODEL_GRAPH) {
        if (graph !== undefined) fail('it has two graphs');
        graph = this.#graph(view(reader));
      } else if (reader.field === 8) opset = this.#opset(view(reader)) ?? opset;
      else if (reader.field === 25) functions.push(this.#function(view(reader)));
      else {
        if (reader.field === 20) hasTraining = true;
        reader.skip();
      }
      fields.push(keep());
    });
    if (graph === undefined) fail('it has no graph');
    return { irVersion, fields, graph, functions, hasTraining, opset };
  }

  #graph(bytes: Uint8Array): OnnxGraph {
    if (++this.#depth > GRAPH_DEPTH_MAX) fail(`graphs nest deeper than ${GRAPH_DEPTH_MAX}`);
    const fields: RawField[] = [];
    const nodes: OnnxNode[] = [];
    const initializers: OnnxTensor[] = [];
    const sparseInitializers: string[] = [];
    const inputs: OnnxValue[] = [];
    const outputs: OnnxValue[] = [];
    const values: OnnxValue[] = [];
    const annotations = new Map<RawField, string>();
    this.#each(bytes, (reader, keep) => {
      const { field } = reader;
      const body = reader.wireType === WIRE_BYTES ? reader.view() : skipped(reader);
      const raw = keep();
      fields.push(raw);
      if (field === GRAPH_NODE) nodes.push(this.#node(need(body, 'node'), raw));
      else if (field === GRAPH_INITIALIZER) {
        initializers.push(this.#tensor(need(body, 'initializer'), raw));
      } else if (field === GRAPH_INPUT) inputs.push(this.#value(need(body, 'input'), raw));
      else if (field === GRAPH_OUTPUT) outputs.push(this.#value(need(body, 'output'), raw));
      else if (field === GRAPH_VALUE_INFO) values.push(this.#value(need(body, 'value_info'), raw));
      else if (field === GRAPH_ANNOTATION) {
        annotations.set(raw, this.#nameField(need(body, 'quantization_annotation'), 1));
      } else if (field === GRAPH_SPARSE_INITIALIZER) {
        sparseInitializers.push(this.#sparseName(need(body, 'sparse_initializer'), raw));
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

  #node(bytes: Uint8Array, raw: RawField): OnnxNode {
    const inputs: string[] = [];
    const outputs: string[] = [];
    const attributes = new Map<string, OnnxAttribute>();
    const bodies: OnnxGraph[] = [];
    let name = '';
    let opType = '';
    let domain = '';
    this.#each(bytes, (reader, keep) => {
      const { field } = reader;
      if (field === 1) inputs.push(text(reader));
      else if (field === 2) outputs.push(text(reader));
      else if (field === 3) name = text(reader);
      else if (field === 4) opType = text(reader);
      else if (field === 5) {
        const body = view(reader);
        this.#attribute(body, keep(), attributes, bodies);
      } else if (field === 7) domain = text(reader);
      else reader.skip();
    });
    if (opType === '') fail(`node ${JSON.stringify(name)} has no operator`);
    if (domain === 'ai.onnx') domain = '';
    return { raw, name, opType, domain, inputs, outputs, attributes, bodies };
  }

  #attribute(
    bytes: Uint8Array,
    raw: RawField,
    attributes: Map<string, OnnxAttribute>,
    bodies: OnnxGraph[],
  ): void {
    const ints: bigint[] = [];
    let name = '';
    let int: bigint | undefined;
    let float: number | undefined;
    let reference: string | undefined;
    let words: string | undefined;
    let tensor: OnnxTensor | undefined;
    this.#each(bytes, (reader, keep) => {
      const { field } = reader;
      if (field === 1) name = text(reader);
      else if (field === 2) {
        reader.expect(WIRE_FIXED32);
        float = reader.float32();
      } else if (field === 3) int = varint(reader);
      else if (field === 4) words = looseText(view(reader));
      else if (field === 5 || field === 10) {
        const body = view(reader);
        tensor = this.#tensor(body, keep());
      } else if (field === 6 || field === 11) bodies.push(this.#graph(view(reader)));
      else if (field === 8) this.#ints(reader, ints);
      else if (field === 21) reference = text(reader);
      else reader.skip();
    });
    attributes.set(name, { raw, reference, int, float, ints, text: words, tensor });
  }

  #tensor(bytes: Uint8Array, raw: RawField): OnnxTensor {
    const dims: bigint[] = [];
    const fields = new TensorFields();
    const entries = new Map<string, string>();
    let name = '';
    let elemType = 0;
    let isExternal = false;
    this.#each(bytes, (reader) => {
      const { field } = reader;
      if (field === 1) this.#ints(reader, dims);
      else if (field === 2) elemType = this.#int(reader);
      else if (field === 8) name = text(reader);
      else if (field === 13) this.#entry(view(reader), entries);
      else if (field === 14) isExternal = this.#int(reader) === 1;
      else if (!fields.take(reader)) reader.skip();
    });
    const external = isExternal ? entries : undefined;
    const shape = dims.map((dim) => sizeOfDim(dim, name));
    const tensor = { raw, name, elemType, dims: shape, data: fields.data(), external };
    const loaded = external && this.#external?.loadIntegers(tensor);
    return loaded === undefined ? tensor : { ...tensor, data: loaded };
  }

  /** A key and its value, as metadata and external data have them. */
  #entry(bytes: Uint8Array, into: Map<string, string>): void {
    let key = '';
    let value = '';
    this.#each(bytes, (reader) => {
      if (reader.field === 1) key = text(reader);
      else if (reader.field === 2) value = text(reader);
      else reader.skip();
    });
    into.set(key, value);
  }

  /** The version when it is of the standard operators. */
  #opset(bytes: Uint8Array): number | undefined {
    let domain = '';
    let version = 0;
    this.#each(bytes, (reader) => {
      if (reader.field === 1) domain = text(reader);
      else if (reader.field === 2) version = this.#int(reader);
      else reader.skip();
    });
    return domain === '' || domain === 'ai.onnx' ? version : undefined;
  }

  #value(bytes: Uint8Array, raw: RawField): OnnxValue {
    let name = '';
    let elemType = 0;
    let shape: OnnxDim[] | undefined;
    this.#each(bytes, (reader) => {
      if (reader.field === 1) name = text(reader);
      else if (reader.field === 2) {
        this.#each(view(reader), (type) => {
          if (type.field !== 1) type.skip();
          else ({ elemType, shape } = this.#tensorType(view(type)));
        });
      } else reader.skip();
    });
    return { raw, name, elemType, shape };
  }

  #tensorType(bytes: Uint8Array): { elemType: number; shape: OnnxDim[] | undefined } {
    let elemType = 0;
    let shape: OnnxDim[] | undefined;
    this.#each(bytes, (reader) => {
      if (reader.field === 1) elemType = this.#int(reader);
      else if (reader.field === 2) {
        const dims: OnnxDim[] = [];
        this.#each(view(reader), (dim) => {
          if (dim.field === 1) dims.push(this.#dim(view(dim)));
          else dim.skip();
        });
        shape = dims;
      } else reader.skip();
    });
    return { elemType, shape };
  }

  #dim(bytes: Uint8Array): OnnxDim {
    let dim: OnnxDim;
    this.#each(bytes, (reader) => {
      if (reader.field === 1) {
        const value = varint(reader);
        // Some exporters write -1 (or 0) for "dynamic".
        dim = value > 0n && value <= BigInt(Number.MAX_SAFE_INTEGER) ? Number(value) : undefined;
      } else if (reader.field === 2) {
        const symbol = text(reader);
        dim = symbol === '' ? undefined : symbol;
      } else reader.skip();
    });
    return dim;
  }

  #function(bytes: Uint8Array): OnnxFunction {
    const nodes: OnnxNode[] = [];
    const inputs: string[] = [];
    const outputs: string[] = [];
    const defaults = new Map<string, OnnxAttribute>();
    let name = '';
    let domain = '';
    let opset = 0;
    this.#each(bytes, (reader, keep) => {
      const { field } = reader;
      if (field === 1) name = text(reader);
      else if (field === 4) inputs.push(text(reader));
      else if (field === 5) outputs.push(text(reader));
      else if (field === 7) {
        const body = view(reader);
        nodes.push(this.#node(body, keep()));
      } else if (field === 9) opset = this.#opset(view(reader)) ?? opset;
      else if (field === 10) domain = text(reader);
      else if (field === 11) {
        const body = view(reader);
        this.#attribute(body, keep(), defaults, []);
      } else reader.skip();
    });
    if (domain === 'ai.onnx') domain = '';
    return { domain, name, inputs, outputs, nodes, defaults, opset };
  }

  /** The name of a sparse tensor is the name of its values. */
  #sparseName(bytes: Uint8Array, raw: RawField): string {
    let name = '';
    this.#each(bytes, (reader) => {
      if (reader.field === 1) ({ name } = this.#tensor(view(reader), raw));
      else reader.skip();
    });
    return name;
  }

  #nameField(bytes: Uint8Array, field: number): string {
    let name = '';
    this.#each(bytes, (reader) => {
      if (reader.field === field) name = text(reader);
      else reader.skip();
    });
    return name;
  }

  #int(reader: WireReader): number {
    reader.expect(WIRE_VARINT);
    return reader.int32();
  }

  /** Repeated varints, packed or not. */
  #ints(reader: WireReader, into: bigint[]): void {
    if (reader.wireType !== WIRE_BYTES) {
      into.push(varint(reader));
      return;
    }
    const packed = reader.message();
    while (packed.position < packed.end) {
      this.#count();
      into.push(packed.int64());
    }
  }

  /** Calls `visit` for each field; `keep()`, once the value is read, is the field's exact bytes. */
  #each(bytes: Uint8Array, visit: (reader: WireReader, keep: () => RawField) => void): void {
    const reader = new WireReader(bytes);
    const keep = (): RawField => ({
      field: reader.field,
      bytes: bytes.subarray(reader.fieldStart, reader.position),
    });
    while (reader.next()) {
      this.#count();
      visit(reader, keep);
    }
  }

  #count(): void {
    if (++this.#items > ITEM_COUNT_MAX) fail(`it has more than ${ITEM_COUNT_MAX} parts`);
  }
}

function fail(what: string): never {
  throw new CubeError('CORRUPT', what);
}

function need(body: Uint8Array | undefined, what: string): Uint8Array {
  return body ?? fail(`a ${what} that is not a message`);
}

function skipped(reader: WireReader): undefined {
  reader.skip();
  return undefined;
}

function view(reader: WireReader): Uint8Array {
  reader.expect(WIRE_BYTES);
  return reader.view();
}

function varint(reader: WireReader): bigint {
  reader.expect(WIRE_VARINT);
  return reader.int64();
}

/** Names must be UTF-8: a name that decodes to something else could not be written back. */
function text(reader: WireReader): string {
  const bytes = view(reader);
  try {
    return decoder.decode(bytes);
  } catch {
    return fail(`a name is not UTF-8 (at byte ${reader.position})`);
  }
}

/** Attribute strings are bytes; we only compare them with ASCII words. */
function looseText(bytes: Uint8Array): string {
  return new TextDecoder().decode(bytes.subarray(0, 256));
}
