/** Turns a request into a job: opens inputs, reads the parent and checks it all before writing. */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableDtype, TableRef } from '../../lib/core/manifest.ts';
import { encodeRows, type RowDtype } from '../../lib/core/row-codec.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import type { BuildJob, TableJob } from './build.ts';
import { parseShardList, type TablePlan } from './build-plan.ts';
import type { BuildRequest, TableOrigin, TableRequest } from './build-request.ts';
import { checkParentEncryption, getEncryption, storeFiles } from './encryption.ts';
import { openKeys } from './sources/key-file.ts';
import { openSources } from './sources/open-sources.ts';
import {
  convertToDtype,
  convertToFloats,
  createDeletesInput,
  createLayersInput,
  createSourceInput,
  statSourceFile,
  type TableInput,
} from './table-input.ts';
import { readVersionContent } from './version-content.ts';

/** @throws CubeError if request, inputs or parent are wrong; nothing has been written then */
export async function createBuildJob(folder: string, request: BuildRequest): Promise<BuildJob> {
  const { bundle, version } = request;
  const parent =
    request.parent === undefined
      ? undefined
      : await openRepository(folder).readManifest(bundle, request.parent);
  checkParentEncryption(parent);
  const shardNum = chooseShardNum(request, parent);
  const context = { folder, bundle, request, parent };
  const content = await readVersionContent(folder, request, parent);
  const tables = (
    await Promise.all(request.tables.map((table) => openTableJobs(table, context)))
  ).flat();
  checkTableNames(tables);
  const { files, listed } = storeFiles(content.files);
  const { hash, slots } = content;
  const plans = tables.map(({ plan }) => plan);
  const all = Array.from({ length: shardNum }, (_, shard) => shard);
  const { onlyShards, publish, memoryBytes, threads } = request;
  return {
    plan: {
      bundle,
      version,
      parent: request.parent,
      shardNum,
      hash,
      slots,
      files: listed,
      tables: plans,
      encryption: getEncryption(),
    },
    files,
    tables,
    chains: findParentChains(plans, parent, request.chainMax),
    shards: onlyShards === undefined ? all : parseShardList(onlyShards, shardNum),
    publish: publish && onlyShards === undefined,
    expect: request.expect,
    memoryBytes,
    threads,
  };
}

function failInvalid(text: string): never {
  throw new CubeError('INVALID_ARGUMENT', text);
}

function chooseShardNum({ shardNum }: BuildRequest, parent: Manifest | undefined): number {
  const parents = parent?.tables[0]?.shardNum;
  if (parents !== undefined && shardNum !== undefined && parents !== shardNum) {
    failInvalid(
      `--shard-num ${shardNum}: version ${parent?.version} has ${parents} shards, and a delta ` +
        'must have as many; build a base to change the number',
    );
  }
  return shardNum ?? parents ?? failInvalid('--shard-num is missing');
}

interface JobContext {
  /** Repository folder; created only after all checks have passed. */
  readonly folder: string;
  readonly bundle: string;
  readonly request: BuildRequest;
  readonly parent: Manifest | undefined;
}

async function openTableJobs(table: TableRequest, context: JobContext): Promise<TableJob[]> {
  const inputs = await openOrigin(table.input, context);
  const old = table.old === undefined ? undefined : await openOrigin(table.old, context);
  const jobs: TableJob[] = [];
  for (const input of inputs) {
    const before = old && findOldInput(input, inputs, old);
    if (before !== undefined) checkSameWidth(before, input);
    const plan = planTable(table, input, before !== undefined, context);
    const rows = convertToSameRows(plan, input, before);
    const deletes = await openDeletes(table, rows.input, inputs);
    const { search, onDuplicate } = plan;
    jobs.push({
      plan,
      inputs: [rows.input, ...deletes],
      oldInputs: rows.before === undefined ? [] : [rows.before],
      readOptions: JSON.stringify([table.input, table.old, table.deletes, search, onDuplicate]),
    });
  }
  return jobs;
}

