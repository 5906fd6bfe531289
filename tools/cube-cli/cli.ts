/** The command line of cube-cli. */

import { FleetFile } from '../../lib/client/fleet-file.ts';
import {
  type Command,
  createCli,
  EXIT_FAILED,
  integerBetween,
  nameOption,
  runCli,
} from '../../lib/platform/cli.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { print } from '../../lib/platform/text-table.ts';
import { versionOfFolder } from '../../lib/repository/version-folder.ts';
import { serverCredentials } from '../../lib/rpc/credential-options.ts';
import { bytesToRead, diffVersions, type TableDiff } from './diff.ts';
import { diffJson, diffText } from './diff-report.ts';
import { FileSource, headerOf, tableOfLayer } from './file-source.ts';
import { collectKey, hashFeatures, readKeys, wordsOf } from './key-arguments.ts';
import type { RowSource } from './row-source.ts';
import { sampleKeys } from './sample.ts';
import { seekKeys } from './seek.ts';
import {
  addFileOptions,
  addSourceOptions,
  type FileFlags,
  type LocatedVersion,
  locateVersion,
  openSource,
  type SourceFlags,
  type Usage,
} from './source-options.ts';
import {
  askReplicas,
  layerJson,
  layerText,
  replicasJson,
  replicasOf,
  replicasText,
  versionJson,
  versionText,
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
  In a layer file, and in a version:
    cube-cli seek 17 0x2a --file /srv/models/ads/layers/users/0123456789abcdef0123456789abcdef.cube
    cube-cli seek 17 --file /srv/models/ads/versions/7 --table users
    cube-cli seek --repository /srv/models --bundle ads --slot C1 --feature 68fd1e64

  In running servers, pinned to the version that the channel stable points to:
    cube-cli seek 17 --repository /srv/models --bundle ads --fleet fleet.json
    cube-cli seek --keys keys.txt --repository /srv/models --bundle ads --version 7 --server 10.0.0.1:8000

  By Cube's own seek, at whatever version the servers have active:
    cube-cli seek 17 --cube-conf conf/cube.conf --dict users

Exit code 1 when a key is unavailable: nobody answered for its shard.`;

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
  const program = createCli(
    'cube-cli',
    'Looks keys up in layer files, versions and running servers, and says what they are made of.',
  ).enablePositionalOptions();
  addSeek(program);
  addStat(program);
  addSample(program);
  addDiff(program);
  return runCli(program, argv);
}

function usageOf(command: Command): Usage {
  return (text) => command.error(`error: ${text}`);
}

function collect(text: string, before: readonly string[] = []): string[] {
  return [...before, text];
}

function collectTable(text: string, before: readonly string[] = []): string[] {
  return [...before, nameOption('table')(text)];
}

function addRowOptions(command: Command): Command {
  return command
    .option('--table <name>', 'this table alone; may be given several times', collectTable)
    .option('--raw', 'rows as they are stored, in hex')
    .option('--json', 'an object a line, keys as strings');
}

function addSeek(program: Command): void {
  const command = program
    .command('seek')
    .description('Prints what keys have: outcome, shard, version, row.')
    .argument('[keys...]', 'decimal or 0x hex', collectKey)
    .option('--keys <file>', 'keys, one a line; - is standard input')
    .option('--slot <name>', 'hash a feature of this slot as the version does', collect)
    .option('--feature <text>', 'the feature of that slot; as many as slots', collect);
  addRowOptions(addSourceOptions(command))
    .addHelpText('after', SEEK_EXAMPLES)
    .action(async (keys: readonly bigint[], flags: SeekFlags) => {
      const usage = usageOf(command);
      const { slot = [], feature = [] } = flags;
      if (slot.length !== feature.length) usage('give a --feature for each --slot');
      if (keys.length + slot.length === 0 && flags.keys === undefined) {
        usage('give keys, --keys or --slot with --feature');
      }
      const source = await openSource(flags, usage);
      try {
        const batches = keyBatches(source, keys, flags, usage);
        const unavailable = await seekKeys(source, batches, wishOf(flags));
        if (unavailable > 0) process.exitCode = EXIT_FAILED;
      } finally {
        source.close();
      }
    });
}

function wishOf({ table, raw, json }: RowFlags) {
  return { tables: table, raw: raw === true, json: json === true };
}

async function* keyBatches(
  { manifest }: RowSource,
  keys: readonly bigint[],
  { slot = [], feature = [], keys: file }: SeekFlags,
  usage: Usage,
): AsyncGenerator<Uint32Array> {
  if (keys.length > 0) yield wordsOf(keys);
  if (slot.length > 0) {
    if (manifest === undefined) usage('--slot needs a version, which says how features are hashed');
    else yield hashFeatures(manifest, slot, feature);
  }
  if (file !== undefined) yield* readKeys(file, BATCH_KEYS);
}

function addStat(program: Command): void {
  const command = program
    .command('stat')
    .description('Prints tables, rows, bytes and chains; of servers, the versions they hold.');
  addSourceOptions(command)
    .option('--json', 'the same for programs')
    .addHelpText('after', STAT_EXAMPLES)
    .action((flags: SourceFlags & RowFlags) => stat(flags, usageOf(command)));
}

async function stat(flags: SourceFlags & RowFlags, usage: Usage): Promise<void> {
  const { file, repository, fleet, server, json } = flags;
  if (fleet === undefined && server === undefined) {
    if (file === undefined && repository === undefined) {
      usage('say what of: --file, --repository, --fleet or --server');
    }
    const located = await locateVersion(flags, usage);
    if (located === undefined) {
      const header = headerOf(file!);
      print(json === true ? JSON.stringify(layerJson(header)) : layerText(header));
    } else {
      const { manifest } = located;
      print(json === true ? JSON.stringify(versionJson(manifest)) : versionText(manifest));
    }
    return;
  }
  const manifest = (await locateVersion(flags, usage))?.manifest;
  const bundle = manifest?.bundle ?? flags.bundle;
  if (fleet !== undefined && bundle === undefined) usage('--fleet needs --bundle');
  const replicas =
    fleet === undefined
      ? (server ?? []).map((address) => ({ address, shard: undefined }))
      : replicasOf(new FleetFile(fleet, { onInvalid: () => undefined }).current(), bundle!);
  const { timeoutMs } = flags;
  const stats = await askReplicas(replicas, { credentials: serverCredentials(flags), timeoutMs });
  if (stats.some(({ status }) => status === undefined)) process.exitCode = EXIT_FAILED;
  if (json === true) {
    const version = manifest === undefined ? undefined : versionJson(manifest);
    print(JSON.stringify({ version, replicas: replicasJson(stats, bundle, manifest) }));
    return;
  }
  const text = replicasText(stats, bundle, manifest);
  print(manifest === undefined ? text : `${versionText(manifest)}\n\n${text}`);
}

const SAMPLE_MAX = 100_000;
const SEED_MAX = 2 ** 31 - 1;

function addSample(program: Command): void {
  const command = program
    .command('sample')
    .description('Prints rows drawn at random from files, the same for the same seed.')
    .argument('<count>', 'rows of each table', integerBetween(1, SAMPLE_MAX))
    .option('--seed <number>', 'another one draws others', integerBetween(0, SEED_MAX), 1);
  addRowOptions(addFileOptions(command))
    .addHelpText('after', SAMPLE_EXAMPLES)
    .action(async (count: number, flags: SampleFlags) => {
      const usage = usageOf(command);
      const source = await openFiles(flags, usage);
      const wanted = flags.table;
      try {
        for (const table of source.tables) {
          if (wanted !== undefined && !wanted.includes(table.name)) continue;
          const keys = sampleKeys(table, count, flags.seed);
          await seekKeys(source, [keys], { ...wishOf(flags), tables: [table.name] });
        }
        for (const name of wanted ?? []) {
          if (!source.tables.some((table) => table.name === name))
            usage(`there is no table ${name}`);
        }
      } finally {
        source.close();
      }
    });
}

async function openFiles(flags: FileFlags, usage: Usage): Promise<FileSource> {
  if (flags.file === undefined && flags.repository === undefined) {
    usage('say where the rows are: --file or --repository');
  }
  const located = await locateVersion(flags, usage);
  if (located === undefined) return new FileSource([tableOfLayer(flags.file!)], undefined);
  return FileSource.ofVersion(located.root, located.manifest);
}

const EXAMPLES_MAX = 1_000;

function addDiff(program: Command): void {
  const command = program
    .command('diff')
    .description('Prints which keys one version has and another has not, or otherwise.')
    .argument('<before>', 'a version, or its folder')
    .argument('<after>', 'a version, or its folder')
    .option('--repository <folder>', 'where versions live')
    .option('--bundle <name>', 'the model', nameOption('bundle'))
    .option(
      '--limit <n>',
      'examples of each kind of change, for each table',
      integerBetween(0, EXAMPLES_MAX),
      5,
    )
    .option('--table <name>', 'this table alone; may be given several times', collectTable)
    .option('--json', 'the same for programs: keys as strings, rows in hex as stored')
    .addHelpText('after', DIFF_EXAMPLES)
    .action(async (one: string, other: string, flags: DiffFlags) => {
      const usage = usageOf(command);
      const before = await locateSide(one, flags, usage);
      const after = await locateSide(other, flags, usage);
      const diffs = diffAll(before, after, flags);
      print(
        flags.json === true
          ? JSON.stringify(diffJson(one, other, diffs))
          : diffText(one, other, diffs),
      );
    });
}

async function locateSide(text: string, flags: DiffFlags, usage: Usage): Promise<LocatedVersion> {
  const isFolder = /[/\\]/.test(text);
  if (!isFolder && flags.repository === undefined) {
    usage(`${text} is the name of a version: say --repository and --bundle, or give its folder`);
  }
  const wish = isFolder
    ? { ...placeOfFolder(text), channel: '' }
    : { ...flags, version: nameOption('version')(text) };
  return (await locateVersion(wish, usage))!;
}

function placeOfFolder(folder: string): { repository: string; bundle: string; version: string } {
  const { root, bundle, version } = versionOfFolder(folder);
  return { repository: root, bundle, version };
}

function diffAll(before: LocatedVersion, after: LocatedVersion, flags: DiffFlags): TableDiff[] {
  const total = bytesToRead(before.manifest, after.manifest);
  const progress = startProgress('comparing', Math.ceil(total / MEGABYTE), 'MB');
  let done = 0;
  try {
    const wish = {
      ...{ tables: flags.table, limit: flags.limit },
      onBytes: (bytes: number) => {
        done += bytes;
        progress.update(Math.floor(done / MEGABYTE));
      },
    };
    return [...diffVersions(before, after, wish)];
  } finally {
    progress.stop();
  }
}
