/** Cuts the lookups out of a program: outputs become feeds, unneeded parts are removed. */

import type { RawField } from '../cut/protobuf-fields.ts';
import type { PaddleLookup } from './lookup-finder.ts';
import type { Parameters } from './parameters.ts';
import { isParameter, type Op, type Variable } from './program.ts';
import {
  collectReadNames,
  collectWrittenNames,
  findColumnOps,
  findNeededOps,
  type ProgramGraph,
} from './program-graph.ts';
import {
  encodeColumnOp,
  encodeHolderVariable,
  markFeedCheck,
  needsFeedCheck,
  replaceMainBlock,
  setColumn,
} from './program-writer.ts';

export interface CutProgram {
  readonly bytes: Uint8Array;
  /** Inputs in the order of their columns: those of the full program, with rows in place of ids. */
  readonly inputs: readonly Variable[];
  readonly keptInputs: readonly Variable[];
  readonly ops: readonly Op[];
  /** Names of the removed variables. */
  readonly removedVars: ReadonlySet<string>;
}

/** A program and where it was cut, as the steps after the cut share them. */
export interface PaddleCut {
  /** Path of the full program. */
  readonly path: string;
  readonly graph: ProgramGraph;
  readonly parameters: Parameters;
  readonly lookups: readonly PaddleLookup[];
  readonly cut: CutProgram;
}

export function cutProgram(graph: ProgramGraph, lookups: readonly PaddleLookup[]): CutProgram {
  const { program, outputs } = graph;
  const cut = new Map(lookups.map(({ output }) => [output.name, output]));
  const outputNames = new Set(outputs.map(({ name }) => name));
  const ops = findNeededOps(program, outputNames, new Set(cut.keys()));
  const read = new Set([...outputNames, ...ops.flatMap((op) => collectReadNames(program, op))]);
  const inputs = orderInputs(graph, lookups, read);
  const keptInputs = inputs.filter(({ name }) => !cut.has(name));
  const removedVars = findRemovedVariables(graph, ops, inputs);
  const fields = buildMainBlock({ graph, lookups, ops, inputs, removedVars });
  return { bytes: replaceMainBlock(program, fields), inputs, keptInputs, ops, removedVars };
}

