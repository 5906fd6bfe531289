/**
 * A build in YAML (docs/builder.md): several tables, each with its input and options, under the names that the flags have.
 * Flags go before the file's own values, paths are relative to the file.
 */

import { dirname, resolve } from 'node:path';
import { DIM_MAX, SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import { CHAIN_LAYERS_MAX } from '../../lib/core/limits.ts';
import { TABLE_DTYPES } from '../../lib/core/manifest.ts';
import { checkName } from '../../lib/core/names.ts';
import { readText } from '../../lib/platform/files.ts';
import { parseYaml, type YamlNode } from '../../lib/platform/yaml-node.ts';
import {
  type BuildOptions,
  checkedShards,
  memoryOption,
  originOf,
  parentOf,
  resourcesOf,
  SEARCHES,
  type TableOptions,
  THREADS_MAX,
  tableRequestOf,
  type Usage,
} from './build-options.ts';
import type { BuildRequest, TableRequest } from './build-request.ts';
import { INPUT_FORMATS, VALUE_FORMATS } from './sources/row-source.ts';

const SPEC_BYTES_MAX = 4 << 20;

const FIELDS = [
  ...['bundle', 'cur-version', 'output-path', 'shard-num', 'job-mode', 'depend-version'],
  ...['last-version', 'golden', 'memory', 'threads', 'chain-max', 'tables'],
];
const TABLE_FIELDS = [
  ...[
    'table',
    'input',
    'old',
    'deletes',
    'format',
    'key-column',
    'sign-key',
    'value-columns',
    'header',
  ],
  ...[
    'value-format',
    'arrays',
    'dim',
    'dtype',
    'i8-search',
    'layout',
    'default-row',
    'on-duplicate',
  ],
];
/** Flags that say what a table is: with a spec, the spec says it. */
const TABLE_FLAGS: readonly (keyof BuildOptions)[] = [
  ...([
    'input',
    'inputPath',
    'diff',
    'table',
    'dictName',
    'deletes',
    'format',
    'keyColumn',
  ] as const),
  ...(['signKey', 'valueColumns', 'header', 'valueFormat', 'arrays', 'dim', 'dtype'] as const),
  ...(['i8Search', 'layout', 'defaultRow', 'onDuplicate'] as const),
];

export type SpecRequest = BuildRequest & { readonly outputPath: string | undefined };

type Fields = ReadonlyMap<string, YamlNode>;

/** @throws CubeError INVALID_ARGUMENT with file, line and column */
export function readBuildSpec(path: string, flags: BuildOptions, usage: Usage): SpecRequest {
  const given = TABLE_FLAGS.find((flag) => flags[flag] !== undefined);
  if (given !== undefined) usage(`with --spec, tables and their options are in ${path}`);
  const root = parseYaml(readText(path, SPEC_BYTES_MAX), path);
  const fields = root.fields(FIELDS);
  const options = { ...commonOf(fields, dirname(path)), ...definedOf(flags) };
  const need = (value: string | undefined, name: string): string =>
    value ?? root.fail(`${name} is missing, and --${name} is not given`);
  const jobMode = options.jobMode ?? 'base';
  if (jobMode === 'base' && options.shardNum === undefined) root.fail('shard-num is missing');
  const tables = fields.get('tables')?.items() ?? root.fail('tables is missing: a list');
  return {
    bundle: need(options.bundle, 'bundle'),
    version: need(options.curVersion, 'cur-version'),
    outputPath: options.outputPath,
    jobMode,
    parent: parentOf(options, (text) => root.fail(text)),
    shardNum: options.shardNum,
    golden: options.golden,
    tables: tables.map((table) => readTable(table, dirname(path), jobMode)),
    onlyShards: checkedShards(options, usage),
    publish: options.onlyBuild !== true,
    ...resourcesOf(options),
  };
}

/** Without fields that are undefined, so that they do not hide those of the file. */
function definedOf(flags: BuildOptions): BuildOptions {
  return Object.fromEntries(Object.entries(flags).filter(([, value]) => value !== undefined));
}

function optional<T>(fields: Fields, name: string, read: (node: YamlNode) => T): T | undefined {
  const node = fields.get(name);
  return node === undefined ? undefined : read(node);
}

function named(what: string): (node: YamlNode) => string {
  return (node) => node.parsed((text) => checkName(text, what));
}

function commonOf(fields: Fields, folder: string): BuildOptions {
  const path = (node: YamlNode): string => resolve(folder, node.string());
  return definedOf({
    bundle: optional(fields, 'bundle', named('bundle')),
    curVersion: optional(fields, 'cur-version', named('version')),
    outputPath: optional(fields, 'output-path', path),
    shardNum: optional(fields, 'shard-num', (node) => node.integer(1, SHARD_NUM_MAX)),
    jobMode: optional(fields, 'job-mode', (node) => node.oneOf(['base', 'delta'])),
    dependVersion: optional(fields, 'depend-version', named('version')),
    lastVersion: optional(fields, 'last-version', named('version')),
    golden: optional(fields, 'golden', path),
    memory: optional(fields, 'memory', (node) => node.parsed(memoryOption)),
    threads: optional(fields, 'threads', (node) => node.integer(1, THREADS_MAX)),
    chainMax: optional(fields, 'chain-max', (node) => node.integer(1, CHAIN_LAYERS_MAX)),
  } as BuildOptions);
}

function readTable(node: YamlNode, folder: string, jobMode: 'base' | 'delta'): TableRequest {
  const fields = node.fields(TABLE_FIELDS);
  const strings = (list: YamlNode): string[] => list.itemsOrOne().map((item) => item.string());
  const paths = (list: YamlNode): string[] => strings(list).map((path) => place(path, folder));
  const options = definedOf({
    format: optional(fields, 'format', (field) => field.oneOf(INPUT_FORMATS)),
    keyColumn: optional(fields, 'key-column', (field) => field.string()),
    signKey: optional(fields, 'sign-key', (field) => field.integer(0, 0xffff_ffff)),
    valueColumns: optional(fields, 'value-columns', strings),
    header: optional(fields, 'header', (field) => field.boolean()),
    valueFormat: optional(fields, 'value-format', (field) => field.oneOf(VALUE_FORMATS)),
    arrays: optional(fields, 'arrays', strings),
    dim: optional(fields, 'dim', (field) => field.integer(1, DIM_MAX)),
    dtype: optional(fields, 'dtype', (field) => field.oneOf(TABLE_DTYPES)),
    i8Search: optional(fields, 'i8-search', (field) =>
      field.oneOf(Object.keys(SEARCHES) as (keyof typeof SEARCHES)[]),
    ),
    layout: optional(fields, 'layout', (field) => field.oneOf(['indexed'])),
    defaultRow: optional(fields, 'default-row', (field) =>
      field.itemsOrOne().map((item) => item.number()),
    ),
    onDuplicate: optional(fields, 'on-duplicate', (field) => field.oneOf(['last', 'error'])),
    deletes: optional(fields, 'deletes', paths),
  } as BuildOptions) as TableOptions;
  const table = optional(fields, 'table', named('table'));
  const more = { table, delta: jobMode === 'delta' };
  const input = optional(fields, 'input', paths) ?? node.fail('input is missing: what to read');
  const old = optional(fields, 'old', paths);
  if (old !== undefined && jobMode === 'base') fields.get('old')!.fail('a base has no old side');
  const before = old === undefined ? undefined : originOf(old, options, more);
  return tableRequestOf(originOf(input, options, more), before, options);
}

/** Standard input and versions are no paths. */
function place(path: string, folder: string): string {
  return path === '-' || path.startsWith('version:') ? path : resolve(folder, path);
}
