/** The command line of cube-cli. */

import { FleetFile } from '../../lib/client/fleet-file.ts';
import { packKeys } from '../../lib/client/pack-keys.ts';
import { requireDefined } from '../../lib/core/errors.ts';
import {
  type Command,
  createCli,
  EXIT_FAILED,
  parseIntegerBetween,
  parseNameOption,
  runCli,
} from '../../lib/platform/cli.ts';
import { addDecryptOptions } from '../../lib/platform/encryption-options.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { parseVersionFolder } from '../../lib/repository/version-folder.ts';
import { createServerCredentials } from '../../lib/rpc/credential-options.ts';
import { computeBytesToRead, diffVersions, type TableDiff } from './diff.ts';
import { formatDiff, toDiffJson } from './diff-report.ts';
import { FileSource, openLayerTable, readLayerHeader } from './file-source.ts';
import { collectKey, hashFeatures, readKeys } from './key-arguments.ts';
import type { RowSource } from './row-source.ts';
import { sampleKeys } from './sample.ts';
import { seekKeys } from './seek.ts';
import {
  addFileOptions,
  addSourceOptions,
  type FailUsage,
  type FileFlags,
  type LocatedVersion,
  locateVersion,
  openSource,
  type SourceFlags,
} from './source-options.ts';
import {
  formatLayer,
  formatReplicas,
  formatVersion,
  listReplicas,
  readReplicaStats,
  toLayerJson,
  toReplicasJson,
  toVersionJson,
} from './stat.ts';

interface RowFlags {
  readonly table?: readonly string[];
  readonly raw?: boolean;
  readonly json?: boolean;
}

interface SeekFlags extends SourceFlags, RowFlags {
  readonly keys?: string;
  readonly slot?: readonly string[];
  readonly feature?: readonly string[];
}

interface SampleFlags extends FileFlags, RowFlags {
  readonly seed: number;
}

interface DiffFlags extends Omit<FileFlags, 'file' | 'version'>, RowFlags {
  readonly limit: number;
}

const BATCH_KEYS = 1024;
const MEGABYTE = 1e6;

const SEEK_EXAMPLES = `
Examples:
  Read a layer file or the files of a version:
    cube-cli seek 17 0x2a --file /srv/models/ads/layers/users/0123456789abcdef0123456789abcdef.cube
    cube-cli seek 17 --file /srv/models/ads/versions/7 --table users
    cube-cli seek --repository /srv/models --bundle ads --slot C1 --feature 68fd1e64

  Query running servers; the manifest of the version that channel stable points to names the tables:
    cube-cli seek 17 --repository /srv/models --bundle ads --fleet fleet.json
    cube-cli seek --keys keys.txt --repository /srv/models --bundle ads --version 7 \\
      --server 10.0.0.1:8000

  Ask with Cube's own seek; each server answers from its active version:
    cube-cli seek 17 --cube-conf conf/cube.conf --dict users

Exit code 1 when a key is unavailable because no server answered for its shard.`;

const EXAMPLES = `
Examples:
  cube-cli seek 17 --file /srv/models/ads/versions/7 --table users
  cube-cli stat --server 127.0.0.1:8000
  cube-cli sample 5 --repository /srv/models --bundle ads
  cube-cli diff 7 8 --repository /srv/models --bundle ads

cube-cli <command> --help shows the options of a command.`;

const STAT_EXAMPLES = `
Examples:
  cube-cli stat --file /srv/models/ads/versions/7
  cube-cli stat --repository /srv/models --bundle ads --fleet fleet.json
  cube-cli stat --server 127.0.0.1:8000 --server 127.0.0.1:8001

Exit code 1 when a server does not answer.`;

const SAMPLE_EXAMPLES = `
Example:
  cube-cli sample 5 --seed 42 --repository /srv/models --bundle ads --table users`;

const DIFF_EXAMPLES = `
Examples:
  cube-cli diff 7 8 --repository /srv/models --bundle ads --limit 3
  cube-cli diff /srv/models/ads/versions/7 /mnt/staging/ads/versions/7 --json`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

export function createProgram(): Command {
  const program = createCli(
    'cube-cli',
    'Looks up keys in layer files, versions and running servers, and describes their content.',
  )
    .addHelpText('after', EXAMPLES)
    .enablePositionalOptions();
  addSeek(program);
  addStat(program);
  addSample(program);
  addDiff(program);
  return program;
}

function createUsageFailure(command: Command): FailUsage {
  return (text) => command.error(`error: ${text}`);
}

function collectText(text: string, before: readonly string[] = []): string[] {
  return [...before, text];
}

