/** Finds the operators that look rows up by ids, in what a program's outputs need. */
import { inputOf, isSet, numberOf, numbersOf, textOf } from './attributes.ts';
import { type IdsPath, IdsTracer } from './ids-path.ts';
import type { Parameter, Parameters } from './parameters.ts';
import {
  elementName,
  type Op,
  type Program,
  TYPE_FP32,
  TYPE_LOD_TENSOR,
  TYPE_SELECTED_ROWS,
  type Variable,
} from './program.ts';
import type { ProgramGraph } from './program-graph.ts';
import { refuse } from './refusal.ts';

/** Where rows are looked up; the same source for all lookups that share it. */
export interface TableSource {
  /** Its name in the model; rows that are zeros by padding_idx make a table of their own. */
  readonly name: string;
  readonly dim: number;
  /** Absent: the program has no such parameter, a server holds the table. */
  readonly parameter?: Parameter;
  /** The key whose row is zeros. */
  readonly padding?: number;
}

export interface Lookup {
  readonly op: Op;
  /** What becomes an input. */
  readonly output: Variable;
  /** The variable that the operator takes ids from. */
  readonly idsName: string;
  readonly ids: IdsPath;
  readonly table: TableSource;
  /** The operator also sums the rows of each sequence. */
  readonly isPooled: boolean;
}

interface Form {
  /** Parameter of its outputs, one for each of Ids. */
  readonly outputs: string;
  /** The table is not (or need not be) in the program. */
  readonly isRemote?: boolean;
  readonly isPooled?: boolean;
  /** The row is one more axis; otherwise it takes the place of the last axis of the ids, which is 1. */
  readonly isAxisAdded?: boolean;
}

const FORMS: Readonly<Record<string, Form>> = {
  lookup_table: { outputs: 'Out' },
  lookup_table_v2: { outputs: 'Out', isAxisAdded: true },
  fused_embedding_seq_pool: { outputs: 'Out', isPooled: true },
  distributed_lookup_table: { outputs: 'Outputs', isRemote: true },
  pull_sparse: { outputs: 'Out', isRemote: true },
  pull_sparse_v2: { outputs: 'Out', isRemote: true, isAxisAdded: true },
  pull_box_sparse: { outputs: 'Out', isRemote: true },
  pull_gpups_sparse: { outputs: 'Out', isRemote: true },
};

const REFUSED: Readonly<Record<string, string>> = {
  lookup_table_dequant: 'its table is quantised, eight bits a number',
  c_embedding: 'its table is a part of one that several workers hold (start_index)',
  lookup_sparse_table: 'its table grows while it is read',
  lookup_sparse_table_read: 'its table grows while it is read',
  pyramid_hash: 'it hashes its ids itself',
  fused_embedding_fc_lstm: 'it does more than look rows up',
};

function isLookup({ type }: Op): boolean {
  return Object.hasOwn(FORMS, type) || Object.hasOwn(REFUSED, type);
}

/** Tables that need not be among the parameters. */
export function remoteTables({ blocks }: Program): Set<string> {
  const names = new Set<string>();
  for (const op of blocks[0]!.ops) {
    if (!Object.hasOwn(FORMS, op.type)) continue;
    const isRemote =
      FORMS[op.type]!.isRemote || isSet(op, 'is_distributed') || isSet(op, 'remote_prefetch');
    const name = inputOf(op, 'W');
    if (isRemote && name !== undefined) names.add(name);
  }
  return names;
}

/** @throws CubeError UNSUPPORTED naming a lookup that cannot be cut */
export function findLookups(graph: ProgramGraph, parameters: Parameters): Lookup[] {
  const tracer = new IdsTracer(graph);
  const sources = new Map<string, TableSource>();
  const found: Lookup[] = [];
  for (const op of graph.ops) {
    refuseInBlocks(graph.program, op);
    if (isLookup(op)) found.push(...new LookupReader(graph, parameters, tracer, sources).read(op));
  }
  return found;
}

