/** The options of a build, their checks and defaults, and the BuildRequest made from them. */

import { availableParallelism } from 'node:os';
import { CHAIN_LAYERS_MAX } from '../../lib/core/limits.ts';
import { TABLE_DTYPES, type TableDtype } from '../../lib/core/manifest.ts';
import type { ExpectOptions } from '../../lib/features/expect-options.ts';
import { SCORE_TOLERANCE } from '../../lib/features/expected-scores.ts';
import {
  type Command,
  InvalidArgumentError,
  Option,
  parseByteCount,
  parseIntegerBetween,
  parseNameOption,
} from '../../lib/platform/cli.ts';
import type { BuildRequest, TableOrigin, TableRequest } from './build-request.ts';
import { isPrunedFolder } from './pruned-model.ts';
import { addInputOptions, type InputOptions, toInputSpec } from './sources/input-options.ts';
import type { ExpectedScoresRequest } from './verify-version.ts';

const CHAIN_MAX_DEFAULT = 8;
const MEMORY_BYTES_MIN = 16 << 20;
const MEMORY_BYTES_DEFAULT = 2 ** 31;
export const THREADS_MAX = 256;
export const LAYOUT_HELP =
  'Layer layout: indexed keeps rows apart from the index, so they can stay on disk';
const STORED_VERSION = /^version:(.+)$/;
/** Values of --i8-search and the names that lib/core gives these searches. */
export const I8_SEARCHES = { minmax: 'range', greedy: 'greedy' } as const;

export interface TableOptions extends InputOptions {
  readonly dtype?: TableDtype;
  readonly i8Search?: keyof typeof I8_SEARCHES;
  readonly layout?: 'indexed';
  readonly defaultRow?: readonly number[];
  readonly onDuplicate?: 'last' | 'error';
  readonly deletes?: readonly string[];
}

export interface ResourceOptions {
  readonly memory?: number;
  readonly threads?: number;
  readonly chainMax?: number;
}

export interface BuildOptions extends TableOptions, ResourceOptions, ExpectOptions {
  readonly input?: readonly string[];
  readonly inputPath?: readonly string[];
  readonly outputPath?: string;
  readonly bundle?: string;
  readonly dictName?: string;
  readonly table?: string;
  readonly jobMode?: 'base' | 'delta';
  readonly shardNum?: number;
  readonly curVersion?: string;
  readonly dependVersion?: string;
  readonly lastVersion?: string;
  readonly golden?: string;
  readonly onlyShards?: string;
  readonly onlyBuild?: boolean;
  readonly diff?: readonly string[];
  readonly spec?: string;
  readonly json?: boolean;
}

export function parseMemoryOption(text: string): number {
  const bytes = parseByteCount(text);
  if (bytes >= MEMORY_BYTES_MIN) return bytes;
  throw new InvalidArgumentError('Expected at least 16MiB.');
}

function parseNumbersOption(text: string): number[] {
  const items = text.split(',');
  const numbers = items.map(Number);
  if (items.every((item, i) => item.trim() !== '' && Number.isFinite(numbers[i]))) return numbers;
  throw new InvalidArgumentError(
    'Expected numbers such as 0.1,0.2,0.3, or one number for the whole row.',
  );
}

const THREADS_AUTO_MAX = 8;
const THREADS_DEFAULT = Math.min(availableParallelism(), THREADS_AUTO_MAX);

export function addTableOptions(command: Command): Command {
  return addInputOptions(command)
    .addOption(
      new Option(
        '--dtype <name>',
        "Storage type of the rows (default: the parent's or the stored type, else f32)",
      ).choices(TABLE_DTYPES),
    )
    .addOption(
      new Option(
        '--i8-search <name>',
        'How the range of an i8 row is chosen: minmax (default), or greedy for a smaller error',
      ).choices(Object.keys(I8_SEARCHES)),
    )
    .addOption(new Option('--layout <name>', LAYOUT_HELP).choices(['indexed']))
    .option(
      '--default-row <numbers>',
      'Row returned for keys that are not in the table: all its numbers (0.1,0.2,…), or one ' +
        'number for all (default: zeros)',
      parseNumbersOption,
    )
    .addOption(
      new Option(
        '--on-duplicate <what>',
        'What to do with duplicate keys: keep the last (default) or fail',
      ).choices(['last', 'error']),
    );
}

export function addResourceOptions(command: Command): Command {
  return command
    .option(
      '--memory <bytes>',
      'Memory for building, without the runtime, such as 8GiB (default: 2GiB)',
      parseMemoryOption,
    )
    .option(
      '--threads <n>',
      'Number of shards built at the same time (default: number of cores, at most ' +
        `${THREADS_AUTO_MAX}; ${THREADS_DEFAULT} on this machine)`,
      parseIntegerBetween(1, THREADS_MAX),
    )
    .option(
      '--chain-max <n>',
      `Maximum layers of a shard, base and deltas (default: ${CHAIN_MAX_DEFAULT})`,
      parseIntegerBetween(1, CHAIN_LAYERS_MAX),
    );
}

export function toResources({
  memory = MEMORY_BYTES_DEFAULT,
  threads = THREADS_DEFAULT,
  chainMax = CHAIN_MAX_DEFAULT,
}: ResourceOptions): Pick<BuildRequest, 'memoryBytes' | 'threads' | 'chainMax'> {
  return { memoryBytes: memory, threads, chainMax };
}