function collectTable(text: string, before: readonly string[] = []): string[] {
  return [...before, parseNameOption('table')(text)];
}

function addRowOptions(command: Command): Command {
  return command
    .option('--table <name>', 'Table to include; repeat for several (default: all)', collectTable)
    .option('--raw', 'Print rows as stored, in hex (default: decoded)')
    .option('--json', 'Print one JSON object per line, with keys as strings');
}

function addSeek(program: Command): void {
  const command = program
    .command('seek')
    .description('Looks up keys and prints outcome, shard, version and row of each.')
    .argument('[keys...]', 'Keys, decimal or 0x hex', collectKey)
    .option('--keys <file>', 'File with one key per line; - reads standard input')
    .option(
      '--slot <name>',
      'Slot of a feature to hash into a key; repeat for several',
      collectText,
    )
    .option(
      '--feature <text>',
      'Feature to hash; give one for each --slot, in the same order',
      collectText,
    );
  addRowOptions(addSourceOptions(command))
    .addHelpText('after', SEEK_EXAMPLES)
    .action(async (keys: readonly bigint[], flags: SeekFlags) => {
      const failUsage = createUsageFailure(command);
      const { slot = [], feature = [] } = flags;
      if (slot.length !== feature.length)
        failUsage(
          `give one --feature for each --slot: got ${slot.length} slots and ` +
            `${feature.length} features`,
        );
      if (keys.length + slot.length === 0 && flags.keys === undefined) {
        failUsage('no keys: give keys, --keys, or --slot with --feature');
      }
      const source = await openSource(flags, failUsage);
      try {
        const batches = readKeyBatches(source, keys, flags, failUsage);
        const unavailable = await seekKeys(source, batches, toSeekOptions(flags));
        if (unavailable > 0) process.exitCode = EXIT_FAILED;
      } finally {
        source.close();
      }
    });
}

function toSeekOptions({ table, raw, json }: RowFlags) {
  return { tables: table, raw: raw === true, json: json === true };
}

async function* readKeyBatches(
  { manifest }: RowSource,
  keys: readonly bigint[],
  { slot = [], feature = [], keys: file }: SeekFlags,
  failUsage: FailUsage,
): AsyncGenerator<Uint32Array> {
  if (keys.length > 0) yield packKeys(keys);
  if (slot.length > 0) {
    if (manifest === undefined)
      failUsage(
        '--slot needs a version (its manifest defines the hash): give --repository and --bundle',
      );
    else yield hashFeatures(manifest, slot, feature);
  }
  if (file !== undefined) yield* readKeys(file, BATCH_KEYS);
}

function addStat(program: Command): void {
  const command = program
    .command('stat')
    .description(
      'Prints tables, rows, bytes and chain depths, and the versions that servers have loaded.',
    );
  addSourceOptions(command)
    .option('--json', 'Print one JSON object')
    .addHelpText('after', STAT_EXAMPLES)
    .action((flags: SourceFlags & RowFlags) => stat(flags, createUsageFailure(command)));
}

async function stat(flags: SourceFlags & RowFlags, failUsage: FailUsage): Promise<void> {
  const { file, repository, fleet, server, json } = flags;
  if (fleet === undefined && server === undefined) {
    if (file === undefined && repository === undefined) {
      failUsage('no target: give --file, --repository, --fleet or --server');
    }
    const located = await locateVersion(flags, failUsage);
    if (located === undefined) {
      const header = readLayerHeader(requireDefined(file, '--file'));
      printLine(json === true ? JSON.stringify(toLayerJson(header)) : formatLayer(header));
    } else {
      const { manifest } = located;
      printLine(json === true ? JSON.stringify(toVersionJson(manifest)) : formatVersion(manifest));
    }
    return;
  }
  const manifest = (await locateVersion(flags, failUsage))?.manifest;
  const bundle = manifest?.bundle ?? flags.bundle;
  if (fleet !== undefined && bundle === undefined) failUsage('--fleet needs --bundle');
  const replicas =
    fleet === undefined
      ? (server ?? []).map((address) => ({ address, shard: undefined }))
      : listReplicas(
          new FleetFile(fleet, { onInvalid: () => undefined }).current(),
          requireDefined(bundle, '--bundle'),
        );
  const { timeoutMs } = flags;
  const stats = await readReplicaStats(replicas, {
    credentials: createServerCredentials(flags),
    timeoutMs,
  });
  if (stats.some(({ error }) => error !== undefined)) process.exitCode = EXIT_FAILED;
  if (json === true) {
    const version = manifest === undefined ? undefined : toVersionJson(manifest);
    printLine(JSON.stringify({ version, replicas: toReplicasJson(stats, bundle, manifest) }));
    return;
  }
  const text = formatReplicas(stats, bundle, manifest);
  printLine(manifest === undefined ? text : `${formatVersion(manifest)}\n\n${text}`);
}

