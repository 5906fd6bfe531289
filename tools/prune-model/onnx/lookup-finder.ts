/**
 * Finds the embedding lookups of a model: operators that take rows of a constant table, with
 * indices that depend on the values of a runtime input. A lookup of an unsupported form is refused
 * by name. Operators that only resemble a lookup are left alone: gathers on activations, constant
 * or positional indices, integer tables. A new pattern is a new entry in LOOKUP_RULES.
 */

import type { Dim } from '../cut/cut-model.ts';
import { refuseModel } from '../cut/refusals.ts';
import { countElements, DIM_MAX } from '../cut/table.ts';
import { readIntegerConstant } from './constants.ts';
import { type EmbeddingBags, findEmbeddingBags } from './embedding-bag.ts';
import { getFunctionKey } from './function-inliner.ts';
import { createBodyScope, type GraphIndex, type GraphScope } from './graph-index.ts';
import { type IdsOrigin, OnnxIdsTracer } from './ids-tracer.ts';
import {
  describeNode,
  ELEM_DOUBLE,
  ELEM_INT8,
  ELEM_UINT8,
  type FunctionProto,
  getElementTypeName,
  getIntAttribute,
  type ModelProto,
  type NodeProto,
  refuseNode,
  type TensorProto,
} from './onnx-model.ts';
import {
  dequantizeTable,
  findProducerInScope,
  readTableValues,
  type TableValues,
  transposeTable,
} from './table-values.ts';
import type { ExternalData } from './tensor-data.ts';
import { UniqueNames } from './unique-names.ts';
import type { ValueOrigins } from './value-origins.ts';

/** A lookup that can be cut: rows of its table become an input of the graph. */
export interface OnnxLookup {
  /** The node whose output is the rows; it is removed. */
  readonly node: NodeProto;
  readonly scope: GraphScope;
  /** The output of the node: the rows. */
  readonly output: string;
  readonly table: TableValues;
  /** The name of the initializer or computed value that is the table. */
  readonly tableName: string;
  readonly ids: IdsOrigin;
  /** Set for a Gather along axis 1, which puts the elements of a row first and not last. */
  readonly isTransposed: boolean;
  /** Set when the node also pools the rows of each bag of ids. */
  readonly bags: EmbeddingBags | undefined;
}

/** A lookup after the cut. */
export interface OnnxCutLookup extends OnnxLookup {
  /**
   * The new input: the name of the lookup's output, or another name when that one must stay in use.
   */
  readonly input: string;
  /** Shape of the new input: the axes of the indices, then those of a row. */
  readonly shape: readonly Dim[];
}

export interface FoundLookups {
  readonly lookups: readonly OnnxLookup[];
  readonly tracer: OnnxIdsTracer;
}

/** @returns the lookups that the outputs need, in graph order. @throws CubeError UNSUPPORTED */
export function findOnnxLookups(
  model: ModelProto,
  index: GraphIndex,
  external: ExternalData,
): FoundLookups {
  if (model.hasTraining) refuseModel('it contains training graphs; export it for inference');
  const finder = new LookupFinder(index, external, findGatheringFunctions(model.functions));
  const { nodes } = index.findNeeded(new Set());
  finder.search(
    index.graph.nodes.filter((node) => nodes.has(node)),
    index,
  );
  return finder;
}

class LookupFinder implements FoundLookups {
  readonly lookups: OnnxLookup[] = [];
  readonly tracer: OnnxIdsTracer = new OnnxIdsTracer();
  readonly #index: GraphIndex;
  readonly #external: ExternalData;
  readonly #functions: ReadonlySet<string>;
  readonly #tableNames = new UniqueNames();

  constructor(index: GraphIndex, external: ExternalData, functions: ReadonlySet<string>) {
    this.#index = index;
    this.#external = external;
    this.#functions = functions;
  }

