/** Cuts the lookups out of a program: their outputs become feeds, and what only they needed goes. */

import type { Lookup } from './lookups.ts';
import { isParameter, type Op, type RawField, type Variable } from './program.ts';
import {
  columnsOf,
  type ProgramGraph,
  readNames,
  sliceOps,
  writtenNames,
} from './program-graph.ts';
import {
  asCheckedFeed,
  columnOp,
  holderVariable,
  isCheckedFeed,
  withColumn,
  withMainBlock,
} from './program-writer.ts';

export interface CutProgram {
  readonly bytes: Uint8Array;
  /** In the order of their columns: what the full program was fed, and rows in the place of ids. */
  readonly inputs: readonly Variable[];
  readonly keptInputs: readonly Variable[];
  readonly ops: readonly Op[];
  /** Names of the variables that are gone. */
  readonly removedVars: ReadonlySet<string>;
}

export function cutProgram(graph: ProgramGraph, lookups: readonly Lookup[]): CutProgram {
  const { program, outputs } = graph;
  const cut = new Map(lookups.map(({ output }) => [output.name, output]));
  const wanted = new Set(outputs.map(({ name }) => name));
  const ops = sliceOps(program, wanted, new Set(cut.keys()));
  const read = new Set([...wanted, ...ops.flatMap((op) => readNames(program, op))]);
  const inputs = inputOrder(graph, lookups, read);
  const keptInputs = inputs.filter(({ name }) => !cut.has(name));
  const removedVars = removedVariables(graph, ops, inputs);
  const fields = mainFields({ graph, lookups, ops, inputs, removedVars });
  return { bytes: withMainBlock(program, fields), inputs, keptInputs, ops, removedVars };
}

/** Each cut tensor takes the place of the ids that it was looked up by. */
function inputOrder(
  graph: ProgramGraph,
  lookups: readonly Lookup[],
  read: ReadonlySet<string>,
): Variable[] {
  const order = new Set<Variable>();
  for (const input of graph.inputs) {
    if (read.has(input.name)) order.add(input);
    for (const { ids, output } of lookups) {
      if (ids.input === input && read.has(output.name)) order.add(output);
    }
  }
  return [...order];
}

/** What was named by an operator that is gone, and is named by none that stays. */
function removedVariables(
  graph: ProgramGraph,
  ops: readonly Op[],
  inputs: readonly Variable[],
): Set<string> {
  const { program, outputs } = graph;
  const namesOf = (op: Op): string[] => [...readNames(program, op), ...writtenNames(program, op)];
  const kept = new Set([
    ...[...inputs, ...outputs].map(({ name }) => name),
    ...ops.flatMap(namesOf),
  ]);
  const stays = new Set<Op>(ops);
  const gone = program.blocks[0]!.ops.filter(
    (op) => !stays.has(op) && op.type !== 'feed' && op.type !== 'fetch',
  );
  const removed = new Set(gone.flatMap(namesOf).filter((name) => !kept.has(name)));
  for (const { name } of columnsOf(program, 'feed')) if (!kept.has(name)) removed.add(name);
  for (const { name } of columnsOf(program, 'fetch')) if (!kept.has(name)) removed.add(name);
  return removed;
}

interface Cutting {
  readonly graph: ProgramGraph;
  readonly lookups: readonly Lookup[];
  readonly ops: readonly Op[];
  readonly inputs: readonly Variable[];
  readonly removedVars: ReadonlySet<string>;
}

function mainFields(cutting: Cutting): RawField[] {
  const { graph, lookups, ops, inputs, removedVars } = cutting;
  const [main] = graph.program.blocks;
  const feeds = new Map(columnsOf(graph.program, 'feed').map((feed) => [feed.name, feed.op]));
  const fetches = columnsOf(graph.program, 'fetch');
  const keptOps = new Map<RawField, RawField>(ops.map(({ raw }) => [raw, raw]));
  const holder = holderNames(cutting);
  const newFeeds: RawField[] = [];
  inputs.forEach(({ name }, column) => {
    const feed = feeds.get(name);
    if (feed === undefined) newFeeds.push(columnOp('feed', { holder: holder.feed, name, column }));
    else keptOps.set(feed.raw, withColumn(feed, column));
  });
  const newFetches: RawField[] = [];
  graph.outputs.forEach(({ name }, column) => {
    const fetch = fetches.find((candidate) => candidate.name === name)?.op;
    if (fetch === undefined) {
      newFetches.push(columnOp('fetch', { holder: holder.fetch, name, column }));
    } else keptOps.set(fetch.raw, withColumn(fetch, column));
  });
  const isChecked = lookups.some(({ ids }) => isCheckedFeed(ids.input.raw));
  const vars = new Map<RawField, RawField>();
  for (const { name, raw } of main!.vars) if (!removedVars.has(name)) vars.set(raw, raw);
  for (const { raw } of isChecked ? inputs : []) vars.set(raw, asChecked(raw));
  return assemble(cutting, { vars, keptOps, newFeeds, newFetches });
}

function asChecked(raw: RawField): RawField {
  return isCheckedFeed(raw) ? raw : asCheckedFeed(raw);
}

function holderNames({ graph }: Cutting): { feed: string; fetch: string } {
  const [feed] = columnsOf(graph.program, 'feed');
  const [fetch] = columnsOf(graph.program, 'fetch');
  return {
    feed: feed?.op.inputs.get('X')?.[0] ?? 'feed',
    fetch: fetch?.op.outputs.get('Out')?.[0] ?? 'fetch',
  };
}

function assemble(
  cutting: Cutting,
  parts: {
    vars: ReadonlyMap<RawField, RawField>;
    keptOps: ReadonlyMap<RawField, RawField>;
    newFeeds: readonly RawField[];
    newFetches: readonly RawField[];
  },
): RawField[] {
  const { program } = cutting.graph;
  const [main] = program.blocks;
  const known = new Set(main!.vars.map(({ name }) => name));
  const holders = holderNames(cutting);
  const newVars = (['feed', 'fetch'] as const)
    .filter((type) => !known.has(holders[type]))
    .map((type) => holderVariable(type));
  const varFields = new Set(main!.vars.map(({ raw }) => raw));
  const opFields = new Set(main!.ops.map(({ raw }) => raw));
  const first = main!.ops[0]?.raw;
  const fields: RawField[] = [];
  for (const raw of main!.fields) {
    if (raw === first) fields.push(...newVars, ...parts.newFeeds);
    if (!varFields.has(raw) && !opFields.has(raw)) {
      fields.push(raw);
      continue;
    }
    const kept = parts.vars.get(raw) ?? parts.keptOps.get(raw);
    if (kept !== undefined) fields.push(kept);
    if (raw === main!.ops.at(-1)?.raw) fields.push(...parts.newFetches);
  }
  return fields;
}

/** Who still reads a table in the pruned program. */
export function readersOf({ program }: ProgramGraph, ops: readonly Op[], name: string): string[] {
  const types = ops.filter((op) => readNames(program, op).includes(name)).map(({ type }) => type);
  return [...new Set(types)];
}

/** The parameters that the pruned program needs. */
export function keptParameters(graph: ProgramGraph, { removedVars }: CutProgram): Set<string> {
  const names = new Set<string>();
  for (const { vars } of graph.program.blocks) {
    for (const variable of vars) {
      if (isParameter(variable) && !removedVars.has(variable.name)) names.add(variable.name);
    }
  }
  return names;
}
