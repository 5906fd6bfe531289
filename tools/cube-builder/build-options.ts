/** The options of cube-builder that say what is built and how, and what they ask for together. */

import { availableParallelism } from 'node:os';
import { CHAIN_LAYERS_MAX } from '../../lib/core/limits.ts';
import { TABLE_DTYPES, type TableDtype } from '../../lib/core/manifest.ts';
import {
  byteCount,
  type Command,
  InvalidArgumentError,
  integerBetween,
  nameOption,
  Option,
} from '../../lib/platform/cli.ts';
import type { BuildRequest, TableOrigin, TableRequest } from './build-request.ts';
import { isPrunedFolder } from './pruned-model.ts';
import { addInputOptions, type InputOptions, inputSpecOf } from './sources/input-options.ts';

const CHAIN_MAX_DEFAULT = 8;
const MEMORY_BYTES_MIN = 16 << 20;
const MEMORY_BYTES_DEFAULT = 2 ** 31;
export const THREADS_MAX = 256;
const STORED_VERSION = /^version:(.+)$/;
/** The words of the command line, and what lib/core calls them. */
export const SEARCHES = { minmax: 'range', greedy: 'greedy' } as const;

export interface TableOptions extends InputOptions {
  readonly dtype?: TableDtype;
  readonly i8Search?: keyof typeof SEARCHES;
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

export interface BuildOptions extends TableOptions, ResourceOptions {
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

export function memoryOption(text: string): number {
  const bytes = byteCount(text);
  if (bytes >= MEMORY_BYTES_MIN) return bytes;
  throw new InvalidArgumentError('Expected at least 16MiB.');
}

function numbersOption(text: string): number[] {
  const items = text.split(',');
  const numbers = items.map(Number);
  if (items.every((item, i) => item.trim() !== '' && Number.isFinite(numbers[i]))) return numbers;
  throw new InvalidArgumentError('Expected numbers: 0.1,0.2,0.3, or one for the whole row.');
}

const THREADS_DEFAULT = Math.min(availableParallelism(), 8);

export function addTableOptions(command: Command): Command {
  return addInputOptions(command)
    .addOption(new Option('--dtype <name>', 'how rows are stored').choices(TABLE_DTYPES))
    .addOption(
      new Option('--i8-search <name>', 'how the range of an i8 row is chosen').choices(
        Object.keys(SEARCHES),
      ),
    )
    .addOption(
      new Option('--layout <name>', 'an index apart from the rows, which may stay on disk').choices(
        ['indexed'],
      ),
    )
    .option('--default-row <numbers>', 'the row of a key that is not there (zeros)', numbersOption)
    .addOption(
      new Option('--on-duplicate <what>', 'of a key that comes twice (last)').choices([
        'last',
        'error',
      ]),
    );
}

export function addResourceOptions(command: Command): Command {
  return command
    .option('--memory <bytes>', 'what building may take, beside the runtime (2GiB)', memoryOption)
    .option(
      '--threads <n>',
      `shards built at a time (${THREADS_DEFAULT})`,
      integerBetween(1, THREADS_MAX),
    )
    .option(
      '--chain-max <n>',
      `layers of a shard at most, a base and deltas (${CHAIN_MAX_DEFAULT})`,
      integerBetween(1, CHAIN_LAYERS_MAX),
    );
}

export function resourcesOf({
  memory = MEMORY_BYTES_DEFAULT,
  threads = THREADS_DEFAULT,
  chainMax = CHAIN_MAX_DEFAULT,
}: ResourceOptions): Pick<BuildRequest, 'memoryBytes' | 'threads' | 'chainMax'> {
  return { memoryBytes: memory, threads, chainMax };
}

export function addTargetOptions(command: Command): Command {
  return command
    .option('--output-path <folder>', 'the repository; made when absent')
    .option('--bundle <name>', 'the model', nameOption('bundle'));
}

/** Fails as wrong usage. */
export type Usage = (text: string) => never;

/** The parent of a delta: the version it goes on directly. */
export function parentOf(options: BuildOptions, usage: Usage): string | undefined {
  const { jobMode = 'base', dependVersion, lastVersion } = options;
  if (jobMode === 'base') {
    if (dependVersion !== undefined && dependVersion !== options.curVersion) {
      usage('--depend-version is of a delta: --job-mode delta');
    }
    if (lastVersion !== undefined) usage('--last-version is of a delta: --job-mode delta');
    return undefined;
  }
  if (dependVersion === undefined && lastVersion === undefined) {
    usage('--job-mode delta needs --depend-version: the version it goes on');
  }
  return lastVersion ?? dependVersion;
}

/** A name for the bundle, and one for the table. */
function namesOf(
  { bundle, dictName, table }: BuildOptions,
  paths: readonly string[],
  usage: Usage,
): { bundle: string; table: string | undefined } {
  const pruned = paths.some(isPrunedFolder);
  if (bundle !== undefined && dictName !== undefined && bundle !== dictName && pruned) {
    usage(`--bundle ${bundle} and --dict-name ${dictName} name two models`);
  }
  const name = bundle ?? dictName ?? usage('--bundle is missing: the name of the model');
  return { bundle: name, table: pruned ? table : (table ?? dictName) };
}

/** "version:7" is a table as that version has it; anything else is a path. */
export function originOf(
  paths: readonly string[],
  options: InputOptions,
  more: { readonly table: string | undefined; readonly delta: boolean },
): TableOrigin {
  const version = paths.length === 1 ? STORED_VERSION.exec(paths[0]!)?.[1] : undefined;
  if (version !== undefined) return { version, table: more.table };
  return inputSpecOf(paths, options, more);
}

export function tableRequestOf(
  input: TableOrigin,
  old: TableOrigin | undefined,
  options: TableOptions,
): TableRequest {
  const { deletes, dtype, i8Search, layout, defaultRow, onDuplicate } = options;
  const search = i8Search === undefined ? undefined : SEARCHES[i8Search];
  return { input, old, deletes, dtype, search, layout, defaultRow, onDuplicate };
}

/** The request of one table, or of one pruned model, from flags alone. */
export function requestOf(options: BuildOptions, usage: Usage): BuildRequest {
  const paths = [...(options.input ?? []), ...(options.inputPath ?? [])];
  const { diff, jobMode = 'base', curVersion } = options;
  if (diff !== undefined && paths.length > 0) usage('--diff OLD NEW stands instead of --input');
  if (diff === undefined && paths.length === 0) usage('--input is missing: what to read');
  if (diff !== undefined && jobMode !== 'delta') usage('--diff makes a delta: --job-mode delta');
  if (diff !== undefined && diff.length !== 2) usage('--diff takes two paths: OLD NEW');
  if (options.deletes !== undefined && jobMode !== 'delta') {
    usage('--deletes is of a delta: --job-mode delta');
  }
  const parent = parentOf(options, usage);
  const all = diff ?? paths;
  const { bundle, table } = namesOf(options, all, usage);
  if (jobMode === 'base' && options.shardNum === undefined) usage('--shard-num is missing');
  const more = { table, delta: jobMode === 'delta' };
  const [oldPath, newPath] = diff ?? [];
  const old = oldPath === undefined ? undefined : originOf([oldPath], options, more);
  const input = originOf(newPath === undefined ? paths : [newPath], options, more);
  return {
    ...{ bundle, jobMode, parent, shardNum: options.shardNum, golden: options.golden },
    version: curVersion ?? usage('--cur-version is missing: the name of the version'),
    tables: [tableRequestOf(input, old, options)],
    onlyShards: checkedShards(options, usage),
    publish: options.onlyBuild !== true,
    ...resourcesOf(options),
  };
}

/** The text is read again when the number of shards is known. */
export function checkedShards(options: BuildOptions, usage: Usage): string | undefined {
  const { onlyShards } = options;
  if (onlyShards !== undefined && !/^\d{1,5}(-\d{1,5})?(,\d{1,5}(-\d{1,5})?)*$/.test(onlyShards)) {
    usage(`--only-shards ${onlyShards}: expected numbers and ranges such as 0-3,7`);
  }
  return onlyShards;
}
