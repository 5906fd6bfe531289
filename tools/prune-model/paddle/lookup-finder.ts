/** Finds the operators of a program that look rows up by ids and that its outputs need. */

import { requireDefined } from '../../../lib/core/errors.ts';
import { countElements } from '../cut/table.ts';
import { type InputColumns, PaddleIdsTracer } from './ids-tracer.ts';
import { getInputName, getNumber, getNumbers, getText, isAttributeSet } from './op-attributes.ts';
import type { Parameter, Parameters } from './parameters.ts';
import {
  getElementTypeName,
  type Op,
  type Program,
  refuseOperator,
  TYPE_FP32,
  TYPE_LOD_TENSOR,
  TYPE_SELECTED_ROWS,
  type Variable,
} from './program.ts';
import type { ProgramGraph } from './program-graph.ts';

/** The table of a lookup; one object for all lookups that share it. */
export interface PaddleTable {
  /** Name in the model. Another padding_idx gives another table, because its rows differ. */
  readonly name: string;
  readonly dim: number;
  /** Absent when a parameter server holds the table. */
  readonly parameter?: Parameter;
  /** The key whose row is zeros. */
  readonly padding?: number;
}

export interface PaddleLookup {
  readonly op: Op;
  /** The rows: they become an input. */
  readonly output: Variable;
  /** The variable from which the operator takes ids. */
  readonly idsName: string;
  readonly ids: InputColumns;
  readonly table: PaddleTable;
  /** Set when the operator also sums the rows of each sequence. */
  readonly isPooled: boolean;
}

interface LookupForm {
  /** Parameter with the outputs, one for each variable of Ids. */
  readonly outputs: string;
  /** The table may be on a parameter server. */
  readonly isRemote?: boolean;
  readonly isPooled?: boolean;
  /** The row is an additional axis; otherwise it replaces the last axis of the ids, which is 1. */
  readonly isAxisAdded?: boolean;
}

const LOOKUP_FORMS: Readonly<Record<string, LookupForm>> = {
  lookup_table: { outputs: 'Out' },
  lookup_table_v2: { outputs: 'Out', isAxisAdded: true },
  fused_embedding_seq_pool: { outputs: 'Out', isPooled: true },
  distributed_lookup_table: { outputs: 'Outputs', isRemote: true },
  pull_sparse: { outputs: 'Out', isRemote: true },
  pull_sparse_v2: { outputs: 'Out', isRemote: true, isAxisAdded: true },
  pull_box_sparse: { outputs: 'Out', isRemote: true },
  pull_gpups_sparse: { outputs: 'Out', isRemote: true },
};

const UNSUPPORTED_LOOKUPS: Readonly<Record<string, string>> = {
  lookup_table_dequant: 'quantised tables are not supported; export the model with float32 tables',
  c_embedding:
    'its table is one part of a table that several workers hold (start_index); merge the parts',
  lookup_sparse_table: 'tables that grow while they are read are not supported',
  lookup_sparse_table_read: 'tables that grow while they are read are not supported',
  pyramid_hash: 'lookups that hash their ids are not supported; hash the ids before the model',
  fused_embedding_fc_lstm: 'fused lookups are not supported; export the model without this fusion',
};

function isLookupOp({ type }: Op): boolean {
  return Object.hasOwn(LOOKUP_FORMS, type) || Object.hasOwn(UNSUPPORTED_LOOKUPS, type);
}

/** Names of tables that may be absent from the parameters. */
export function findRemoteTables({ main }: Program): Set<string> {
  const names = new Set<string>();
  for (const op of main.ops) {
    const form = Object.hasOwn(LOOKUP_FORMS, op.type) ? LOOKUP_FORMS[op.type] : undefined;
    if (form === undefined) continue;
    const isRemote =
      form.isRemote ||
      isAttributeSet(op, 'is_distributed') ||
      isAttributeSet(op, 'remote_prefetch');
    const name = getInputName(op, 'W');
    if (isRemote && name !== undefined) names.add(name);
  }
  return names;
}

/** @throws CubeError UNSUPPORTED naming a lookup that cannot be cut */
export function findPaddleLookups(graph: ProgramGraph, parameters: Parameters): PaddleLookup[] {
  const tracer = new PaddleIdsTracer(graph);
  const sources = new Map<string, PaddleTable>();
  const found: PaddleLookup[] = [];
  for (const op of graph.ops) {
    refuseInBlocks(graph.program, op);
    if (isLookupOp(op))
      found.push(...new LookupReader(graph, parameters, tracer, sources).read(op));
  }
  return found;
}