  search(nodes: readonly NodeProto[], scope: GraphScope): void {
    for (const node of nodes) {
      const bags = findEmbeddingBags(node, scope);
      if (bags !== undefined) {
        this.#addBags(node, scope, bags);
        continue;
      }
      const found = LOOKUP_RULES.get(
        node.domain === 'com.microsoft' && node.opType === 'GatherND'
          ? 'GatherND'
          : getRuleKey(node),
      );
      if (found === undefined) checkForeignOperator(node, scope.origins);
      else this.#add(node, scope, found(node, scope.origins));
      checkMatrixProduct(node, scope);
      checkFunctionCall(node, scope.origins, this.#functions);
      for (const body of node.bodies) this.search(body.nodes, createBodyScope(body, scope));
    }
  }

  #add(node: NodeProto, scope: GraphScope, found: LookupMatch | undefined): void {
    if (found === undefined) return;
    const name = getTableName(found.table, scope);
    checkShadowing(node, scope);
    const values = readTableValues(found.table, scope, this.#external);
    if (typeof values === 'string') refuseNode(node, name, values);
    const isTransposed = selectsColumns(node, name, found.axis, values.dims.length);
    const table = isTransposed ? transposeTable(values) : values;
    const cut = this.#cutAfterDequantize(node, scope, table, name);
    checkTableSize(node, name, cut.table);
    let ids = this.tracer.trace({ node, table: name }, found.ids, scope);
    if (found.dropsLastAxis) ids = dropLastAxis(node, ids);
    const [, scale = '', zero = ''] = cut.node === node ? [] : cut.node.inputs;
    const tableKey = this.#tableNames.getName(
      isTransposed ? `${name}^T` : name,
      findConstantOrigin(found.table, scope),
      findConstantOrigin(scale, scope),
      findConstantOrigin(zero, scope),
      isTransposed,
    );
    this.lookups.push({ ...cut, scope, tableName: tableKey, ids, isTransposed, bags: undefined });
  }

  #addBags(node: NodeProto, scope: GraphScope, bags: EmbeddingBags): void {
    const name = getTableName(bags.table, scope);
    checkShadowing(node, scope);
    const table = readTableValues(bags.table, scope, this.#external);
    if (typeof table === 'string') refuseNode(node, name, table);
    if (table.dims.length !== 2) {
      const rank = table.dims.length;
      refuseNode(node, name, `its table has rank ${rank}; a table of bags must be a matrix`);
    }
    checkTableSize(node, name, table);
    const ids = this.tracer.trace({ node, table: name }, bags.ids, scope);
    if (ids.axes.length !== 1 || typeof ids.axes[0] !== 'string') {
      refuseNode(
        node,
        bags.ids,
        'the ids of its bags must be one list of unknown length, an input of shape [n]',
      );
    }
    const output = node.outputs[0] ?? '';
    const parts = [
      findConstantOrigin(bags.table, scope),
      findConstantOrigin('', scope),
      findConstantOrigin('', scope),
      false,
    ];
    const tableKey = this.#tableNames.getName(name, ...parts);
    const lookup = { node, scope, output, table, ids, isTransposed: false, bags };
    this.lookups.push({ ...lookup, tableName: tableKey });
  }

  /** A quantised table is cut after the DequantizeLinear that makes its rows floats. */
  #cutAfterDequantize(
    node: NodeProto,
    scope: GraphScope,
    table: TableValues,
    name: string,
  ): Pick<OnnxLookup, 'node' | 'output' | 'table'> {
    const [output = ''] = node.outputs;
    const { elemType } = table;
    if (elemType !== ELEM_INT8 && elemType !== ELEM_UINT8) return { node, output, table };
    const readers = scope === this.#index ? this.#index.findReaders(output) : [];
    const [next] = readers;
    const isScaled = readers.length === 1 && next?.opType === 'DequantizeLinear';
    const scale = isScaled ? scope.origins.get(next.inputs[1] ?? '').source?.tensor : undefined;
    if (next === undefined || !isScaled || scale === undefined || countElements(scale.dims) !== 1) {
      refuseNode(
        node,
        name,
        `its table is quantised (${getElementTypeName(elemType)}); its rows must have one ` +
          'reader, a DequantizeLinear with a single scale',
      );
    }
    const values = dequantizeTable(next, table, scope, this.#external);
    if (typeof values === 'string') refuseNode(next, name, values);
    return { node: next, output: next.outputs[0] ?? '', table: values };
  }
}

function getRuleKey({ domain, opType }: NodeProto): string {
  return domain === '' ? opType : '';
}

/** The initializer's name, also behind Identity nodes. */
function getTableName(name: string, scope: GraphScope): string {
  return scope.origins.get(name).source?.name ?? name;
}

function checkShadowing(node: NodeProto, { shadowedName }: GraphScope): void {
  if (shadowedName === undefined) return;
  refuseNode(
    node,
    shadowedName,
    'a body around it reuses the name of a value outside the body; give each value its own name',
  );
}

