/**
 * Finds the embedding lookups of a model: operators that take rows of a constant table, with indices that depend on the values of a
 * runtime input. What looks like a lookup and is not understood is refused by name; what only looks like one (gathers on
 * activations, constant or positional indices, integer tables) is left alone. A new pattern is a new rule in RULES.
 */

import type { Dim } from '../cut-model.ts';
import { DIM_MAX } from '../table.ts';
import { integersOf } from './constants.ts';
import { DistinctNames } from './distinct-names.ts';
import { type Bags, findBags } from './embedding-bag.ts';
import { functionKey } from './function-inliner.ts';
import { bodyFrame, type Frame, type GraphIndex } from './graph-index.ts';
import { type IdsPath, IdsTracer } from './ids-path.ts';
import {
  describeNode,
  ELEM_DOUBLE,
  ELEM_INT8,
  ELEM_UINT8,
  elemName,
  type OnnxFunction,
  type OnnxModel,
  type OnnxNode,
  type OnnxTensor,
} from './onnx-model.ts';
import { refuse, refuseModel } from './refusal.ts';
import type { Scope } from './scope.ts';
import {
  countOf,
  dequantised,
  producerOf,
  type TableValues,
  tableValues,
  transposed,
} from './table-source.ts';
import type { ExternalData } from './tensor-data.ts';

/** A lookup that can be cut: rows of its table become an input of the graph. */
export interface Lookup {
  /** The node whose output the rows are; it goes. */
  readonly node: OnnxNode;
  readonly frame: Frame;
  /** The tensor that the node makes. */
  readonly output: string;
  readonly table: TableValues;
  /** The initializer, or the value, that is the table. */
  readonly tableName: string;
  readonly ids: IdsPath;
  /** The rows stand along the last axis of the indices; a Gather along axis 1 puts them first. */
  readonly isTransposed: boolean;
  /** Set when the node also pools the rows of each bag of ids. */
  readonly bags: Bags | undefined;
}

/** A lookup after the cut. */
export interface CutLookup extends Lookup {
  /** The new input: the lookup's output, or another name when that is not its own to take. */
  readonly input: string;
  /** Of the new input: the shape of the indices, then that of a row. */
  readonly shape: readonly Dim[];
}

export interface FoundLookups {
  readonly lookups: readonly Lookup[];
  readonly tracer: IdsTracer;
}

/** In graph order; lookups that no output needs are not among them. @throws CubeError UNSUPPORTED */
export function findLookups(
  model: OnnxModel,
  index: GraphIndex,
  external: ExternalData,
): FoundLookups {
  if (model.hasTraining) refuseModel('it holds training graphs; export it for inference');
  const finder = new Finder(index, external, gatheringFunctions(model.functions));
  const { nodes } = index.needed(new Set());
  finder.search(
    index.graph.nodes.filter((node) => nodes.has(node)),
    index,
  );
  return finder;
}

class Finder implements FoundLookups {
  readonly lookups: Lookup[] = [];
  readonly tracer: IdsTracer = new IdsTracer();
  readonly #index: GraphIndex;
  readonly #external: ExternalData;
  readonly #functions: ReadonlySet<string>;
  readonly #tableNames = new DistinctNames();

  constructor(index: GraphIndex, external: ExternalData, functions: ReadonlySet<string>) {
    this.#index = index;
    this.#external = external;
    this.#functions = functions;
  }

  search(nodes: readonly OnnxNode[], frame: Frame): void {
    for (const node of nodes) {
      const bags = findBags(node, frame);
      if (bags !== undefined) {
        this.#addBags(node, frame, bags);
        continue;
      }
      const found = RULES.get(
        node.domain === 'com.microsoft' && node.opType === 'GatherND' ? 'GatherND' : ruleKey(node),
      );
      if (found === undefined) checkForeign(node, frame.scope);
      else this.#add(node, frame, found(node, frame.scope));
      checkMatrixProduct(node, frame);
      checkFunctionCall(node, frame.scope, this.#functions);
      for (const body of node.bodies) this.search(body.nodes, bodyFrame(body, frame));
    }
  }

  #add(node: OnnxNode, frame: Frame, found: FoundLookup | undefined): void {
    if (found === undefined) return;
    const name = tableName(found.table, frame);
    checkShadows(node, frame);
    const values = tableValues(found.table, frame, this.#external);
    if (typeof values === 'string') refuse(node, name, values);
    const isTransposed = takesColumns(node, name, found.axis, values.dims.length);
    const whole = isTransposed ? transposed(values) : values;
    const cut = this.#afterQuantised(node, frame, whole, name);
    checkSize(node, name, cut.table);
    let ids = this.tracer.trace({ node, table: name }, found.ids, frame);
    if (found.dropsLast) ids = dropLast(node, ids);
    const [, scale = '', zero = ''] = cut.node === node ? [] : cut.node.inputs;
    const tableKey = this.#tableNames.nameOf(
      isTransposed ? `${name}^T` : name,
      ...[originOf(found.table, frame), originOf(scale, frame), originOf(zero, frame)],
      isTransposed,
    );
    this.lookups.push({ ...cut, frame, tableName: tableKey, ids, isTransposed, bags: undefined });
  }

