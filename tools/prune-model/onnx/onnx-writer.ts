/**
 * Writes a pruned ONNX model: kept fields byte for byte, removed fields left out, new fields after
 * those of their kind. A node with a changed body gets new bytes for that body only; a tensor with
 * data in another file gets a new location only.
 */
import { requireDefined } from '../../../lib/core/errors.ts';
import { encodeOnnxNode, encodeValueInfo, type NewOnnxNode } from '../../../proto/onnx-encoding.ts';
import { WIRE_BYTES, WireWriter } from '../../../proto/wire.ts';
import type { Dim } from '../cut/cut-model.ts';
import {
  encodeMessageField,
  isSameView,
  type RawField,
  readMessageField,
  splitFields,
} from '../cut/protobuf-fields.ts';
import {
  ELEM_FLOAT,
  GRAPH_INITIALIZER,
  GRAPH_INPUT,
  GRAPH_NODE,
  GRAPH_OUTPUT,
  type GraphProto,
  MODEL_GRAPH,
  type ModelProto,
  type NodeProto,
  type TensorProto,
  type ValueInfo,
} from './onnx-model.ts';

/** The changes to a graph. */
export interface GraphEdit {
  /** Fields of the graph and of its bodies to remove. */
  readonly removed: ReadonlySet<RawField>;
  /** New nodes that replace a node. */
  readonly replacements: ReadonlyMap<RawField, readonly NewOnnxNode[]>;
  /** Nodes with bodies in which something is removed or replaced. */
  readonly changedNodes: ReadonlySet<RawField>;
  readonly newInputs: readonly NewInput[];
  /** Values that become outputs. */
  readonly newOutputs: readonly ValueInfo[];
}

/** A new float32 input of the graph. */
interface NewInput {
  readonly name: string;
  readonly shape: readonly Dim[];
}

/** The new position of tensor data in another file. */
export interface ExternalLocation {
  readonly location: string;
  readonly offset: number;
  readonly length: number;
}

/** @param locations new positions of kept tensor data in another file. @returns the whole file */
export function writeOnnxModel(
  model: ModelProto,
  edit: GraphEdit,
  locations: ReadonlyMap<RawField, ExternalLocation>,
): Uint8Array {
  const graph = new GraphWriter(edit, locations).graph(model.graph, edit);
  const total = model.fields.reduce((sum, field) => sum + field.bytes.length, 0);
  const writer = new WireWriter(Math.min(total, graph.length + 65_536));
  for (const { field, bytes } of model.fields) {
    if (field === MODEL_GRAPH) writer.bytes(MODEL_GRAPH, graph);
    else writer.raw(bytes);
  }
  return writer.finish();
}

/** Kept tensors with data in another file, bodies included. */
export function findKeptExternalTensors(
  model: ModelProto,
  { removed, replacements }: GraphEdit,
): TensorProto[] {
  const kept: TensorProto[] = [];
  const visit = (graph: GraphProto): void => {
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
  readonly #locations: ReadonlyMap<RawField, ExternalLocation>;

  constructor(edit: GraphEdit, locations: ReadonlyMap<RawField, ExternalLocation>) {
    this.#edit = edit;
    this.#locations = locations;
  }

  graph(
    { fields, nodes, initializers }: GraphProto,
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
        for (const node of replaced) writer.bytes(GRAPH_NODE, encodeOnnxNode(node));
      } else if (!removed.has(field)) {
        const tensor = tensorOf.get(field);
        const node = nodeOf.get(field);
        if (tensor !== undefined) writer.raw(this.#tensor(tensor, GRAPH_INITIALIZER));
        else writer.raw(node === undefined ? field.bytes : this.#node(node));
      }
      if (i === lastInput) {
        for (const { name, shape } of ports.newInputs) {
          writer.bytes(GRAPH_INPUT, encodeValueInfo(name, ELEM_FLOAT, shape));
        }
      }
      if (i === lastOutput) {
        for (const output of ports.newOutputs) writer.bytes(GRAPH_OUTPUT, encodeOutput(output));
      }
    });
    return writer.finish();
  }

  #node(node: NodeProto): Uint8Array {
    const tensors = [...node.attributes.values()].map(({ tensor }) => tensor);
    const hasMoved = tensors.some(
      (tensor) => tensor !== undefined && this.#locations.has(tensor.raw),
    );
    if (!hasMoved && !this.#edit.changedNodes.has(node.raw) && !this.#hasMovedTensor(node))
      return node.raw.bytes;
    let body = 0;
    const bytes = rewriteFields(readMessageField(node.raw.bytes), (field, raw) => {
      if (field !== 5) return raw;
      return encodeField(
        5,
        rewriteFields(readMessageField(raw), (inner, value) => {
          if (inner === 6 || inner === 11) {
            const graph = requireDefined(node.bodies[body++], 'the body of a node');
            return encodeField(inner, this.graph(graph, NO_NEW_PORTS));
          }
          const tensor = tensors.find((t) => t !== undefined && isSameView(t.raw.bytes, value));
          return inner === 5 && tensor !== undefined ? this.#tensor(tensor, 5) : value;
        }),
      );
    });
    return encodeField(GRAPH_NODE, bytes);
  }

  /** Whether a body, at any depth, has a tensor whose data moved. */
  #hasMovedTensor({ bodies }: NodeProto): boolean {
    return (
      this.#locations.size > 0 &&
      bodies.some(
        (graph) =>
          graph.initializers.some(({ raw }) => this.#locations.has(raw)) ||
          graph.nodes.some((node) => this.#hasMovedTensor(node)),
      )
    );
  }

  #tensor(tensor: TensorProto, field: number): Uint8Array {
    const location = this.#locations.get(tensor.raw);
    if (location === undefined) return tensor.raw.bytes;
    const writer = new WireWriter();
    writer.raw(
      rewriteFields(readMessageField(tensor.raw.bytes), (inner, raw) =>
        inner === 13 ? undefined : raw,
      ),
    );
    for (const [key, value] of Object.entries(location)) {
      writer.message(13, (entry) => entry.string(1, key).string(2, String(value)));
    }
    return encodeField(field, writer.finish());
  }
}

const NO_NEW_PORTS = { newInputs: [], newOutputs: [] };

/** The value as the model declares it, or its name alone. */
function encodeOutput({ raw, name }: ValueInfo): Uint8Array {
  return raw.bytes.length > 0
    ? readMessageField(raw.bytes)
    : new WireWriter().string(1, name).finish();
}

function encodeField(field: number, message: Uint8Array): Uint8Array {
  return encodeMessageField(field, message).bytes;
}

/** Replaces each length-delimited field by the result of `change`; undefined removes it. */
function rewriteFields(
  message: Uint8Array,
  change: (field: number, raw: Uint8Array) => Uint8Array | undefined,
): Uint8Array {
  const writer = new WireWriter(message.length + 256);
  for (const { field, bytes } of splitFields(message)) {
    const isMessage = ((bytes[0] ?? 0) & 7) === WIRE_BYTES;
    const changed = isMessage ? change(field, bytes) : bytes;
    if (changed !== undefined) writer.raw(changed);
  }
  return writer.finish();
}
