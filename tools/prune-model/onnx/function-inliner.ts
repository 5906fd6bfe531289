/**
 * Replaces calls of model functions that gather rows by the nodes of the function, so that a lookup
 * inside a function is found like any other. Other calls stay unchanged.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { WireWriter } from '../../../proto/wire.ts';
import {
  encodeMessageField,
  type RawField,
  readMessageField,
  splitFields,
} from '../cut/protobuf-fields.ts';
import { refuseModel } from '../cut/refusals.ts';
import {
  type AttributeProto,
  type FunctionProto,
  GRAPH_NODE,
  type ModelProto,
  type NodeProto,
} from './onnx-model.ts';
import { claimFreshName } from './unique-names.ts';

/** Maximum nodes after inlining; functions may call functions. */
const NODE_COUNT_MAX = 200_000;
const CALL_DEPTH_MAX = 32;

export function getFunctionKey(domain: string, name: string): string {
  return `${domain}\n${name}`;
}

/**
 * @param gathering keys of the functions to inline. @param names names in use; new names are added
 */
export function inlineFunctions(
  model: ModelProto,
  gathering: ReadonlySet<string>,
  names: Set<string>,
): ModelProto {
  const functions = new Map(model.functions.map((f) => [getFunctionKey(f.domain, f.name), f]));
  const inliner = new FunctionInliner(functions, gathering, names, model.opset);
  const expanded = new Map<RawField, readonly NodeProto[]>();
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

class FunctionInliner {
  readonly #functions: ReadonlyMap<string, FunctionProto>;
  readonly #gathering: ReadonlySet<string>;
  readonly #names: Set<string>;
  readonly #opset: number;
  #count = 0;

  constructor(
    functions: ReadonlyMap<string, FunctionProto>,
    gathering: ReadonlySet<string>,
    names: Set<string>,
    opset: number,
  ) {
    this.#functions = functions;
    this.#gathering = gathering;
    this.#names = names;
    this.#opset = opset;
  }

  /** @returns the node itself, or the nodes that replace the call */
  expand(node: NodeProto, depth: number): readonly NodeProto[] {
    const key = getFunctionKey(node.domain, node.opType);
    const called = this.#gathering.has(key) ? this.#functions.get(key) : undefined;
    if (called === undefined || !this.#canInline(called)) return [node];
    if (depth > CALL_DEPTH_MAX) {
      throw new CubeError(
        'CORRUPT',
        'not a valid ONNX model: its functions call each other recursively',
      );
    }
    const inner = this.#mapNames(node, called);
    const nodes = called.nodes.map((body) => copyNode(body, inner, node, called));
    this.#count += nodes.length;
    if (this.#count > NODE_COUNT_MAX) {
      refuseModel(
        `inlining its functions gives more than ${NODE_COUNT_MAX} nodes; ` +
          'export it without model functions',
      );
    }
    return nodes.flatMap((copy) => this.expand(copy, depth + 1));
  }

  /**
   * Functions with bodies, which capture names, and functions for another operator version are not
   * inlined; a lookup in them is refused later.
   */
  #canInline({ nodes, opset }: FunctionProto): boolean {
    const sameOpset = opset === this.#opset || opset === 0;
    return sameOpset && nodes.every(({ bodies }) => bodies.length === 0);
  }

  /** Maps names in the function to names in the graph. */
  #mapNames(call: NodeProto, called: FunctionProto): Map<string, string> {
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
        if (!map.has(name)) map.set(name, claimFreshName(`${prefix}/${name}`, this.#names));
      }
    }
    return map;
  }
}

function copyNode(
  body: NodeProto,
  names: ReadonlyMap<string, string>,
  call: NodeProto,
  called: FunctionProto,
): NodeProto {
  const rename = (list: readonly string[]): string[] => list.map((name) => names.get(name) ?? name);
  const attributes = new Map<string, AttributeProto>();
  for (const [name, attribute] of body.attributes) {
    const { reference } = attribute;
    if (reference === undefined) attributes.set(name, attribute);
    else {
      const given = call.attributes.get(reference) ?? called.defaults.get(reference);
      if (given !== undefined) attributes.set(name, renameAttribute(given, name));
    }
  }
  const copy = { ...body, attributes, inputs: rename(body.inputs), outputs: rename(body.outputs) };
  const name = call.name === '' ? body.name : `${call.name}/${body.name}`;
  return { ...copy, name, raw: encodeNode({ ...copy, name }) };
}

function renameAttribute(attribute: AttributeProto, name: string): AttributeProto {
  const writer = new WireWriter().string(1, name);
  for (const { field, bytes } of splitFields(readMessageField(attribute.raw.bytes))) {
    if (field !== 1) writer.raw(bytes);
  }
  return { ...attribute, raw: encodeMessageField(5, writer.finish()) };
}

function encodeNode({ inputs, outputs, name, opType, domain, attributes }: NodeProto): RawField {
  const writer = new WireWriter();
  for (const input of inputs) writer.string(1, input);
  for (const output of outputs) writer.string(2, output);
  writer.string(3, name).string(4, opType);
  for (const { raw } of attributes.values()) writer.raw(raw.bytes);
  if (domain !== '') writer.string(7, domain);
  return encodeMessageField(GRAPH_NODE, writer.finish());
}
