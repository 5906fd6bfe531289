/**
 * Finds the embedding lookups of a model: Gather on a constant float32 matrix with indices that depend on the values of a
 * runtime input. What looks like a lookup and is not understood is refused by name; what only looks like one (gathers on
 * activations, constant or positional indices, integer tables) is left alone. A new pattern is a new rule in RULES.
 */

import { DIM_MAX } from '../table.ts';
import { integersOf } from './constants.ts';
import type { GraphIndex } from './graph-index.ts';
import { type IdsPath, traceIds } from './ids-path.ts';
import {
  describeNode,
  ELEM_FLOAT,
  ELEM_FLOAT16,
  ELEM_INT8,
  ELEM_UINT8,
  elemName,
  type OnnxFunction,
  type OnnxGraph,
  type OnnxModel,
  type OnnxNode,
  type OnnxTensor,
} from './onnx-model.ts';
import { refuse, refuseModel } from './refusal.ts';
import { Scope } from './scope.ts';

/** A lookup that can be cut: its output becomes an input of the graph. */
export interface Lookup {
  readonly node: OnnxNode;
  /** The tensor that the lookup makes. */
  readonly output: string;
  readonly table: OnnxTensor;
  /** The initializer, or the output of the Constant node, that is the table. */
  readonly tableName: string;
  readonly ids: IdsPath;
}

/** In graph order; lookups that no output needs are not among them. @throws CubeError UNSUPPORTED */
export function findLookups(model: OnnxModel, index: GraphIndex): Lookup[] {
  refuseWholeModels(model);
  const lookups: Lookup[] = [];
  const { nodes } = index.needed(new Set());
  const functions = gatheringFunctions(model.functions);
  for (const node of index.graph.nodes) {
    if (!nodes.has(node)) continue;
    const table = findTable(node, index.scope);
    if (table !== undefined) lookups.push(toLookup(node, table, index));
    checkMatrixProduct(node, index);
    checkFunctionCall(node, index.scope, functions);
    for (const body of node.bodies) checkBody(body, index.scope, functions);
  }
  return lookups;
}

function refuseWholeModels(model: OnnxModel): void {
  if (model.external !== undefined) {
    const name = JSON.stringify(model.external);
    refuseModel(`tensor ${name} is in another file (external data); save the model as one file`);
  }
  if (model.hasTraining) refuseModel('it holds training graphs; export it for inference');
}

interface FoundTable {
  readonly name: string;
  readonly tensor: OnnxTensor;
}

/** The rule of an operator: the table of a lookup, undefined when the node is none, or a refusal. */
type Rule = (node: OnnxNode, scope: Scope) => FoundTable | undefined;

const RULES: ReadonlyMap<string, Rule> = new Map<string, Rule>([
  ['Gather', gatherRule],
  ['GatherND', otherGatherRule],
  ['GatherElements', otherGatherRule],
]);

/** Operators of other domains that look rows up: PyTorch's ATen, onnxruntime's and Caffe2's own. */
const FOREIGN_LOOKUP = /embed|gather|lookup|^ATen$|^SparseLengths/i;

function findTable(node: OnnxNode, scope: Scope): FoundTable | undefined {
  if (node.domain === '' && node.opType !== 'ATen') return RULES.get(node.opType)?.(node, scope);
  if (!FOREIGN_LOOKUP.test(node.opType)) return undefined;
  const facts = node.inputs.map((name) => ({ name, fact: scope.fact(name) }));
  const table = facts.find(({ name, fact }) => name !== '' && isTableLike(fact.source?.tensor));
  if (table === undefined || facts.every(({ fact }) => fact.dependence !== 'values')) {
    return undefined;
  }
  const operator = node.attributes.get('operator')?.text;
  const what = operator === undefined ? 'this operator' : `operator ${JSON.stringify(operator)}`;
  refuse(node, table.name, `lookups by ${what} are not supported`);
}

function isTableLike(tensor: OnnxTensor | undefined): boolean {
  return tensor !== undefined && tensor.dims.length >= 2 && !isInteger(tensor.elemType);
}

/** Wide integers are ids, vocabularies and masks; 8 bits and less are quantised tables. */
function isInteger(elemType: number): boolean {
  const name = elemName(elemType);
  return /^(u?int(16|32|64)|bool|string)$/.test(name);
}

function gatherRule(node: OnnxNode, scope: Scope): FoundTable | undefined {
  const [data = '', indices = ''] = node.inputs;
  const { dependence, source } = scope.fact(data);
  if (dependence !== 'constant' || scope.fact(indices).dependence !== 'values') return undefined;
  if (integersOf(source) !== undefined) return undefined;
  const tensor = source?.tensor;
  if (source === undefined || tensor === undefined) {
    refuse(
      node,
      data,
      'its table is computed from constants by other nodes, which is not supported',
    );
  }
  if (isInteger(tensor.elemType)) return undefined;
  checkTable(node, source.name, tensor);
  if (scope.isNested) {
    refuse(node, source.name, 'lookups inside the body of If, Loop or Scan are not supported');
  }
  return { name: source.name, tensor };
}