/** Returns the old input of the same name, or the only one if both inputs have one table. */
function findOldInput(
  { name }: TableInput,
  inputs: readonly TableInput[],
  old: readonly TableInput[],
): TableInput {
  if (inputs.length === 1 && old.length === 1) return old[0]!;
  const removed = old.find((one) => inputs.every((other) => other.name !== one.name));
  if (removed !== undefined) {
    failInvalid(
      `table ${removed.name} is in the old input only, and a delta cannot remove a table: ` +
        'select the table to compare (--table), or build a base',
    );
  }
  return (
    old.find((one) => one.name === name) ??
    failInvalid(`table ${name} is in the new input only: select the table to compare (--table)`)
  );
}

/** Converts both inputs to the same row type: f32, or stored rows of the table's dtype. */
function convertToSameRows(
  { dtype, search }: TablePlan,
  input: TableInput,
  before: TableInput | undefined,
): { input: TableInput; before: TableInput | undefined } {
  if (dtype === 'bytes') return { input, before };
  if (before === undefined)
    return { input: input.dtype === dtype ? input : convertToFloats(input), before };
  if (input.dtype === 'f32' && before.dtype === 'f32') return { input, before };
  return {
    input: convertToDtype(input, dtype, search),
    before: convertToDtype(before, dtype, search),
  };
}

async function openOrigin(origin: TableOrigin, context: JobContext): Promise<TableInput[]> {
  if (!('version' in origin)) {
    return (await openSources(origin)).map(createSourceInput);
  }
  const { folder, bundle } = context;
  const repository = openRepository(folder);
  const { tables } = await repository.readManifest(bundle, origin.version);
  const selected = tables.filter(({ name }) => origin.table === undefined || name === origin.table);
  if (selected.length === 0) {
    failInvalid(
      `version ${origin.version} of ${bundle} has no table ${origin.table} ` +
        `(it has: ${tables.map(({ name }) => name).join(', ')})`,
    );
  }
  return selected.map((table) => createLayersInput(repository, bundle, table));
}

async function openDeletes(
  { deletes = [], input }: TableRequest,
  like: TableInput,
  tables: readonly TableInput[],
): Promise<TableInput[]> {
  if (deletes.length > 0 && tables.length > 1) {
    const names = tables.map(({ name }) => name).join(', ');
    failInvalid(
      `${deletes[0]} applies to one table, but the input has several (${names}): use --spec`,
    );
  }
  const slot = 'paths' in input ? input.signKey : undefined;
  return Promise.all(
    deletes.map(async (path) =>
      createDeletesInput(like, statSourceFile(path), await openKeys(path, slot)),
    ),
  );
}

function checkSameWidth(before: TableInput, after: TableInput): void {
  if (before.dim === after.dim) return;
  failInvalid(
    `table ${after.name}: rows of ${describeRows(before)} cannot be compared with rows of ` +
      describeRows(after),
  );
}

function describeRows({ dim }: TableInput): string {
  return dim === 0 ? 'any length' : `${dim} numbers`;
}

function planTable(
  table: TableRequest,
  input: TableInput,
  isDiff: boolean,
  { request, parent }: JobContext,
): TablePlan {
  const { name, dim } = input;
  const parentTable = parent?.tables.find((candidate) => candidate.name === name);
  const deltaParent = request.jobMode === 'delta' ? parentTable : undefined;
  const isDelta = deltaParent !== undefined;
  if (isDiff && !isDelta) {
    failInvalid(
      `table ${name} is not in version ${parent?.version}, so there is no base for a delta: ` +
        'build a base first',
    );
  }
  const dtype = chooseDtype(table, input, parentTable);
  if (parent !== undefined && deltaParent !== undefined) {
    checkParentTable(deltaParent, input, dtype, parent.version);
  }
  const defaultRow = expandDefaultRow(table.defaultRow, dim, name);
  if (defaultRow !== undefined && dtype !== 'bytes') checkDefaultRow(defaultRow, dtype, name);
  if (table.search !== undefined && dtype !== 'i8') {
    failInvalid(`table ${name}: --i8-search requires dtype i8, but the dtype is ${dtype}`);
  }
  return {
    name,
    dim,
    dtype,
    defaultRow: defaultRow ?? deltaParent?.defaultRow ?? [],
    kind: isDelta ? 'delta' : 'base',
    mode: isDiff ? 'diff' : isDelta ? 'delta' : 'base',
    layout: table.layout,
    search: table.search ?? 'range',
    onDuplicate: table.onDuplicate ?? 'last',
  };
}