  #addBags(node: OnnxNode, frame: Frame, bags: Bags): void {
    const name = tableName(bags.table, frame);
    checkShadows(node, frame);
    const table = tableValues(bags.table, frame, this.#external);
    if (typeof table === 'string') refuse(node, name, table);
    if (table.dims.length !== 2) refuse(node, name, `its table has rank ${table.dims.length}`);
    checkSize(node, name, table);
    const ids = this.tracer.trace({ node, table: name }, bags.ids, frame);
    if (ids.axes.length !== 1 || typeof ids.axes[0] !== 'string') {
      refuse(node, bags.ids, 'the ids of its bags are not one list');
    }
    const output = node.outputs[0] ?? '';
    const parts = [originOf(bags.table, frame), originOf('', frame), originOf('', frame), false];
    const tableKey = this.#tableNames.nameOf(name, ...parts);
    const lookup = { node, frame, output, table, ids, isTransposed: false, bags };
    this.lookups.push({ ...lookup, tableName: tableKey });
  }

  /** Rows of a quantised table are numbers only behind the DequantizeLinear that follows: the cut is behind it. */
  #afterQuantised(
    node: OnnxNode,
    frame: Frame,
    table: TableValues,
    name: string,
  ): Pick<Lookup, 'node' | 'output' | 'table'> {
    const [output = ''] = node.outputs;
    const { elemType } = table;
    if (elemType !== ELEM_INT8 && elemType !== ELEM_UINT8) return { node, output, table };
    const readers = frame === this.#index ? this.#index.readers(output) : [];
    const [next] = readers;
    const isScaled = readers.length === 1 && next?.opType === 'DequantizeLinear';
    const scale = isScaled ? frame.scope.fact(next.inputs[1] ?? '').source?.tensor : undefined;
    if (next === undefined || !isScaled || scale === undefined || countOf(scale.dims) !== 1) {
      refuse(node, name, `quantised tables (${elemName(elemType)}) of this form are not supported`);
    }
    const values = dequantised(next, [table], frame, this.#external);
    if (typeof values === 'string') refuse(next, name, values);
    return { node: next, output: next.outputs[0] ?? '', table: values };
  }
}

function ruleKey({ domain, opType }: OnnxNode): string {
  return domain === '' ? opType : '';
}

/** Behind Identity, the initializer's own name. */
function tableName(name: string, frame: Frame): string {
  return frame.scope.fact(name).source?.name ?? name;
}

function checkShadows(node: OnnxNode, { shadowing }: Frame): void {
  if (shadowing === undefined) return;
  refuse(node, shadowing, 'a body around it has a name that is also one outside the body');
}

/** What makes a constant, wherever its name means it. */
function originOf(name: string, frame: Frame): unknown {
  return frame.scope.fact(name).source?.tensor ?? producerOf(name, frame);
}

/** What a rule found: names of the table and of the indices. */
interface FoundLookup {
  readonly table: string;
  readonly ids: string;
  /** Of the table, below zero from its last. */
  readonly axis: number;
  /** The last axis of the indices is one index into the rows, and not an axis of the result. */
  readonly dropsLast: boolean;
}

/** The rule of an operator: undefined when the node is no lookup, or a refusal. */
type Rule = (node: OnnxNode, scope: Scope) => FoundLookup | undefined;

const RULES: ReadonlyMap<string, Rule> = new Map<string, Rule>([
  ['Gather', gatherRule],
  ['GatherND', gatherNdRule],
  ['GatherElements', gatherElementsRule],
]);

/** Operators of other domains that look rows up: PyTorch's ATen, onnxruntime's and Caffe2's own. */
const FOREIGN_LOOKUP = /embed|gather|lookup|^ATen$|^SparseLengths/i;

