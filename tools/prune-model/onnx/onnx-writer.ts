/** Writes an ONNX model whose graph was cut: kept fields byte for byte, removed ones left out, new ones beside their kind. */
import { WireWriter } from '../../../proto/wire.ts';
import {
  ELEM_FLOAT,
  GRAPH_INPUT,
  GRAPH_NODE,
  MODEL_GRAPH,
  type OnnxDim,
  type OnnxModel,
  type RawField,
} from './onnx-model.ts';

/** What becomes of a graph: which of its fields stay, and what is new. */
export interface GraphEdit {
  /** Fields of the graph that go. */
  readonly removed: ReadonlySet<RawField>;
  /** New nodes, each written in the place of a removed one. */
  readonly replacements: ReadonlyMap<RawField, NewIdentity>;
  readonly newInputs: readonly NewInput[];
}

/** An Identity node that gives a graph input a second name. */
export interface NewIdentity {
  readonly input: string;
  readonly output: string;
}

/** A new float32 input of the graph. */
interface NewInput {
  readonly name: string;
  readonly shape: readonly OnnxDim[];
}

/** The whole file. */
export function writeOnnxModel(model: OnnxModel, edit: GraphEdit): Uint8Array {
  const graph = encodeGraph(model, edit);
  const total = model.fields.reduce((sum, field) => sum + field.bytes.length, 0);
  const writer = new WireWriter(Math.min(total, graph.length + 65_536));
  for (const { field, bytes } of model.fields) {
    if (field === MODEL_GRAPH) writer.bytes(MODEL_GRAPH, graph);
    else writer.raw(bytes);
  }
  return writer.finish();
}

function encodeGraph(model: OnnxModel, edit: GraphEdit): Uint8Array {
  const { fields } = model.graph;
  const kept = fields.filter((field) => !edit.removed.has(field));
  const writer = new WireWriter(kept.reduce((sum, field) => sum + field.bytes.length, 4096));
  const lastInput = fields.findLastIndex((field) => field.field === GRAPH_INPUT);
  fields.forEach((field, i) => {
    const identity = edit.replacements.get(field);
    if (identity !== undefined)
      writer.message(GRAPH_NODE, (node) => encodeIdentity(node, identity));
    else if (!edit.removed.has(field)) writer.raw(field.bytes);
    if (i === lastInput) {
      for (const input of edit.newInputs) {
        writer.message(GRAPH_INPUT, (value) => encodeInput(value, input));
      }
    }
  });
  return writer.finish();
}

function encodeIdentity(node: WireWriter, { input, output }: NewIdentity): void {
  node.string(1, input).string(2, output).string(3, `${input}_identity`).string(4, 'Identity');
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
