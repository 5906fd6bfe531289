/**
 * Replaces calls of the model's own functions that gather rows by the nodes of the function, so that a lookup in a function is found
 * like any other. Calls of other functions stay as they are.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { WireReader, WireWriter } from '../../../proto/wire.ts';
import {
  GRAPH_NODE,
  type OnnxAttribute,
  type OnnxFunction,
  type OnnxModel,
  type OnnxNode,
  type RawField,
} from './onnx-model.ts';

/** Nodes after inlining; functions may call functions. */
const NODE_COUNT_MAX = 200_000;
const CALL_DEPTH_MAX = 32;

export function functionKey(domain: string, name: string): string {
  return `${domain}\n${name}`;
}

/** @param gathering keys of the functions to inline. @param names in use in the model; new ones are added */
export function inlineFunctions(
  model: OnnxModel,
  gathering: ReadonlySet<string>,
  names: Set<string>,
): OnnxModel {
  const functions = new Map(model.functions.map((f) => [functionKey(f.domain, f.name), f]));
  const inliner = new Inliner(functions, gathering, names, model.opset);
  const expanded = new Map<RawField, readonly OnnxNode[]>();
  for (const node of model.graph.nodes) {
    const nodes = inliner.expand(node, 0);
    if (nodes[0] !== node) expanded.set(node.raw, nodes);
  }
  if (expanded.size === 0) return model;
  const { graph } = model;
  const nodes = graph.nodes.flatMap((node) => expanded.get(node.raw) ?? [node]);
  const fields = graph.fields.flatMap(
    (field) => expanded.get(field)?.map(({ raw }) => raw) ?? [field],
  );
  return { ...model, graph: { ...graph, nodes, fields } };
}

class Inliner {
  readonly #functions: ReadonlyMap<string, OnnxFunction>;
  readonly #gathering: ReadonlySet<string>;
  readonly #names: Set<string>;
  readonly #opset: number;
  #count = 0;

  constructor(
    functions: ReadonlyMap<string, OnnxFunction>,
    gathering: ReadonlySet<string>,
    names: Set<string>,
    opset: number,
  ) {
    this.#functions = functions;
    this.#gathering = gathering;
    this.#names = names;
    this.#opset = opset;
  }

  /** The node itself, or the nodes that stand for the call. */
  expand(node: OnnxNode, depth: number): readonly OnnxNode[] {
    const key = functionKey(node.domain, node.opType);
    const called = this.#gathering.has(key) ? this.#functions.get(key) : undefined;
    if (called === undefined || !this.#canInline(called)) return [node];
    if (depth > CALL_DEPTH_MAX) {
      throw new CubeError(
        'CORRUPT',
        'not a valid ONNX model: functions call each other without end',
      );
    }
    const inner = this.#rename(node, called);
    const nodes = called.nodes.map((body) => copyNode(body, inner, node, called));
    this.#count += nodes.length;
    if (this.#count > NODE_COUNT_MAX) {
      throw new CubeError(
        'UNSUPPORTED',
        `cannot prune this model: its functions make more than ${NODE_COUNT_MAX} nodes`,
      );
    }
    return nodes.flatMap((copy) => this.expand(copy, depth + 1));
  }

  /** Bodies capture names of the function, and other versions of operators mean other things: such calls are refused later. */
  #canInline({ nodes, opset }: OnnxFunction): boolean {
    const sameOpset = opset === this.#opset || opset === 0;
    return sameOpset && nodes.every(({ bodies }) => bodies.length === 0);
  }

  /** From names in the function to names in the graph. */
  #rename(call: OnnxNode, called: OnnxFunction): Map<string, string> {
    const map = new Map([['', '']]);
    const prefix = call.outputs.find((name) => name !== '') ?? call.name;
    called.inputs.forEach((name, i) => {
      map.set(name, call.inputs[i] ?? '');
    });
    called.outputs.forEach((name, i) => {
      const output = call.outputs[i] ?? '';
      if (output !== '') map.set(name, output);
    });
    for (const { outputs } of called.nodes) {
      for (const name of outputs) {
        if (!map.has(name)) map.set(name, freshName(`${prefix}/${name}`, this.#names));
      }
    }
    return map;
  }
}

/** A name that is not in use; it is from now on. */
export function freshName(wanted: string, taken: Set<string>): string {
  let name = wanted;
  for (let i = 2; taken.has(name); i++) name = `${wanted}_${i}`;
  taken.add(name);
  return name;
}

function copyNode(
  body: OnnxNode,
  names: ReadonlyMap<string, string>,
  call: OnnxNode,
  called: OnnxFunction,
): OnnxNode {
  const rename = (list: readonly string[]): string[] => list.map((name) => names.get(name) ?? name);
  const attributes = new Map<string, OnnxAttribute>();
  for (const [name, attribute] of body.attributes) {
    const { reference } = attribute;
    if (reference === undefined) attributes.set(name, attribute);
    else {
      const given = call.attributes.get(reference) ?? called.defaults.get(reference);
      if (given !== undefined) attributes.set(name, renamed(given, name));
    }
  }
  const copy = { ...body, attributes, inputs: rename(body.inputs), outputs: rename(body.outputs) };
  const name = call.name === '' ? body.name : `${call.name}/${body.name}`;
  return { ...copy, name, raw: encodeNode({ ...copy, name }) };
}

function renamed(attribute: OnnxAttribute, name: string): OnnxAttribute {
  const writer = new WireWriter().string(1, name);
  const field = new WireReader(attribute.raw.bytes);
  field.next();
  const reader = field.message();
  while (reader.next()) {
    reader.skip();
    if (reader.field !== 1) writer.raw(reader.bytes.subarray(reader.fieldStart, reader.position));
  }
  const bytes = new WireWriter().bytes(5, writer.finish()).finish();
  return { ...attribute, raw: { field: 5, bytes } };
}

function encodeNode({ inputs, outputs, name, opType, domain, attributes }: OnnxNode): RawField {
  const writer = new WireWriter();
  for (const input of inputs) writer.string(1, input);
  for (const output of outputs) writer.string(2, output);
  writer.string(3, name).string(4, opType);
  for (const { raw } of attributes.values()) writer.raw(raw.bytes);
  if (domain !== '') writer.string(7, domain);
  const bytes = new WireWriter().bytes(GRAPH_NODE, writer.finish()).finish();
  return { field: GRAPH_NODE, bytes };
}