/** Each new input takes the position of the ids of its lookup. */
function orderInputs(
  graph: ProgramGraph,
  lookups: readonly PaddleLookup[],
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

/** Variables that removed operators name and no kept operator does. */
function findRemovedVariables(
  graph: ProgramGraph,
  ops: readonly Op[],
  inputs: readonly Variable[],
): Set<string> {
  const { program, outputs } = graph;
  const getNames = (op: Op): string[] => [
    ...collectReadNames(program, op),
    ...collectWrittenNames(program, op),
  ];
  const kept = new Set([
    ...[...inputs, ...outputs].map(({ name }) => name),
    ...ops.flatMap(getNames),
  ]);
  const keptOps = new Set<Op>(ops);
  const removedOps = program.main.ops.filter(
    (op) => !keptOps.has(op) && op.type !== 'feed' && op.type !== 'fetch',
  );
  const removed = new Set(removedOps.flatMap(getNames).filter((name) => !kept.has(name)));
  for (const { name } of findColumnOps(program, 'feed')) if (!kept.has(name)) removed.add(name);
  for (const { name } of findColumnOps(program, 'fetch')) if (!kept.has(name)) removed.add(name);
  return removed;
}

interface CutContext {
  readonly graph: ProgramGraph;
  readonly lookups: readonly PaddleLookup[];
  readonly ops: readonly Op[];
  readonly inputs: readonly Variable[];
  readonly removedVars: ReadonlySet<string>;
}

function buildMainBlock(cutting: CutContext): RawField[] {
  const { graph, lookups, ops, inputs, removedVars } = cutting;
  const { main } = graph.program;
  const feeds = new Map(findColumnOps(graph.program, 'feed').map((feed) => [feed.name, feed.op]));
  const fetches = findColumnOps(graph.program, 'fetch');
  const keptOps = new Map<RawField, RawField>(ops.map(({ raw }) => [raw, raw]));
  const holder = findHolderNames(cutting);
  const newFeeds: RawField[] = [];
  inputs.forEach(({ name }, column) => {
    const feed = feeds.get(name);
    if (feed === undefined)
      newFeeds.push(encodeColumnOp('feed', { holder: holder.feed, name, column }));
    else keptOps.set(feed.raw, setColumn(feed, column));
  });
  const newFetches: RawField[] = [];
  graph.outputs.forEach(({ name }, column) => {
    const fetch = fetches.find((candidate) => candidate.name === name)?.op;
    if (fetch === undefined) {
      newFetches.push(encodeColumnOp('fetch', { holder: holder.fetch, name, column }));
    } else keptOps.set(fetch.raw, setColumn(fetch, column));
  });
  const isChecked = lookups.some(({ ids }) => needsFeedCheck(ids.input.raw));
  const vars = new Map<RawField, RawField>();
  for (const { name, raw } of main.vars) if (!removedVars.has(name)) vars.set(raw, raw);
  for (const { raw } of isChecked ? inputs : []) vars.set(raw, ensureFeedCheck(raw));
  return assembleFields(cutting, { vars, keptOps, newFeeds, newFetches });
}

function ensureFeedCheck(raw: RawField): RawField {
  return needsFeedCheck(raw) ? raw : markFeedCheck(raw);
}

function findHolderNames({ graph }: CutContext): { feed: string; fetch: string } {
  const [feed] = findColumnOps(graph.program, 'feed');
  const [fetch] = findColumnOps(graph.program, 'fetch');
  return {
    feed: feed?.op.inputs.get('X')?.[0] ?? 'feed',
    fetch: fetch?.op.outputs.get('Out')?.[0] ?? 'fetch',
  };
}

function assembleFields(
  cutting: CutContext,
  parts: {
    vars: ReadonlyMap<RawField, RawField>;
    keptOps: ReadonlyMap<RawField, RawField>;
    newFeeds: readonly RawField[];
    newFetches: readonly RawField[];
  },
): RawField[] {
  const { program } = cutting.graph;
  const { main } = program;
  const known = new Set(main.vars.map(({ name }) => name));
  const holders = findHolderNames(cutting);
  const newVars = (['feed', 'fetch'] as const)
    .filter((type) => !known.has(holders[type]))
    .map((type) => encodeHolderVariable(type));
  const varFields = new Set(main.vars.map(({ raw }) => raw));
  const opFields = new Set(main.ops.map(({ raw }) => raw));
  const first = main.ops[0]?.raw;
  const fields: RawField[] = [];
  for (const raw of main.fields) {
    if (raw === first) fields.push(...newVars, ...parts.newFeeds);
    if (!varFields.has(raw) && !opFields.has(raw)) {
      fields.push(raw);
      continue;
    }
    const kept = parts.vars.get(raw) ?? parts.keptOps.get(raw);
    if (kept !== undefined) fields.push(kept);
    if (raw === main.ops.at(-1)?.raw) fields.push(...parts.newFetches);
  }
  return fields;
}

/** Types of the operators that still read a table in the pruned program. */
export function findReaderTypes(
  { program }: ProgramGraph,
  ops: readonly Op[],
  name: string,
): string[] {
  const types = ops
    .filter((op) => collectReadNames(program, op).includes(name))
    .map(({ type }) => type);
  return [...new Set(types)];
}

/** Names of the parameters that the pruned program needs. */
export function findKeptParameters(graph: ProgramGraph, { removedVars }: CutProgram): Set<string> {
  const names = new Set<string>();
  for (const { vars } of graph.program.blocks) {
    for (const variable of vars) {
      if (isParameter(variable) && !removedVars.has(variable.name)) names.add(variable.name);
    }
  }
  return names;
}
