/**
 * Lets callers of an ONNX graph exchange its bfloat16 inputs and outputs as float32, which holds
 * every bfloat16 exactly: the interface of onnxruntime for Node has no bfloat16. Each such input
 * gets a Cast before the graph, and each such output one after it. Field numbers: onnx.proto of the
 * ONNX project.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { GraphSignature, TensorSpec } from '../lib/core/graph-signature.ts';
import { encodeOnnxNode } from './onnx-encoding.ts';
import { getFieldValue, OnnxGraph, type RawField, splitFields } from './onnx-graph.ts';
import { WireReader, WireWriter } from './wire.ts';

const MODEL_GRAPH = 7;
const NODE = 1;
const NODE_INPUT = 1;
const NODE_OUTPUT = 2;
const NODE_ATTRIBUTE = 5;
const ATTRIBUTE_GRAPH = 6;
const ATTRIBUTE_GRAPHS = 11;
const INITIALIZER = 5;
const TENSOR_NAME = 8;
const INPUT = 11;
const OUTPUT = 12;
const VALUE_INFO = 13;
const VALUE_NAME = 1;
const FLOAT = 1;
const BFLOAT16 = 16;
/** The first version of Cast that knows bfloat16. */
const CAST_OPSET = 13;
/** Bodies of control flow inside each other. */
const DEPTH_MAX = 32;

type Names = ReadonlyMap<string, string>;

/**
 * @param signature of the model
 * @param source names the model in errors
 * @returns the same bytes when no input or output is bfloat16
 * @throws CubeError UNSUPPORTED when the graph's version of Cast does not know bfloat16
 */
export function exchangeBfloat16(
  model: Uint8Array,
  { inputs, outputs }: GraphSignature,
  source: string,
): Uint8Array {
  const isHalf = ({ dataType }: TensorSpec): boolean => dataType === 'BF16';
  const ports = { inputs: inputs.filter(isHalf), outputs: outputs.filter(isHalf) };
  const all = [...ports.inputs, ...ports.outputs];
  if (all.length === 0) return model;
  const { opset } = new OnnxGraph(model, source);
  if (opset < CAST_OPSET) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: tensor ${JSON.stringify(all[0]?.name)} is BF16, which needs version ` +
        `${CAST_OPSET} of the standard operators; the graph has ${opset}; export it again`,
    );
  }
  const names = new Map(all.map(({ name }) => [name, `${name}@bfloat16`]));
  const writer = new WireWriter(model.length + 4096);
  for (const raw of splitFields(model)) {
    if (raw.field === MODEL_GRAPH) {
      writer.bytes(MODEL_GRAPH, castPorts(getFieldValue(raw), names, ports));
    } else writer.raw(raw.bytes);
  }
  return writer.finish();
}

interface Ports {
  readonly inputs: readonly TensorSpec[];
  readonly outputs: readonly TensorSpec[];
}

/** Names of ports keep their name outside and get another one inside. */
function castPorts(graph: Uint8Array, names: Names, { inputs, outputs }: Ports): Uint8Array {
  const writer = new WireWriter(graph.length + 4096);
  const cast = (from: string, to: string, type: number): void => {
    const node = { opType: 'Cast', inputs: [from], outputs: [to], attributes: { to: type } };
    writer.bytes(NODE, encodeOnnxNode(node));
  };
  const fields = splitFields(graph);
  for (const { name } of inputs) cast(name, names.get(name) ?? name, BFLOAT16);
  for (const raw of fields) if (raw.field === NODE) writeRenamed(writer, raw, names, 0);
  for (const { name } of outputs) cast(names.get(name) ?? name, name, FLOAT);
  for (const raw of fields) {
    if (raw.field === NODE) continue;
    const specs = raw.field === INPUT ? inputs : raw.field === OUTPUT ? outputs : [];
    const spec = specs.find(({ name }) => name === readName(getFieldValue(raw), VALUE_NAME));
    if (spec !== undefined) writer.bytes(raw.field, encodeFloatPort(spec));
    else if (raw.field === INPUT || raw.field === OUTPUT) writer.raw(raw.bytes);
    else writeRenamed(writer, raw, names, 0);
  }
  return writer.finish();
}

/** Writes a field of a graph with the new names. */
function writeRenamed(writer: WireWriter, raw: RawField, names: Names, depth: number): void {
  const { field, bytes } = raw;
  if (field === NODE) writer.bytes(NODE, renameNode(getFieldValue(raw), names, depth));
  else if (field === INITIALIZER) {
    writer.bytes(field, renameField(getFieldValue(raw), TENSOR_NAME, names));
  } else if (field === INPUT || field === OUTPUT || field === VALUE_INFO) {
    writer.bytes(field, renameField(getFieldValue(raw), VALUE_NAME, names));
  } else writer.raw(bytes);
}

function renameNode(node: Uint8Array, names: Names, depth: number): Uint8Array {
  const writer = new WireWriter(node.length + 256);
  for (const raw of splitFields(node)) {
    const { field, bytes } = raw;
    if (field === NODE_INPUT || field === NODE_OUTPUT) {
      const name = decode(getFieldValue(raw));
      writer.string(field, names.get(name) ?? name);
    } else if (field === NODE_ATTRIBUTE) {
      writer.bytes(field, renameAttribute(getFieldValue(raw), names, depth));
    } else writer.raw(bytes);
  }
  return writer.finish();
}

/** The bodies of control flow see the names of the graph around them. */
function renameAttribute(attribute: Uint8Array, names: Names, depth: number): Uint8Array {
  if (depth > DEPTH_MAX) throw new CubeError('CORRUPT', `graphs inside ${DEPTH_MAX} others`);
  const writer = new WireWriter(attribute.length + 256);
  for (const raw of splitFields(attribute)) {
    if (raw.field === ATTRIBUTE_GRAPH || raw.field === ATTRIBUTE_GRAPHS) {
      const body = getFieldValue(raw);
      const inner = new WireWriter(body.length + 256);
      for (const field of splitFields(body)) writeRenamed(inner, field, names, depth + 1);
      writer.bytes(raw.field, inner.finish());
    } else writer.raw(raw.bytes);
  }
  return writer.finish();
}

function renameField(message: Uint8Array, nameField: number, names: Names): Uint8Array {
  const name = names.get(readName(message, nameField));
  if (name === undefined) return message;
  const writer = new WireWriter(message.length + 256);
  for (const { field, bytes } of splitFields(message)) {
    if (field !== nameField) writer.raw(bytes);
  }
  return writer.string(nameField, name).finish();
}

function readName(message: Uint8Array, nameField: number): string {
  const reader = new WireReader(message);
  let name = '';
  while (reader.next()) {
    if (reader.field === nameField) name = reader.string();
    else reader.skip();
  }
  return name;
}

/** A ValueInfoProto; an unknown rank has no shape. */
function encodeFloatPort({ name, dims }: TensorSpec): Uint8Array {
  const tensor = new WireWriter().uint(1, FLOAT);
  if (dims !== undefined) {
    tensor.message(2, (shape) => {
      for (const dim of dims) {
        shape.message(1, (field) => {
          if (typeof dim === 'number') field.uint(1, dim);
          else if (dim !== '') field.string(2, dim);
        });
      }
    });
  }
  return new WireWriter()
    .string(VALUE_NAME, name)
    .message(2, (type) => type.bytes(1, tensor.finish()))
    .finish();
}

const decoder = new TextDecoder();

function decode(bytes: Uint8Array): string {
  return decoder.decode(bytes);
}