function refuseInBlocks({ blocks }: Program, op: Op): void {
  const seen = new Set(op.blocks);
  for (const index of seen) {
    for (const inner of blocks[index]!.ops) {
      if (isLookup(inner)) refuse(inner, `it is in a block of ${op.type}`);
      for (const deeper of inner.blocks) seen.add(deeper);
    }
  }
}

class LookupReader {
  readonly #graph: ProgramGraph;
  readonly #parameters: Parameters;
  readonly #tracer: IdsTracer;
  readonly #sources: Map<string, TableSource>;

  constructor(
    graph: ProgramGraph,
    parameters: Parameters,
    tracer: IdsTracer,
    sources: Map<string, TableSource>,
  ) {
    this.#graph = graph;
    this.#parameters = parameters;
    this.#tracer = tracer;
    this.#sources = sources;
  }

  /** @returns nothing when its ids or its table are not what makes a lookup */
  read(op: Op): Lookup[] {
    const isFedTable = (op.inputs.get('W') ?? []).some((name) =>
      this.#graph.inputs.some((input) => input.name === name),
    );
    if (isFedTable) return [];
    const form = FORMS[op.type];
    const ids = op.inputs.get('Ids') ?? [];
    const paths = ids.map((name) => this.#tracer.trace(name));
    if (ids.length > 0 && paths.every((path) => path === undefined)) return [];
    if (form === undefined) refuse(op, REFUSED[op.type]!);
    const outputs = op.outputs.get(form.outputs) ?? [];
    if (ids.length === 0 || outputs.length !== ids.length) {
      refuse(op, `it has ${ids.length} ids and ${outputs.length} outputs`);
    }
    return outputs.map((name, i): Lookup => {
      const path = paths[i];
      if (path === undefined) refuse(op, `its ids ${JSON.stringify(ids[i])} are constant`);
      const output = this.#graph.variable(name);
      if (this.#graph.makers(name).length > 1) {
        refuse(op, `${JSON.stringify(name)} is made twice`);
      }
      const dim = output.dims.at(-1) ?? -1;
      const table = this.#table(op, form, i, dim);
      const lookup = { op, output, idsName: ids[i]!, ids: path, table };
      checkShapes(lookup);
      checkAxes(op, this.#graph.variable(ids[i]!).dims, output.dims);
      return { ...lookup, isPooled: form.isPooled ?? false };
    });
  }

  #table(op: Op, form: Form, position: number, declaredDim: number): TableSource {
    const name = inputOf(op, 'W');
    const isThere = name !== undefined && !this.#parameters.isAbsent(name);
    if (!isThere && form.isRemote !== true && name === undefined) refuse(op, 'it has no table');
    const pads = paddingOf(op);
    if (!isThere) return this.#remote(op, name, position, declaredDim, pads);
    const parameter = this.#parameter(op, name);
    const [rows = 0, dim = 0] = parameter.dims;
    if (dim <= 0 || rows <= 0) refuse(op, `its table ${JSON.stringify(name)} has no rows`);
    return this.#once({ name, dim, parameter }, pads);
  }

  #parameter(op: Op, name: string): Parameter {
    const quoted = `its table ${JSON.stringify(name)}`;
    const [maker] = this.#graph.makers(name);
    if (maker !== undefined) refuse(op, `${quoted} is computed by ${maker.type}`);
    const { kind, elementType } = this.#graph.variable(name);
    const parameter = this.#parameters.get(name);
    if (parameter === undefined || (kind !== TYPE_LOD_TENSOR && kind !== TYPE_SELECTED_ROWS)) {
      refuse(op, `${quoted} is not a parameter`);
    }
    if (elementType !== TYPE_FP32) {
      refuse(op, `${quoted} is of ${elementName(elementType)}, only float32 is understood`);
    }
    if (parameter.dims.length !== 2) {
      refuse(op, `${quoted} is [${parameter.dims.join(', ')}], not rows of one size`);
    }
    return parameter;
  }

