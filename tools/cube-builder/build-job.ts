/** From a request to a job: inputs opened, the parent read, and all of it checked before anything is written. */
import { createHash } from 'node:crypto';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableDtype, TableRef } from '../../lib/core/manifest.ts';
import { encodeRows, type RowDtype } from '../../lib/core/row-codec.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import type { BuildJob, TableJob } from './build.ts';
import { parseShards, type TablePlan } from './build-plan.ts';
import type { BuildRequest, TableOrigin, TableRequest } from './build-request.ts';
import { openKeys } from './sources/key-file.ts';
import { openSources } from './sources/open-sources.ts';
import {
  asFloats,
  fileSource,
  inputOfDeletes,
  inputOfLayers,
  inputOfSource,
  storedAs,
  type TableInput,
} from './table-input.ts';
import { versionContent } from './version-content.ts';

/** @throws CubeError saying what is wrong, before anything is written */
export async function makeJob(folder: string, request: BuildRequest): Promise<BuildJob> {
  const { bundle, version } = request;
  const parent =
    request.parent === undefined
      ? undefined
      : await openRepository(folder).manifest(bundle, request.parent);
  const shardNum = shardNumOf(request, parent);
  const opening = { folder, bundle, request, parent };
  const content = await versionContent(folder, request, parent);
  const tables = (
    await Promise.all(request.tables.map((table) => openTable(table, opening)))
  ).flat();
  checkNames(tables);
  const files = [...content.files].map(([path, bytes]) => ({
    ...{ path, bytes: bytes.length },
    sha256: createHash('sha256').update(bytes).digest('hex'),
  }));
  const { hash, slots } = content;
  const plans = tables.map(({ plan }) => plan);
  const all = Array.from({ length: shardNum }, (_, shard) => shard);
  const { onlyShards, publish, memoryBytes, threads } = request;
  return {
    plan: {
      ...{ bundle, version, parent: request.parent, shardNum, hash, slots, files },
      tables: plans,
    },
    files: content.files,
    tables,
    chains: chainsOf(plans, parent, request.chainMax),
    shards: onlyShards === undefined ? all : parseShards(onlyShards, shardNum),
    publish: publish && onlyShards === undefined,
    ...{ memoryBytes, threads },
  };
}

function invalid(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}

function shardNumOf({ shardNum }: BuildRequest, parent: Manifest | undefined): number {
  const parents = parent?.tables[0]?.shardNum;
  if (parents !== undefined && shardNum !== undefined && parents !== shardNum) {
    invalid(
      `--shard-num ${shardNum}: version ${parent?.version} has ${parents} shards, and a delta has its ` +
        "parent's; build a base to change that",
    );
  }
  return shardNum ?? parents ?? invalid('--shard-num is missing');
}

interface Opening {
  /** The repository's: it is made only when nothing is wrong with the rest. */
  readonly folder: string;
  readonly bundle: string;
  readonly request: BuildRequest;
  readonly parent: Manifest | undefined;
}

async function openTable(table: TableRequest, opening: Opening): Promise<TableJob[]> {
  const inputs = await openOrigin(table.input, opening);
  const old = table.old === undefined ? undefined : await openOrigin(table.old, opening);
  const jobs: TableJob[] = [];
  for (const input of inputs) {
    const before = old && oldSideOf(input, inputs, old);
    if (before !== undefined) checkComparable(before, input);
    const plan = planOf(table, input, before !== undefined, opening);
    const rows = rowsFor(plan, input, before);
    const deletes = await deletesOf(table, rows.input, inputs);
    const { search, onDuplicate } = plan;
    jobs.push({
      plan,
      inputs: [rows.input, ...deletes],
      oldInputs: rows.before === undefined ? [] : [rows.before],
      reading: JSON.stringify([table.input, table.old, table.deletes, search, onDuplicate]),
    });
  }
  return jobs;
}

/** The table of that name; or the only one, where either side has one. */
function oldSideOf(
  { name }: TableInput,
  inputs: readonly TableInput[],
  old: readonly TableInput[],
): TableInput {
  if (inputs.length === 1 && old.length === 1) return old[0]!;
  const gone = old.find((one) => inputs.every((other) => other.name !== one.name));
  if (gone !== undefined) {
    invalid(
      `table ${gone.name} is on the old side only; a delta takes no table away: ` +
        'name the table to compare (--table), or build a base',
    );
  }
  return (
    old.find((one) => one.name === name) ??
    invalid(`table ${name} is on the new side only; it has nothing to be compared with`)
  );
}

/** Rows as they can be compared and built: f32, or as the table's dtype stores them. */
function rowsFor(
  { dtype, search }: TablePlan,
  input: TableInput,
  before: TableInput | undefined,
): { input: TableInput; before: TableInput | undefined } {
  if (dtype === 'bytes') return { input, before };
  if (before === undefined)
    return { input: input.dtype === dtype ? input : asFloats(input), before };
  if (input.dtype === 'f32' && before.dtype === 'f32') return { input, before };
  return { input: storedAs(input, dtype, search), before: storedAs(before, dtype, search) };
}

async function openOrigin(origin: TableOrigin, opening: Opening): Promise<TableInput[]> {
  if (!('version' in origin)) {
    return (await openSources(origin)).map(inputOfSource);
  }
  const { folder, bundle } = opening;
  const repository = openRepository(folder);
  const { tables } = await repository.manifest(bundle, origin.version);
  const wanted = tables.filter(({ name }) => origin.table === undefined || name === origin.table);
  if (wanted.length === 0) {
    invalid(
      `version ${origin.version} of ${bundle} has no table ${origin.table} ` +
        `(it has: ${tables.map(({ name }) => name).join(', ')})`,
    );
  }
  return wanted.map((table) => inputOfLayers(repository, bundle, table));
}