function chooseDtype(
  { dtype }: TableRequest,
  { name, dim, dtype: stored }: TableInput,
  parentTable: TableRef | undefined,
): TableDtype {
  if (dim === 0) {
    if (dtype !== undefined && dtype !== 'bytes') {
      failInvalid(`table ${name}: values of any length need dtype bytes, not ${dtype}`);
    }
    return 'bytes';
  }
  const chosen = dtype ?? parentTable?.dtype ?? stored;
  if (chosen === 'bytes')
    failInvalid(`table ${name}: dtype bytes is not possible for rows of ${dim} numbers`);
  return chosen;
}

function checkParentTable(
  parentTable: TableRef,
  { name, dim }: TableInput,
  dtype: TableDtype,
  version: string,
): void {
  if (parentTable.dim !== dim || parentTable.dtype !== dtype) {
    failInvalid(
      `table ${name}: a delta of ${dtype} × ${dim} does not fit ` +
        `${parentTable.dtype} × ${parentTable.dim} of version ${version}; ` +
        'build a base to change the row type',
    );
  }
}

function expandDefaultRow(
  given: readonly number[] | undefined,
  dim: number,
  name: string,
): readonly number[] | undefined {
  if (given === undefined || given.length === dim || given.length === 0) return given;
  if (dim === 0)
    failInvalid(`table ${name}: --default-row is not possible for values of any length`);
  if (given.length === 1) return new Array<number>(dim).fill(given[0]!);
  return failInvalid(
    `table ${name}: --default-row has ${given.length} numbers, but rows have ${dim}`,
  );
}

/** The default row must fit the table's dtype and f32, because lookups return both forms. */
function checkDefaultRow(row: readonly number[], dtype: RowDtype, name: string): void {
  const floats = Float32Array.from(row);
  try {
    if (!floats.every(Number.isFinite)) failInvalid('an element is out of the range of f32');
    encodeRows(dtype, floats, Math.max(1, row.length));
  } catch (error) {
    failInvalid(`table ${name}: --default-row: ${CubeError.from(error).message}`);
  }
}

function checkTableNames(tables: readonly TableJob[]): void {
  const names = tables.map(({ plan }) => plan.name);
  const twice = names.find((name, i) => names.indexOf(name) !== i);
  if (twice !== undefined)
    failInvalid(`table ${twice} comes from two inputs; rename one of them with --table`);
  if (names.length === 0) failInvalid('the input has no table');
}

/**
 * Returns the parent's layers of each delta table, by shard.
 * @throws CubeError INVALID_ARGUMENT if a chain has reached `chainMax` layers
 */
function findParentChains(
  plans: readonly TablePlan[],
  parent: Manifest | undefined,
  chainMax: number,
): Map<string, readonly (readonly LayerRef[])[]> {
  const chains = new Map<string, readonly (readonly LayerRef[])[]>();
  for (const { name, kind } of plans) {
    if (kind === 'base') continue;
    const parentTable = parent?.tables.find((table) => table.name === name);
    const { shards } = requireDefined(parentTable, `table ${name} of the parent version`);
    const depth = shards.reduce((most, layers) => Math.max(most, layers.length), 0);
    if (depth >= chainMax) {
      failInvalid(
        `table ${name} of version ${parent?.version} already has ${depth} layers, and ` +
          `--chain-max is ${chainMax}; merge them first: ` +
          `cube-builder compact --version ${parent?.version}`,
      );
    }
    chains.set(name, shards);
  }
  return chains;
}