function refuseInBlocks({ blocks }: Program, op: Op): void {
  const seen = new Set(op.blocks);
  for (const index of seen) {
    for (const inner of requireDefined(blocks[index], 'a block').ops) {
      if (isLookupOp(inner))
        refuseOperator(
          inner,
          `it is inside a block of ${op.type}; only lookups of the main block are supported`,
        );
      for (const deeper of inner.blocks) seen.add(deeper);
    }
  }
}

class LookupReader {
  readonly #graph: ProgramGraph;
  readonly #parameters: Parameters;
  readonly #tracer: PaddleIdsTracer;
  readonly #sources: Map<string, PaddleTable>;

  constructor(
    graph: ProgramGraph,
    parameters: Parameters,
    tracer: PaddleIdsTracer,
    sources: Map<string, PaddleTable>,
  ) {
    this.#graph = graph;
    this.#parameters = parameters;
    this.#tracer = tracer;
    this.#sources = sources;
  }

  /** @returns an empty list when the ids are constant or the table is an input */
  read(op: Op): PaddleLookup[] {
    const isTableInput = (op.inputs.get('W') ?? []).some((name) =>
      this.#graph.inputs.some((input) => input.name === name),
    );
    if (isTableInput) return [];
    const form = LOOKUP_FORMS[op.type];
    const ids = op.inputs.get('Ids') ?? [];
    const paths = ids.map((name) => this.#tracer.trace(name));
    if (ids.length > 0 && paths.every((path) => path === undefined)) return [];
    if (form === undefined)
      refuseOperator(op, requireDefined(UNSUPPORTED_LOOKUPS[op.type], op.type));
    const outputs = op.outputs.get(form.outputs) ?? [];
    if (ids.length === 0 || outputs.length !== ids.length) {
      refuseOperator(op, `it has ${ids.length} ids but ${outputs.length} outputs`);
    }
    return outputs.map((name, i): PaddleLookup => {
      const path = paths[i];
      if (path === undefined)
        refuseOperator(
          op,
          `its ids ${JSON.stringify(ids[i])} are constant, those of its other outputs are not`,
        );
      const output = this.#graph.getVariable(name);
      if (this.#graph.findProducers(name).length > 1) {
        refuseOperator(op, `${JSON.stringify(name)} is computed twice`);
      }
      const dim = output.dims.at(-1) ?? -1;
      const table = this.#table(op, form, i, dim);
      const idsName = requireDefined(ids[i], 'the ids of a lookup');
      const lookup = { op, output, idsName, ids: path, table };
      checkDeclaredShape(lookup, form);
      checkDeclaredAxes(op, form, this.#graph.getVariable(idsName).dims, output.dims);
      return { ...lookup, isPooled: form.isPooled ?? false };
    });
  }

  #table(op: Op, form: LookupForm, position: number, declaredDim: number): PaddleTable {
    const name = getInputName(op, 'W');
    const isThere = name !== undefined && !this.#parameters.isAbsent(name);
    if (!isThere && form.isRemote !== true && name === undefined)
      refuseOperator(op, 'it has no table');
    const padding = getPaddingKey(op);
    if (!isThere) return this.#remote(op, name, position, declaredDim, padding);
    const parameter = this.#parameter(op, name);
    const [rows = 0, dim = 0] = parameter.dims;
    if (dim <= 0 || rows <= 0) refuseOperator(op, `its table ${JSON.stringify(name)} has no rows`);
    return this.#shareTable({ name, dim, parameter }, padding);
  }

  #parameter(op: Op, name: string): Parameter {
    const quoted = `its table ${JSON.stringify(name)}`;
    const [producer] = this.#graph.findProducers(name);
    if (producer !== undefined)
      refuseOperator(op, `${quoted} is computed by ${producer.type}; it must be a parameter`);
    const { kind, elementType } = this.#graph.getVariable(name);
    const parameter = this.#parameters.get(name);
    if (parameter === undefined || (kind !== TYPE_LOD_TENSOR && kind !== TYPE_SELECTED_ROWS)) {
      refuseOperator(op, `${quoted} is not a parameter`);
    }
    if (elementType !== TYPE_FP32) {
      refuseOperator(
        op,
        `${quoted} is of ${getElementTypeName(elementType)}; only float32 is supported`,
      );
    }
    if (parameter.dims.length !== 2) {
      refuseOperator(op, `${quoted} is [${parameter.dims.join(', ')}]; it must have two axes`);
    }
    return parameter;
  }