/** Identifies a constant across scopes: its tensor, or the node that computes it. */
function findConstantOrigin(name: string, scope: GraphScope): unknown {
  return scope.origins.get(name).source?.tensor ?? findProducerInScope(name, scope);
}

/** A lookup that a rule recognised: names of its table and indices. */
interface LookupMatch {
  readonly table: string;
  readonly ids: string;
  /** Axis of the table; negative counts from its last. */
  readonly axis: number;
  /** The last axis of the indices holds one index and is not an axis of the result. */
  readonly dropsLastAxis: boolean;
}

/** @returns undefined when the node is not a lookup. @throws CubeError UNSUPPORTED */
type LookupRule = (node: NodeProto, origins: ValueOrigins) => LookupMatch | undefined;

const LOOKUP_RULES: ReadonlyMap<string, LookupRule> = new Map<string, LookupRule>([
  ['Gather', gatherRule],
  ['GatherND', gatherNdRule],
  ['GatherElements', gatherElementsRule],
]);

/** Lookup operators of other domains: PyTorch's ATen, onnxruntime's and Caffe2's. */
const FOREIGN_LOOKUP = /embed|gather|lookup|^ATen$|^SparseLengths/i;

function checkForeignOperator(node: NodeProto, origins: ValueOrigins): void {
  if (node.domain === '' && node.opType !== 'ATen') return;
  if (!FOREIGN_LOOKUP.test(node.opType)) return;
  const tensors = node.inputs.map((name) => ({ name, origin: origins.get(name) }));
  const table = tensors.find(
    ({ name, origin }) => name !== '' && isTableLike(origin.source?.tensor),
  );
  if (table === undefined || tensors.every(({ origin }) => origin.dependence !== 'values')) return;
  const operator = node.attributes.get('operator')?.text;
  const what = operator === undefined ? 'this operator' : `operator ${JSON.stringify(operator)}`;
  refuseNode(
    node,
    table.name,
    `lookups by ${what} are not supported; export the model with standard ONNX operators (Gather)`,
  );
}

function isTableLike(tensor: TensorProto | undefined): boolean {
  return tensor !== undefined && tensor.dims.length >= 2 && !isWideInteger(tensor.elemType);
}

/** Integers of 16 bits and more are ids, vocabularies and masks; of 8 bits, quantised tables. */
function isWideInteger(elemType: number): boolean {
  const name = getElementTypeName(elemType);
  return /^(u?int(16|32|64)|bool|string)$/.test(name);
}

/** Whether the node takes rows of a constant with indices that are known only in a run. */
function isLookup(node: NodeProto, origins: ValueOrigins): boolean {
  const [data = '', indices = ''] = node.inputs;
  const { dependence, source } = origins.get(data);
  if (dependence !== 'constant' || origins.get(indices).dependence !== 'values') return false;
  if (readIntegerConstant(source) !== undefined) return false;
  return source?.tensor === undefined || !isWideInteger(source.tensor.elemType);
}

function gatherRule(node: NodeProto, origins: ValueOrigins): LookupMatch | undefined {
  if (!isLookup(node, origins)) return undefined;
  const [table = '', ids = ''] = node.inputs;
  const axis = getIntAttribute(node, 'axis', 0);
  return { table, ids, axis, dropsLastAxis: false };
}

/** Whether an index selects a column of a matrix and not a row. */
function selectsColumns(node: NodeProto, table: string, axis: number, rank: number): boolean {
  const at = axis < 0 ? axis + rank : axis;
  if (at === 0) return false;
  if (at === 1 && rank === 2) return true;
  refuseNode(
    node,
    table,
    `it gathers along axis ${axis} of its table; only axis 0, and axis 1 of a matrix, are ` +
      'supported',
  );
}

function gatherNdRule(node: NodeProto, origins: ValueOrigins): LookupMatch | undefined {
  if (!isLookup(node, origins)) return undefined;
  const [table = '', ids = ''] = node.inputs;
  if (getIntAttribute(node, 'batch_dims', 0) !== 0) {
    refuseNode(node, table, 'lookups by GatherND with batch_dims are not supported; use Gather');
  }
  return { table, ids, axis: 0, dropsLastAxis: true };
}