  /** A table that the program only has a number for; one for each size of rows. */
  #remote(
    op: Op,
    name: string | undefined,
    position: number,
    declaredDim: number,
    pads: number | undefined,
  ): TableSource {
    const sizes = [...numbersOf(op, 'size'), ...numbersOf(op, 'EmbeddingDim')];
    const dim = sizes.length > 1 ? (sizes[position] ?? -1) : (sizes[0] ?? declaredDim);
    if (dim <= 0) refuse(op, `nothing says how long the rows of its table are`);
    const id = numberOf(op, 'TableId', numberOf(op, 'table_id', 0));
    const given = textOf(op, 'table_names', name ?? `${op.type}_${id}`);
    const source = `${given === '' ? `${op.type}_${id}` : given}${sizes.length > 1 ? `_${dim}` : ''}`;
    return this.#once({ name: source, dim }, pads);
  }

  /** Lookups that differ in padding_idx do not share: each has other rows. */
  #once(source: TableSource, padding: number | undefined): TableSource {
    const sharing = [...this.#sources.values()].filter(({ name }) => name === source.name);
    const name = padding === undefined ? source.name : `${source.name} with padding ${padding}`;
    const [first] = sharing;
    const isFirst = first === undefined || first.padding === padding;
    const chosen = isFirst ? source.name : name;
    const known = this.#sources.get(chosen);
    if (known !== undefined && known.padding === padding && known.dim === source.dim) return known;
    const made = { ...source, name: chosen, ...(padding === undefined ? {} : { padding }) };
    this.#sources.set(chosen, made);
    return made;
  }
}

/** These give zeros for their PaddingId, 0 when they do not say it, and ask no server for it. */
const PULL_PADS = new Set(['pull_sparse', 'pull_sparse_v2']);

/** Paddle's own "none" is -1. */
function paddingOf(op: Op): number | undefined {
  if (PULL_PADS.has(op.type)) {
    const padding = numberOf(op, 'PaddingId', 0);
    return padding < 0 ? undefined : padding;
  }
  const padding = numberOf(op, 'padding_idx', -1);
  if (padding < -1) refuse(op, `its padding_idx is ${padding}`);
  return padding === -1 ? undefined : padding;
}

/** What runs a program makes the shapes anew: a declared one that is another would be fed to what comes behind. */
function checkAxes(op: Op, ids: readonly number[], made: readonly number[]): void {
  const form = FORMS[op.type]!;
  if (form.isPooled === true) return;
  const version = textOf(op, 'lookup_table_version', 'lookup_table');
  const isAdded = form.isAxisAdded ?? version === 'lookup_table_v2';
  const kept = isAdded ? ids : ids.slice(0, -1);
  const fits =
    (isAdded || ids.at(-1) === 1) &&
    made.length === kept.length + 1 &&
    kept.every((dim, axis) => dim === made[axis] || dim === -1 || made[axis] === -1);
  if (!fits) refuse(op, `it makes [${made.join(', ')}] of ids of [${ids.join(', ')}]`);
}

function checkShapes(lookup: Omit<Lookup, 'isPooled'>): void {
  const { op, output, ids, table } = lookup;
  const [first, ...tail] = output.dims;
  const count = tail.reduce((product, dim) => product * dim, 1);
  const isPooled = FORMS[op.type]!.isPooled === true;
  if (output.elementType !== TYPE_FP32) {
    refuse(op, `it makes ${elementName(output.elementType)}, only float32 is understood`);
  }
  if (isPooled && textOf(op, 'combiner', 'sum') !== 'sum') {
    refuse(op, `its combiner is ${JSON.stringify(textOf(op, 'combiner', ''))}, not "sum"`);
  }
  if (isPooled && (ids.input.lodLevel !== 1 || ids.columns.length !== 1)) {
    refuse(op, 'its ids are not sequences of single ids');
  }
  if (first === undefined || output.dims.at(-1) !== table.dim) {
    refuse(op, `it makes [${output.dims.join(', ')}] of rows of ${table.dim}`);
  }
  if (count !== ids.columns.length * table.dim) {
    refuse(
      op,
      `it makes [${output.dims.join(', ')}] of ${ids.columns.length} ids and rows of ${table.dim}`,
    );
  }
}