function checkTable(node: OnnxNode, name: string, tensor: OnnxTensor): void {
  const { elemType, dims } = tensor;
  if (elemType === ELEM_INT8 || elemType === ELEM_UINT8) {
    refuse(node, name, `quantised tables (${elemName(elemType)}) are not supported`);
  }
  if (elemType !== ELEM_FLOAT) {
    const hint = elemType === ELEM_FLOAT16 ? '; export the model in float32' : '';
    refuse(node, name, `tables of ${elemName(elemType)} are not supported${hint}`);
  }
  if (dims.length !== 2) {
    refuse(node, name, `its table has rank ${dims.length}; only [rows, dim] is supported`);
  }
  const axis = Number(node.attributes.get('axis')?.int ?? 0n);
  if (axis !== 0 && axis !== -2) {
    refuse(
      node,
      name,
      `it gathers along axis ${axis} of its table; only rows (axis 0) are supported`,
    );
  }
  const [rows = 0, dim = 0] = dims;
  if (rows < 1 || dim < 1 || dim > DIM_MAX) {
    refuse(
      node,
      name,
      `its table is ${rows} x ${dim}; at least one row of 1 to ${DIM_MAX} is needed`,
    );
  }
}

function otherGatherRule(node: OnnxNode, scope: Scope): undefined {
  const [data = '', indices = ''] = node.inputs;
  const { dependence, source } = scope.fact(data);
  if (dependence !== 'constant' || scope.fact(indices).dependence !== 'values') return;
  if (source?.tensor !== undefined && isInteger(source.tensor.elemType)) return;
  refuse(node, source?.name ?? data, `lookups by ${node.opType} are not supported`);
}

function toLookup(node: OnnxNode, table: FoundTable, index: GraphIndex): Lookup {
  const [output = ''] = node.outputs;
  const ids = traceIds(node, table.name, index);
  return { node, output, table: table.tensor, tableName: table.name, ids };
}

/** A body that looks rows up is refused; one that does not stays as it is. */
function checkBody(body: OnnxGraph, outer: Scope, functions: ReadonlySet<string>): void {
  const scope = new Scope(body, outer);
  for (const node of body.nodes) {
    findTable(node, scope);
    checkFunctionCall(node, scope, functions);
    for (const inner of node.bodies) checkBody(inner, scope, functions);
  }
}

const NEUTRAL_OPS = new Set(['Identity', 'Cast', 'Reshape', 'Squeeze', 'Unsqueeze', 'Flatten']);

/** OneHot(ids) × table is a lookup written as algebra. */
function checkMatrixProduct(node: OnnxNode, index: GraphIndex): void {
  if (node.domain !== '' || (node.opType !== 'MatMul' && node.opType !== 'Gemm')) return;
  const [left = '', right = ''] = node.inputs;
  for (const [ids, table] of [
    [left, right],
    [right, left],
  ] as const) {
    if (index.scope.fact(table).dependence !== 'constant') continue;
    let origin = index.producer(ids);
    while (origin?.domain === '' && NEUTRAL_OPS.has(origin.opType)) {
      origin = index.producer(origin.inputs[0] ?? '');
    }
    if (origin?.opType !== 'OneHot') continue;
    if (index.scope.fact(origin.inputs[0] ?? '').dependence !== 'values') continue;
    const from = describeNode(origin);
    refuse(
      node,
      table,
      `it looks rows up by multiplying ${from} with a table, which is not supported`,
    );
  }
}

/** Functions are searched again until nothing new is found, so their number is bounded. */
const FUNCTION_COUNT_MAX = 1000;

const functionKey = (domain: string, name: string): string => `${domain}\n${name}`;

/** The model's own functions whose bodies gather, directly or through another of them. */
function gatheringFunctions(functions: readonly OnnxFunction[]): Set<string> {
  if (functions.length > FUNCTION_COUNT_MAX) {
    refuseModel(
      `it has ${functions.length} functions, at most ${FUNCTION_COUNT_MAX} are supported`,
    );
  }
  const gathering = new Set<string>();
  const gathers = (node: OnnxNode): boolean =>
    RULES.has(node.opType) ||
    FOREIGN_LOOKUP.test(node.opType) ||
    gathering.has(functionKey(node.domain, node.opType)) ||
    node.bodies.some((body) => body.nodes.some(gathers));
  for (let before = -1; before !== gathering.size; ) {
    before = gathering.size;
    for (const { domain, name, nodes } of functions) {
      if (nodes.some(gathers)) gathering.add(functionKey(domain, name));
    }
  }
  return gathering;
}

/** A call that hands a table to a function that gathers, or gathers from a table of its own, may be a lookup. */
function checkFunctionCall(node: OnnxNode, scope: Scope, gathering: ReadonlySet<string>): void {
  if (!gathering.has(functionKey(node.domain, node.opType))) return;
  const table = node.inputs.find((name) => isTableLike(scope.fact(name).source?.tensor));
  const hasIds = node.inputs.some((name) => scope.fact(name).dependence === 'values');
  if (!hasIds) return;
  refuse(
    node,
    table ?? node.inputs[0] ?? '',
    'it calls a function of the model that gathers rows; inline the functions when exporting',
  );
}
