/**
 * Writes an ONNX model whose graph was cut: kept fields byte for byte, removed ones left out, new ones beside their kind. Of a node
 * whose body changed, only the bytes of that body are new; of a tensor in another file, only where it stands there.
 */
import { WIRE_BYTES, WireReader, WireWriter } from '../../../proto/wire.ts';
import type { Dim } from '../cut-model.ts';
import {
  ELEM_FLOAT,
  ELEM_INT64,
  GRAPH_INITIALIZER,
  GRAPH_INPUT,
  GRAPH_NODE,
  GRAPH_OUTPUT,
  MODEL_GRAPH,
  type OnnxGraph,
  type OnnxModel,
  type OnnxNode,
  type OnnxTensor,
  type OnnxValue,
  type RawField,
} from './onnx-model.ts';

/** What becomes of a graph: which of its fields stay, and what is new. */
export interface GraphEdit {
  /** Fields of the graph, and of bodies in it, that go. */
  readonly removed: ReadonlySet<RawField>;
  /** New nodes, written in the place of one that went. */
  readonly replacements: ReadonlyMap<RawField, readonly NewNode[]>;
  /** Nodes with bodies in which something is removed or replaced. */
  readonly changed: ReadonlySet<RawField>;
  readonly newInputs: readonly NewInput[];
  /** Values that become outputs. */
  readonly newOutputs: readonly OnnxValue[];
}

export interface NewNode {
  readonly opType: string;
  readonly inputs: readonly string[];
  readonly outputs: readonly string[];
  /** A number is an INT, a list INTS. */
  readonly attributes: Readonly<Record<string, number | readonly number[]>>;
  /** Of a Constant: its one element. */
  readonly value?: number;
}

/** A new float32 input of the graph. */
interface NewInput {
  readonly name: string;
  readonly shape: readonly Dim[];
}

/** Where a tensor whose data is in another file has it now. */
export interface NewPlace {
  readonly location: string;
  readonly offset: number;
  readonly length: number;
}

/** @param places of tensors that are kept and whose data is in another file. @returns the whole file */
export function writeOnnxModel(
  model: OnnxModel,
  edit: GraphEdit,
  places: ReadonlyMap<RawField, NewPlace>,
): Uint8Array {
  const graph = new GraphWriter(edit, places).graph(model.graph, edit);
  const total = model.fields.reduce((sum, field) => sum + field.bytes.length, 0);
  const writer = new WireWriter(Math.min(total, graph.length + 65_536));
  for (const { field, bytes } of model.fields) {
    if (field === MODEL_GRAPH) writer.bytes(MODEL_GRAPH, graph);
    else writer.raw(bytes);
  }
  return writer.finish();
}

/** Tensors in other files that the edited graph keeps, bodies included. */
export function keptExternal(model: OnnxModel, { removed, replacements }: GraphEdit): OnnxTensor[] {
  const kept: OnnxTensor[] = [];
  const visit = (graph: OnnxGraph): void => {
    const tensors = graph.initializers.filter(({ raw }) => !removed.has(raw));
    for (const node of graph.nodes) {
      if (removed.has(node.raw) || replacements.has(node.raw)) continue;
      for (const { tensor } of node.attributes.values()) if (tensor) tensors.push(tensor);
      node.bodies.forEach(visit);
    }
    kept.push(...tensors.filter(({ external }) => external !== undefined));
  };
  visit(model.graph);
  return kept;
}

class GraphWriter {
  readonly #edit: GraphEdit;
  readonly #places: ReadonlyMap<RawField, NewPlace>;

  constructor(edit: GraphEdit, places: ReadonlyMap<RawField, NewPlace>) {
    this.#edit = edit;
    this.#places = places;
  }