async function deletesOf(
  { deletes = [], input }: TableRequest,
  like: TableInput,
  tables: readonly TableInput[],
): Promise<TableInput[]> {
  if (deletes.length > 0 && tables.length > 1) {
    const names = tables.map(({ name }) => name).join(', ');
    invalid(`${deletes[0]} is for one table, and the input has several (${names}): use --spec`);
  }
  const slot = 'paths' in input ? input.signKey : undefined;
  return Promise.all(
    deletes.map(async (path) => inputOfDeletes(like, fileSource(path), await openKeys(path, slot))),
  );
}

function checkComparable(before: TableInput, after: TableInput): void {
  if (before.dim === after.dim) return;
  invalid(
    `table ${after.name}: rows of ${describe(before)} cannot be compared with rows of ${describe(after)}`,
  );
}

function describe({ dim }: TableInput): string {
  return dim === 0 ? 'any length' : `${dim} numbers`;
}

function planOf(
  table: TableRequest,
  input: TableInput,
  isDiff: boolean,
  { request, parent }: Opening,
): TablePlan {
  const { name, dim } = input;
  const below = parent?.tables.find((candidate) => candidate.name === name);
  const isDelta = request.jobMode === 'delta' && below !== undefined;
  if (isDiff && !isDelta) {
    invalid(
      `table ${name} is not in version ${parent?.version}: there is nothing to make a delta on`,
    );
  }
  const dtype = dtypeOf(table, input, below);
  if (below !== undefined && isDelta) checkBelow(below, input, dtype, parent!.version);
  const defaultRow = defaultRowOf(table.defaultRow, dim, name);
  if (defaultRow !== undefined && dtype !== 'bytes') checkDefaultRow(defaultRow, dtype, name);
  if (table.search !== undefined && dtype !== 'i8') {
    invalid(`table ${name}: --i8-search is of dtype i8, and this table's is ${dtype}`);
  }
  return {
    ...{ name, dim, dtype },
    defaultRow: defaultRow ?? (isDelta ? below.defaultRow : []),
    kind: isDelta ? 'delta' : 'base',
    mode: isDiff ? 'diff' : isDelta ? 'delta' : 'base',
    layout: table.layout,
    search: table.search ?? 'range',
    onDuplicate: table.onDuplicate ?? 'last',
  };
}

function dtypeOf(
  { dtype }: TableRequest,
  { name, dim, dtype: stored }: TableInput,
  below: TableRef | undefined,
): TableDtype {
  if (dim === 0) {
    if (dtype !== undefined && dtype !== 'bytes') {
      invalid(`table ${name}: values of any length have dtype bytes, not ${dtype}`);
    }
    return 'bytes';
  }
  const chosen = dtype ?? below?.dtype ?? stored;
  if (chosen === 'bytes') invalid(`table ${name}: rows of ${dim} numbers have no dtype bytes`);
  return chosen;
}

function checkBelow(
  below: TableRef,
  { name, dim }: TableInput,
  dtype: TableDtype,
  version: string,
): void {
  if (below.dim !== dim || below.dtype !== dtype) {
    invalid(
      `table ${name}: ${dtype} × ${dim} is no delta on ${below.dtype} × ${below.dim} of version ${version}; ` +
        'build a base to change that',
    );
  }
}

function defaultRowOf(
  given: readonly number[] | undefined,
  dim: number,
  name: string,
): readonly number[] | undefined {
  if (given === undefined || given.length === dim || given.length === 0) return given;
  if (dim === 0) invalid(`table ${name}: values of any length have no default row`);
  if (given.length === 1) return new Array<number>(dim).fill(given[0]!);
  return invalid(`table ${name}: a default row of ${given.length} numbers for rows of ${dim}`);
}

/** It is answered as rows are: as stored, and as f32. */
function checkDefaultRow(row: readonly number[], dtype: RowDtype, name: string): void {
  const floats = Float32Array.from(row);
  try {
    if (!floats.every(Number.isFinite)) invalid('an element is beyond what an f32 holds');
    encodeRows(dtype, floats, Math.max(1, row.length));
  } catch (error) {
    invalid(`table ${name}: --default-row: ${CubeError.from(error).message}`);
  }
}

function checkNames(tables: readonly TableJob[]): void {
  const names = tables.map(({ plan }) => plan.name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined) invalid(`table ${twice} is read twice; name one of them otherwise`);
  if (names.length === 0) invalid('the input has no table');
}

/** The parent's layers of tables that are deltas. @throws CubeError INVALID_ARGUMENT when a chain is long enough */
function chainsOf(
  plans: readonly TablePlan[],
  parent: Manifest | undefined,
  chainMax: number,
): Map<string, readonly (readonly LayerRef[])[]> {
  const chains = new Map<string, readonly (readonly LayerRef[])[]>();
  for (const { name, kind } of plans) {
    if (kind === 'base') continue;
    const { shards } = parent!.tables.find((table) => table.name === name)!;
    const depth = shards.reduce((most, layers) => Math.max(most, layers.length), 0);
    if (depth >= chainMax) {
      invalid(
        `table ${name} of version ${parent?.version} has ${depth} layers already, --chain-max is ${chainMax}; ` +
          `merge them first: cube-builder compact --version ${parent?.version}`,
      );
    }
    chains.set(name, shards);
  }
  return chains;
}