function checkForeign(node: OnnxNode, scope: Scope): void {
  if (node.domain === '' && node.opType !== 'ATen') return;
  if (!FOREIGN_LOOKUP.test(node.opType)) return;
  const facts = node.inputs.map((name) => ({ name, fact: scope.fact(name) }));
  const table = facts.find(({ name, fact }) => name !== '' && isTableLike(fact.source?.tensor));
  if (table === undefined || facts.every(({ fact }) => fact.dependence !== 'values')) return;
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

/** Whether a constant is looked up with indices that are known only in a run. */
function isLookup(node: OnnxNode, scope: Scope): boolean {
  const [data = '', indices = ''] = node.inputs;
  const { dependence, source } = scope.fact(data);
  if (dependence !== 'constant' || scope.fact(indices).dependence !== 'values') return false;
  if (integersOf(source) !== undefined) return false;
  return source?.tensor === undefined || !isInteger(source.tensor.elemType);
}

function gatherRule(node: OnnxNode, scope: Scope): FoundLookup | undefined {
  if (!isLookup(node, scope)) return undefined;
  const [table = '', ids = ''] = node.inputs;
  const axis = Number(node.attributes.get('axis')?.int ?? 0n);
  return { table, ids, axis, dropsLast: false };
}

/** Whether an index selects a column of a matrix, and not a row. */
function takesColumns(node: OnnxNode, table: string, axis: number, rank: number): boolean {
  const at = axis < 0 ? axis + rank : axis;
  if (at === 0) return false;
  if (at === 1 && rank === 2) return true;
  const what = `it gathers along axis ${axis} of its table; only rows (axis 0), or columns of a matrix, are supported`;
  refuse(node, table, what);
}

function gatherNdRule(node: OnnxNode, scope: Scope): FoundLookup | undefined {
  if (!isLookup(node, scope)) return undefined;
  const [table = '', ids = ''] = node.inputs;
  if ((node.attributes.get('batch_dims')?.int ?? 0n) !== 0n) {
    refuse(node, table, 'lookups by GatherND with batch_dims are not supported');
  }
  return { table, ids, axis: 0, dropsLast: true };
}

function gatherElementsRule(node: OnnxNode, scope: Scope): undefined {
  if (!isLookup(node, scope)) return;
  refuse(node, node.inputs[0] ?? '', `lookups by ${node.opType} are not supported`);
}

function dropLast(node: OnnxNode, ids: IdsPath): IdsPath {
  if (ids.axes.at(-1) !== 1) {
    const last = ids.axes.at(-1) ?? 'none';
    refuse(
      node,
      node.inputs[1] ?? '',
      `lookups by ${node.opType} with ${last} indices for each row are not supported`,
    );
  }
  return { ...ids, axes: ids.axes.slice(0, -1) };
}

function checkSize(node: OnnxNode, name: string, { dims, elemType }: TableValues): void {
  const [rows = 0, ...inner] = dims;
  const dim = countOf(inner);
  if (elemType === ELEM_DOUBLE || dims.length === 0) {
    refuse(node, name, `tables of ${elemName(elemType)} are not supported`);
  }
  if (rows < 1 || dim < 1 || dim > DIM_MAX || rows > Number.MAX_SAFE_INTEGER / (4 * dim)) {
    refuse(
      node,
      name,
      `its table is ${rows} x ${dim}; at least one row of 1 to ${DIM_MAX} is needed`,
    );
  }
}

const NEUTRAL_OPS = new Set(['Identity', 'Cast', 'Reshape', 'Squeeze', 'Unsqueeze', 'Flatten']);

/** OneHot(ids) × table is a lookup written as algebra. */
function checkMatrixProduct(node: OnnxNode, frame: Frame): void {
  if (node.domain !== '' || (node.opType !== 'MatMul' && node.opType !== 'Gemm')) return;
  const [left = '', right = ''] = node.inputs;
  for (const [ids, table] of [
    [left, right],
    [right, left],
  ] as const) {
    if (frame.scope.fact(table).dependence !== 'constant') continue;
    let origin = frame.producer(ids);
    while (origin?.domain === '' && NEUTRAL_OPS.has(origin.opType)) {
      origin = frame.producer(origin.inputs[0] ?? '');
    }
    if (origin?.opType !== 'OneHot') continue;
    if (frame.scope.fact(origin.inputs[0] ?? '').dependence !== 'values') continue;
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

/** The model's own functions whose bodies gather, directly or through another of them. */
export function gatheringFunctions(functions: readonly OnnxFunction[]): Set<string> {
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