  graph(
    { fields, nodes, initializers }: OnnxGraph,
    ports: Pick<GraphEdit, 'newInputs' | 'newOutputs'>,
  ): Uint8Array {
    const { removed, replacements } = this.#edit;
    const nodeOf = new Map(nodes.map((node) => [node.raw, node]));
    const tensorOf = new Map(initializers.map((tensor) => [tensor.raw, tensor]));
    const kept = fields.filter((field) => !removed.has(field));
    const writer = new WireWriter(kept.reduce((sum, field) => sum + field.bytes.length, 4096));
    const lastInput = fields.findLastIndex((field) => field.field === GRAPH_INPUT);
    const lastOutput = fields.findLastIndex((field) => field.field === GRAPH_OUTPUT);
    fields.forEach((field, i) => {
      const replaced = replacements.get(field);
      if (replaced !== undefined) {
        for (const node of replaced) writer.message(GRAPH_NODE, (inner) => encodeNode(inner, node));
      } else if (!removed.has(field)) {
        const tensor = tensorOf.get(field);
        const node = nodeOf.get(field);
        if (tensor !== undefined) writer.raw(this.#tensor(tensor, GRAPH_INITIALIZER));
        else writer.raw(node === undefined ? field.bytes : this.#node(node));
      }
      if (i === lastInput) {
        for (const input of ports.newInputs) {
          writer.message(GRAPH_INPUT, (value) => encodeInput(value, input));
        }
      }
      if (i === lastOutput) {
        for (const output of ports.newOutputs) writer.bytes(GRAPH_OUTPUT, outputBytes(output));
      }
    });
    return writer.finish();
  }

  #node(node: OnnxNode): Uint8Array {
    const tensors = [...node.attributes.values()].map(({ tensor }) => tensor);
    const hasMoved = tensors.some((tensor) => tensor !== undefined && this.#places.has(tensor.raw));
    if (!hasMoved && !this.#edit.changed.has(node.raw) && !this.#holdsMoved(node))
      return node.raw.bytes;
    let body = 0;
    const bytes = rewriteFields(payload(node.raw.bytes), (field, raw) => {
      if (field !== 5) return raw;
      return encloseField(
        5,
        rewriteFields(payload(raw), (inner, value) => {
          if (inner === 6 || inner === 11) {
            return encloseField(inner, this.graph(node.bodies[body++]!, NO_PORTS));
          }
          const tensor = tensors.find((t) => t !== undefined && sameBytes(t.raw.bytes, value));
          return inner === 5 && tensor !== undefined ? this.#tensor(tensor, 5) : value;
        }),
      );
    });
    return encloseField(GRAPH_NODE, bytes);
  }

  /** Whether a body, at any depth, has a tensor that moved. */
  #holdsMoved({ bodies }: OnnxNode): boolean {
    return (
      this.#places.size > 0 &&
      bodies.some(
        (graph) =>
          graph.initializers.some(({ raw }) => this.#places.has(raw)) ||
          graph.nodes.some((node) => this.#holdsMoved(node)),
      )
    );
  }

  #tensor(tensor: OnnxTensor, field: number): Uint8Array {
    const place = this.#places.get(tensor.raw);
    if (place === undefined) return tensor.raw.bytes;
    const writer = new WireWriter();
    writer.raw(
      rewriteFields(payload(tensor.raw.bytes), (inner, raw) => (inner === 13 ? undefined : raw)),
    );
    for (const [key, value] of Object.entries(place)) {
      writer.message(13, (entry) => entry.string(1, key).string(2, String(value)));
    }
    return encloseField(field, writer.finish());
  }
}

const NO_PORTS = { newInputs: [], newOutputs: [] };

/** What the model says of the value, or its name alone. */
function outputBytes({ raw, name }: OnnxValue): Uint8Array {
  return raw.bytes.length > 0 ? payload(raw.bytes) : new WireWriter().string(1, name).finish();
}

/** The message in a length-delimited field. */
function payload(field: Uint8Array): Uint8Array {
  const reader = new WireReader(field);
  reader.next();
  return reader.view();
}

function encloseField(field: number, bytes: Uint8Array): Uint8Array {
  return new WireWriter(bytes.length + 16).bytes(field, bytes).finish();
}

/** Every field of a message as `change` has it; undefined leaves it out. */
function rewriteFields(
  message: Uint8Array,
  change: (field: number, raw: Uint8Array) => Uint8Array | undefined,
): Uint8Array {
  const writer = new WireWriter(message.length + 256);
  const reader = new WireReader(message);
  while (reader.next()) {
    reader.skip();
    const raw = message.subarray(reader.fieldStart, reader.position);
    const changed = reader.wireType === WIRE_BYTES ? change(reader.field, raw) : raw;
    if (changed !== undefined) writer.raw(changed);
  }
  return writer.finish();
}

function sameBytes(a: Uint8Array, b: Uint8Array): boolean {
  return a.buffer === b.buffer && a.byteOffset === b.byteOffset && a.length === b.length;
}

function encodeNode(writer: WireWriter, node: NewNode): void {
  for (const input of node.inputs) writer.string(1, input);
  for (const output of node.outputs) writer.string(2, output);
  writer.string(3, `${node.outputs[0]}_${node.opType}`).string(4, node.opType);
  for (const [name, value] of Object.entries(node.attributes)) {
    writer.message(5, (attribute) => {
      attribute.string(1, name);
      if (typeof value === 'number') attribute.uint(3, BigInt(value)).uint(20, 2);
      else {
        for (const int of value) attribute.uint(8, BigInt(int));
        attribute.uint(20, 7);
      }
    });
  }
  const { value } = node;
  if (value === undefined) return;
  const tensor = new WireWriter().uint(1, 1).uint(2, ELEM_INT64).uint(7, BigInt(value));
  writer.message(5, (attribute) =>
    attribute.string(1, 'value').bytes(5, tensor.finish()).uint(20, 4),
  );
}

function encodeInput(value: WireWriter, { name, shape }: NewInput): void {
  value.string(1, name).message(2, (type) =>
    type.message(1, (tensor) =>
      tensor.uint(1, ELEM_FLOAT).message(2, (dims) => {
        for (const dim of shape) {
          dims.message(1, (field) => {
            if (typeof dim === 'number') field.uint(1, dim);
            else if (dim !== undefined) field.string(2, dim);
          });
        }
      }),
    ),
  );
}
