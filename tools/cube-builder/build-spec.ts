/**
 * Reads a build spec in YAML (docs/builder.md): several tables with their inputs and options.
 * Fields have the names of the flags. Flags take precedence; paths are relative to the file.
 */

import { dirname, resolve } from 'node:path';
import { DIM_MAX, SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import { CHAIN_LAYERS_MAX } from '../../lib/core/limits.ts';
import { TABLE_DTYPES } from '../../lib/core/manifest.ts';
import { checkName } from '../../lib/core/names.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml.ts';
import {
  type BuildOptions,
  checkExpectation,
  checkShardList,
  chooseParent,
  type FailUsage,
  I8_SEARCHES,
  parseMemoryOption,
  parseOrigin,
  type TableOptions,
  THREADS_MAX,
  toExpectation,
  toResources,
  toTableRequest,
} from './build-options.ts';
import type { BuildRequest, TableRequest } from './build-request.ts';
import { INPUT_FORMATS, VALUE_FORMATS } from './sources/row-source.ts';

const SPEC_BYTES_MAX = 4 << 20;

const FIELDS = [
  'bundle',
  'cur-version',
  'output-path',
  'shard-num',
  'job-mode',
  'depend-version',
  'last-version',
  'golden',
  'expect',
  'expect-tolerance',
  'memory',
  'threads',
  'chain-max',
  'tables',
];
const TABLE_FIELDS = [
  'table',
  'input',
  'old',
  'deletes',
  'format',
  'key-column',
  'sign-key',
  'value-columns',
  'header',
  'value-format',
  'arrays',
  'dim',
  'dtype',
  'i8-search',
  'layout',
  'default-row',
  'on-duplicate',
];
/** Flags that describe a table; a spec contains these, so the flags are refused with --spec. */
const TABLE_FLAGS: readonly (keyof BuildOptions)[] = [
  'input',
  'inputPath',
  'diff',
  'table',
  'dictName',
  'deletes',
  'format',
  'keyColumn',
  'signKey',
  'valueColumns',
  'header',
  'valueFormat',
  'arrays',
  'dim',
  'dtype',
  'i8Search',
  'layout',
  'defaultRow',
  'onDuplicate',
];

export type SpecRequest = BuildRequest & { readonly outputPath: string | undefined };

type Fields = ReadonlyMap<string, YamlNode>;

/** @throws CubeError INVALID_ARGUMENT with file, line and column */
export function readBuildSpec(path: string, flags: BuildOptions, usage: FailUsage): SpecRequest {
  const given = TABLE_FLAGS.find((flag) => flags[flag] !== undefined);
  if (given !== undefined)
    usage(`--spec: describe tables and their options in ${path}, not by flags`);
  const root = parseYaml(readText(path, SPEC_BYTES_MAX), path);
  const fields = root.fields(FIELDS);
  const options = { ...readCommonFields(fields, dirname(path)), ...dropUndefined(flags) };
  checkExpectation(options, usage);
  const need = (value: string | undefined, name: string): string =>
    value ?? root.fail(`${name} is missing: add it or give --${name}`);
  const jobMode = options.jobMode ?? 'base';
  if (jobMode === 'base' && options.shardNum === undefined)
    root.fail('shard-num is missing: add it or give --shard-num');
  const tables =
    fields.get('tables')?.items() ?? root.fail('tables is missing: add a list of tables');
  return {
    bundle: need(options.bundle, 'bundle'),
    version: need(options.curVersion, 'cur-version'),
    outputPath: options.outputPath,
    jobMode,
    parent: chooseParent(options, (text) => root.fail(text)),
    shardNum: options.shardNum,
    golden: options.golden,
    expect: toExpectation(options),
    tables: tables.map((table) => readTable(table, dirname(path), jobMode)),
    onlyShards: checkShardList(options, usage),
    publish: options.onlyBuild !== true,
    ...toResources(options),
  };
}

/** Omits undefined fields, so that they do not hide values of the file. */
function dropUndefined(flags: BuildOptions): BuildOptions {
  return Object.fromEntries(Object.entries(flags).filter(([, value]) => value !== undefined));
}

function readOptional<T>(fields: Fields, name: string, read: (node: YamlNode) => T): T | undefined {
  const node = fields.get(name);
  return node === undefined ? undefined : read(node);
}

function parseNameField(what: string): (node: YamlNode) => string {
  return (node) => node.parse((text) => checkName(text, what));
}

function readTolerance(node: YamlNode): number {
  const value = node.number();
  return value >= 0 ? value : node.fail(`expected a number of at least 0, got ${value}`);
}

function readCommonFields(fields: Fields, folder: string): BuildOptions {
  const path = (node: YamlNode): string => resolve(folder, node.string());
  return dropUndefined({
    bundle: readOptional(fields, 'bundle', parseNameField('bundle')),
    curVersion: readOptional(fields, 'cur-version', parseNameField('version')),
    outputPath: readOptional(fields, 'output-path', path),
    shardNum: readOptional(fields, 'shard-num', (node) => node.integer(1, SHARD_NUM_MAX)),
    jobMode: readOptional(fields, 'job-mode', (node) => node.choice(['base', 'delta'])),
    dependVersion: readOptional(fields, 'depend-version', parseNameField('version')),
    lastVersion: readOptional(fields, 'last-version', parseNameField('version')),
    golden: readOptional(fields, 'golden', path),
    expect: readOptional(fields, 'expect', (node) =>
      node
        .string()
        .split(':')
        .map((part) => resolve(folder, part))
        .join(':'),
    ),
    expectTolerance: readOptional(fields, 'expect-tolerance', readTolerance),
    memory: readOptional(fields, 'memory', (node) => node.parse(parseMemoryOption)),
    threads: readOptional(fields, 'threads', (node) => node.integer(1, THREADS_MAX)),
    chainMax: readOptional(fields, 'chain-max', (node) => node.integer(1, CHAIN_LAYERS_MAX)),
  } as BuildOptions);
}

function readTable(node: YamlNode, folder: string, jobMode: 'base' | 'delta'): TableRequest {
  const fields = node.fields(TABLE_FIELDS);
  const strings = (list: YamlNode): string[] => list.itemsOrOne().map((item) => item.string());
  const paths = (list: YamlNode): string[] =>
    strings(list).map((path) => resolveInputPath(path, folder));
  const options = dropUndefined({
    format: readOptional(fields, 'format', (field) => field.choice(INPUT_FORMATS)),
    keyColumn: readOptional(fields, 'key-column', (field) => field.string()),
    signKey: readOptional(fields, 'sign-key', (field) => field.integer(0, 0xffff_ffff)),
    valueColumns: readOptional(fields, 'value-columns', strings),
    header: readOptional(fields, 'header', (field) => field.boolean()),
    valueFormat: readOptional(fields, 'value-format', (field) => field.choice(VALUE_FORMATS)),
    arrays: readOptional(fields, 'arrays', strings),
    dim: readOptional(fields, 'dim', (field) => field.integer(1, DIM_MAX)),
    dtype: readOptional(fields, 'dtype', (field) => field.choice(TABLE_DTYPES)),
    i8Search: readOptional(fields, 'i8-search', (field) =>
      field.choice(Object.keys(I8_SEARCHES) as (keyof typeof I8_SEARCHES)[]),
    ),
    layout: readOptional(fields, 'layout', (field) => field.choice(['indexed'])),
    defaultRow: readOptional(fields, 'default-row', (field) =>
      field.itemsOrOne().map((item) => item.number()),
    ),
    onDuplicate: readOptional(fields, 'on-duplicate', (field) => field.choice(['last', 'error'])),
    deletes: readOptional(fields, 'deletes', paths),
  } as BuildOptions) as TableOptions;
  const table = readOptional(fields, 'table', parseNameField('table'));
  const context = { table, delta: jobMode === 'delta' };
  const input =
    readOptional(fields, 'input', paths) ?? node.fail('input is missing: give the paths to read');
  const old = readOptional(fields, 'old', (field) =>
    jobMode === 'base' ? field.fail('a base has no old input; use job-mode: delta') : paths(field),
  );
  const oldOrigin = old === undefined ? undefined : parseOrigin(old, options, context);
  return toTableRequest(parseOrigin(input, options, context), oldOrigin, options);
}

/** Keeps standard input (-) and versions as they are; they are not paths. */
function resolveInputPath(path: string, folder: string): string {
  return path === '-' || path.startsWith('version:') ? path : resolve(folder, path);
}