  /** A table on a parameter server, known by its number; one for each row size. */
  #remote(
    op: Op,
    name: string | undefined,
    position: number,
    declaredDim: number,
    padding: number | undefined,
  ): PaddleTable {
    const sizes = [...getNumbers(op, 'size'), ...getNumbers(op, 'EmbeddingDim')];
    const dim = sizes.length > 1 ? (sizes[position] ?? -1) : (sizes[0] ?? declaredDim);
    if (dim <= 0)
      refuseOperator(op, 'the row size of its table is not declared (size, EmbeddingDim)');
    const id = getNumber(op, 'TableId', getNumber(op, 'table_id', 0));
    const numbered = `${op.type}_${id}`;
    const tableName = getText(op, 'table_names', name ?? numbered) || numbered;
    const suffix = sizes.length > 1 ? `_${dim}` : '';
    return this.#shareTable({ name: `${tableName}${suffix}`, dim }, padding);
  }

  /** Returns one object for all lookups of a table with the same padding_idx. */
  #shareTable(source: PaddleTable, padding: number | undefined): PaddleTable {
    const sharing = [...this.#sources.values()].filter(({ name }) => name === source.name);
    const name = padding === undefined ? source.name : `${source.name} with padding ${padding}`;
    const [first] = sharing;
    const isFirst = first === undefined || first.padding === padding;
    const chosen = isFirst ? source.name : name;
    const existing = this.#sources.get(chosen);
    if (existing !== undefined && existing.padding === padding && existing.dim === source.dim)
      return existing;
    const table = { ...source, name: chosen, ...(padding === undefined ? {} : { padding }) };
    this.#sources.set(chosen, table);
    return table;
  }
}

/** Operators that return zeros for PaddingId (default 0) without asking the server. */
const PADDED_PULL_OPERATORS = new Set(['pull_sparse', 'pull_sparse_v2']);

/** Paddle's value for no padding is -1. */
function getPaddingKey(op: Op): number | undefined {
  if (PADDED_PULL_OPERATORS.has(op.type)) {
    const padding = getNumber(op, 'PaddingId', 0);
    return padding < 0 ? undefined : padding;
  }
  const padding = getNumber(op, 'padding_idx', -1);
  if (padding < -1) refuseOperator(op, `its padding_idx is ${padding}, expected -1 or a row`);
  return padding === -1 ? undefined : padding;
}

/** Checks the declared shape; Paddle infers shapes anew for later operators. */
function checkDeclaredAxes(
  op: Op,
  form: LookupForm,
  ids: readonly number[],
  outputDims: readonly number[],
): void {
  if (form.isPooled === true) return;
  const version = getText(op, 'lookup_table_version', 'lookup_table');
  const isAdded = form.isAxisAdded ?? version === 'lookup_table_v2';
  const kept = isAdded ? ids : ids.slice(0, -1);
  const fits =
    (isAdded || ids.at(-1) === 1) &&
    outputDims.length === kept.length + 1 &&
    kept.every((dim, axis) => dim === outputDims[axis] || dim === -1 || outputDims[axis] === -1);
  if (!fits)
    refuseOperator(
      op,
      `its output is declared as [${outputDims.join(', ')}], which does not match ids of ` +
        `[${ids.join(', ')}]`,
    );
}

function checkDeclaredShape(lookup: Omit<PaddleLookup, 'isPooled'>, form: LookupForm): void {
  const { op, output, ids, table } = lookup;
  const [first, ...tail] = output.dims;
  const count = countElements(tail);
  const isPooled = form.isPooled === true;
  if (output.elementType !== TYPE_FP32) {
    refuseOperator(
      op,
      `its output is ${getElementTypeName(output.elementType)}; only float32 is supported`,
    );
  }
  if (isPooled && getText(op, 'combiner', 'sum') !== 'sum') {
    refuseOperator(
      op,
      `its combiner is ${JSON.stringify(getText(op, 'combiner', ''))}; only "sum" is supported`,
    );
  }
  if (isPooled && (ids.input.lodLevel !== 1 || ids.columns.length !== 1)) {
    refuseOperator(op, 'its ids must be sequences with one id per element');
  }
  if (first === undefined || output.dims.at(-1) !== table.dim) {
    refuseOperator(
      op,
      `its output is declared as [${output.dims.join(', ')}], but its rows have ${table.dim} ` +
        'elements',
    );
  }
  if (count !== ids.columns.length * table.dim) {
    refuseOperator(
      op,
      `its output is declared as [${output.dims.join(', ')}], which does not match ` +
        `${ids.columns.length} ids with rows of ${table.dim}`,
    );
  }
}