const SAMPLE_MAX = 100_000;
const SEED_MAX = 2 ** 31 - 1;

function addSample(program: Command): void {
  const command = program
    .command('sample')
    .description('Prints random rows of files; the same seed gives the same rows.')
    .argument('<count>', 'Rows to print for each table', parseIntegerBetween(1, SAMPLE_MAX))
    .option('--seed <number>', 'Seed of the random choice', parseIntegerBetween(0, SEED_MAX), 1);
  addRowOptions(addFileOptions(command))
    .addHelpText('after', SAMPLE_EXAMPLES)
    .action(async (count: number, flags: SampleFlags) => {
      const failUsage = createUsageFailure(command);
      const source = await openFiles(flags, failUsage);
      const names = flags.table;
      try {
        for (const table of source.tables) {
          if (names !== undefined && !names.includes(table.name)) continue;
          const keys = sampleKeys(table, count, flags.seed);
          await seekKeys(source, [keys], { ...toSeekOptions(flags), tables: [table.name] });
        }
        for (const name of names ?? []) {
          if (!source.tables.some((table) => table.name === name))
            failUsage(`there is no table ${name}`);
        }
      } finally {
        source.close();
      }
    });
}

async function openFiles(flags: FileFlags, failUsage: FailUsage): Promise<FileSource> {
  if (flags.file === undefined && flags.repository === undefined) {
    failUsage('no source of rows: give --file or --repository');
  }
  const located = await locateVersion(flags, failUsage);
  if (located === undefined) {
    return new FileSource([openLayerTable(requireDefined(flags.file, '--file'))], undefined);
  }
  return FileSource.openVersion(located.root, located.manifest);
}

const EXAMPLES_MAX = 1_000;

function addDiff(program: Command): void {
  const command = program
    .command('diff')
    .description('Prints the keys that were added, removed or changed between two versions.')
    .argument('<before>', 'Earlier version: its name or its folder')
    .argument('<after>', 'Later version: its name or its folder')
    .option('--repository <folder>', 'Repository of versions given by name')
    .option('--bundle <name>', 'Bundle of versions given by name', parseNameOption('bundle'))
    .option(
      '--limit <n>',
      'Maximum examples printed per table and kind of change',
      parseIntegerBetween(0, EXAMPLES_MAX),
      5,
    )
    .option('--table <name>', 'Table to include; repeat for several (default: all)', collectTable)
    .option('--json', 'Print one JSON object, with keys as strings and rows as stored, in hex');
  addDecryptOptions(command)
    .addHelpText('after', DIFF_EXAMPLES)
    .action(async (beforeText: string, afterText: string, flags: DiffFlags) => {
      const failUsage = createUsageFailure(command);
      const before = await locateDiffVersion(beforeText, flags, failUsage);
      const after = await locateDiffVersion(afterText, flags, failUsage);
      const diffs = runDiff(before, after, flags);
      printLine(
        flags.json === true
          ? JSON.stringify(toDiffJson(beforeText, afterText, diffs))
          : formatDiff(beforeText, afterText, diffs),
      );
    });
}

async function locateDiffVersion(
  text: string,
  flags: DiffFlags,
  failUsage: FailUsage,
): Promise<LocatedVersion> {
  const isFolder = /[/\\]/.test(text);
  if (!isFolder && flags.repository === undefined) {
    failUsage(
      `version ${text} is given by name: add --repository and --bundle, or give its folder`,
    );
  }
  const address = isFolder
    ? { ...flags, ...parseFolder(text), channel: '' }
    : { ...flags, version: parseNameOption('version')(text) };
  return requireDefined(await locateVersion(address, failUsage), `version ${text}`);
}

function parseFolder(folder: string): { repository: string; bundle: string; version: string } {
  const { root, bundle, version } = parseVersionFolder(folder);
  return { repository: root, bundle, version };
}

function runDiff(before: LocatedVersion, after: LocatedVersion, flags: DiffFlags): TableDiff[] {
  const total = computeBytesToRead(before.manifest, after.manifest);
  const progress = startProgress('comparing', Math.ceil(total / MEGABYTE), 'MB');
  let done = 0;
  try {
    const options = {
      tables: flags.table,
      limit: flags.limit,
      onBytes: (bytes: number) => {
        done += bytes;
        progress.update(Math.floor(done / MEGABYTE));
      },
    };
    return [...diffVersions(before, after, options)];
  } finally {
    progress.stop();
  }
}