/** The request of --expect and --expect-tolerance. */
export function toExpectation({
  expect: scores,
  expectTolerance: tolerance = SCORE_TOLERANCE,
}: ExpectOptions): ExpectedScoresRequest {
  return { scores, tolerance };
}

/** Adds --output-path and --bundle with the help texts of the command. */
export function addTargetOptions(
  command: Command,
  help: { readonly folder: string; readonly bundle: string },
): Command {
  return command
    .option('--output-path <location>', help.folder)
    .option('--bundle <name>', help.bundle, parseNameOption('bundle'));
}

/** Ends the command with a usage error (exit code 2). */
export type FailUsage = (text: string) => never;

/** Returns the parent version of a delta; undefined for a base. */
export function chooseParent(options: BuildOptions, usage: FailUsage): string | undefined {
  const { jobMode = 'base', dependVersion, lastVersion } = options;
  if (jobMode === 'base') {
    if (dependVersion !== undefined && dependVersion !== options.curVersion) {
      usage('--depend-version needs --job-mode delta');
    }
    if (lastVersion !== undefined) usage('--last-version needs --job-mode delta');
    return undefined;
  }
  if (dependVersion === undefined && lastVersion === undefined) {
    usage('--job-mode delta needs --depend-version: the parent version');
  }
  return lastVersion ?? dependVersion;
}

/** --dict-name names the bundle if --bundle is missing, and the table unless the model does. */
function chooseNames(
  { bundle, dictName, table }: BuildOptions,
  paths: readonly string[],
  usage: FailUsage,
): { bundle: string; table: string | undefined } {
  const pruned = paths.some(isPrunedFolder);
  if (bundle !== undefined && dictName !== undefined && bundle !== dictName && pruned) {
    usage(`--bundle ${bundle} and --dict-name ${dictName} name different models: give one of them`);
  }
  const name = bundle ?? dictName ?? usage('--bundle is missing: give the bundle name');
  return { bundle: name, table: pruned ? table : (table ?? dictName) };
}

/** "version:7" alone means the tables of that version; other texts are paths. */
export function parseOrigin(
  paths: readonly string[],
  options: InputOptions,
  context: { readonly table: string | undefined; readonly delta: boolean },
): TableOrigin {
  const version = paths.length === 1 ? STORED_VERSION.exec(paths[0]!)?.[1] : undefined;
  if (version !== undefined) return { version, table: context.table };
  return toInputSpec(paths, options, context);
}

export function toTableRequest(
  input: TableOrigin,
  old: TableOrigin | undefined,
  options: TableOptions,
): TableRequest {
  const { deletes, dtype, i8Search, layout, defaultRow, onDuplicate } = options;
  const search = i8Search === undefined ? undefined : I8_SEARCHES[i8Search];
  return { input, old, deletes, dtype, search, layout, defaultRow, onDuplicate };
}

/** Makes the request for one table or one pruned model from command-line options. */
export function toBuildRequest(options: BuildOptions, usage: FailUsage): BuildRequest {
  const paths = [...(options.input ?? []), ...(options.inputPath ?? [])];
  const { diff, jobMode = 'base', curVersion } = options;
  if (diff !== undefined && paths.length > 0)
    usage('--diff OLD NEW replaces --input: give one of them');
  if (diff === undefined && paths.length === 0) usage('--input is missing: give the paths to read');
  if (diff !== undefined && jobMode !== 'delta') usage('--diff needs --job-mode delta');
  if (diff !== undefined && diff.length !== 2) usage('--diff needs two paths: OLD NEW');
  checkExpectation(options, usage);
  if (options.deletes !== undefined && jobMode !== 'delta') {
    usage('--deletes needs --job-mode delta');
  }
  const parent = chooseParent(options, usage);
  const all = diff ?? paths;
  const { bundle, table } = chooseNames(options, all, usage);
  if (jobMode === 'base' && options.shardNum === undefined)
    usage('--shard-num is missing: give the number of shards');
  const context = { table, delta: jobMode === 'delta' };
  const [oldPath, newPath] = diff ?? [];
  const old = oldPath === undefined ? undefined : parseOrigin([oldPath], options, context);
  const input = parseOrigin(newPath === undefined ? paths : [newPath], options, context);
  return {
    bundle,
    jobMode,
    parent,
    shardNum: options.shardNum,
    golden: options.golden,
    expect: toExpectation(options),
    version: curVersion ?? usage('--cur-version is missing: give the name of the new version'),
    tables: [toTableRequest(input, old, options)],
    onlyShards: checkShardList(options, usage),
    publish: options.onlyBuild !== true,
    ...toResources(options),
  };
}

/** Scores are verified where the version is published. */
export function checkExpectation(options: BuildOptions, usage: FailUsage): void {
  if (options.expect === undefined) return;
  if (options.onlyBuild !== true && options.onlyShards === undefined) return;
  usage('--expect needs all shards: give it to cube-builder seal, which publishes the version');
}

/** Checks the syntax; parseShardList checks the range once the number of shards is known. */
export function checkShardList(options: BuildOptions, usage: FailUsage): string | undefined {
  const { onlyShards } = options;
  if (onlyShards !== undefined && !/^\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*$/.test(onlyShards)) {
    usage(`--only-shards ${onlyShards}: expected numbers and ranges such as 0-3,7`);
  }
  return onlyShards;
}