function gatherElementsRule(node: NodeProto, origins: ValueOrigins): undefined {
  if (!isLookup(node, origins)) return;
  refuseNode(node, node.inputs[0] ?? '', `lookups by ${node.opType} are not supported; use Gather`);
}

function dropLastAxis(node: NodeProto, ids: IdsOrigin): IdsOrigin {
  if (ids.axes.at(-1) !== 1) {
    const last = ids.axes.at(-1) ?? 'none';
    refuseNode(
      node,
      node.inputs[1] ?? '',
      `lookups by ${node.opType} with ${last} indices for each row are not supported; use Gather`,
    );
  }
  return { ...ids, axes: ids.axes.slice(0, -1) };
}

function checkTableSize(node: NodeProto, name: string, { dims, elemType }: TableValues): void {
  const [rows = 0, ...inner] = dims;
  const dim = countElements(inner);
  if (elemType === ELEM_DOUBLE || dims.length === 0) {
    refuseNode(
      node,
      name,
      `tables of ${getElementTypeName(elemType)} are not supported; store the table as float32`,
    );
  }
  if (rows < 1 || dim < 1 || dim > DIM_MAX || rows > Number.MAX_SAFE_INTEGER / (4 * dim)) {
    refuseNode(
      node,
      name,
      `its table is ${rows} x ${dim}; it must have at least one row, and rows of 1 to ` +
        `${DIM_MAX} elements`,
    );
  }
}

const PASS_THROUGH_OPERATORS = new Set([
  'Identity',
  'Cast',
  'Reshape',
  'Squeeze',
  'Unsqueeze',
  'Flatten',
]);

/** Refuses OneHot(ids) × table, which is a lookup written as a product. */
function checkMatrixProduct(node: NodeProto, scope: GraphScope): void {
  if (node.domain !== '' || (node.opType !== 'MatMul' && node.opType !== 'Gemm')) return;
  const [left = '', right = ''] = node.inputs;
  for (const [ids, table] of [
    [left, right],
    [right, left],
  ] as const) {
    if (scope.origins.get(table).dependence !== 'constant') continue;
    let origin = scope.findProducer(ids);
    while (origin?.domain === '' && PASS_THROUGH_OPERATORS.has(origin.opType)) {
      origin = scope.findProducer(origin.inputs[0] ?? '');
    }
    if (origin?.opType !== 'OneHot') continue;
    if (scope.origins.get(origin.inputs[0] ?? '').dependence !== 'values') continue;
    const from = describeNode(origin);
    refuseNode(
      node,
      table,
      `it looks rows up by multiplying ${from} with a table, which is not supported; use Gather`,
    );
  }
}

/** The search repeats until it finds nothing new, so the number of functions is bounded. */
const FUNCTION_COUNT_MAX = 1000;

/** Keys of the model functions whose bodies gather, directly or through another function. */
export function findGatheringFunctions(functions: readonly FunctionProto[]): Set<string> {
  if (functions.length > FUNCTION_COUNT_MAX) {
    refuseModel(
      `it has ${functions.length} functions; at most ${FUNCTION_COUNT_MAX} are supported`,
    );
  }
  const gathering = new Set<string>();
  const gathers = (node: NodeProto): boolean =>
    LOOKUP_RULES.has(node.opType) ||
    FOREIGN_LOOKUP.test(node.opType) ||
    gathering.has(getFunctionKey(node.domain, node.opType)) ||
    node.bodies.some((body) => body.nodes.some(gathers));
  for (let before = -1; before !== gathering.size; ) {
    before = gathering.size;
    for (const { domain, name, nodes } of functions) {
      if (nodes.some(gathers)) gathering.add(getFunctionKey(domain, name));
    }
  }
  return gathering;
}

/** Refuses a call, with ids, of a function that gathers and could not be inlined. */
function checkFunctionCall(
  node: NodeProto,
  origins: ValueOrigins,
  gathering: ReadonlySet<string>,
): void {
  if (!gathering.has(getFunctionKey(node.domain, node.opType))) return;
  const table = node.inputs.find((name) => isTableLike(origins.get(name).source?.tensor));
  const hasIds = node.inputs.some((name) => origins.get(name).dependence === 'values');
  if (!hasIds) return;
  refuseNode(
    node,
    table ?? node.inputs[0] ?? '',
    'it calls a model function that gathers rows and cannot be inlined; export without functions',
  );
}
