/** The command line of cube-builder: commands, options, examples and output. */
import { SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import { addExpectOptions, type ExpectOptions } from '../../lib/features/expect-options.ts';
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  createCli,
  Option,
  parseIntegerBetween,
  parseNameOption,
  runCli,
  withDryRunNote,
} from '../../lib/platform/cli.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { type BuildJob, runBuild } from './build.ts';
import { createBuildJob } from './build-job.ts';
import {
  addResourceOptions,
  addTableOptions,
  addTargetOptions,
  type BuildOptions,
  type FailUsage,
  LAYOUT_HELP,
  toBuildRequest,
  toExpectation,
} from './build-options.ts';
import type { BuildRequest } from './build-request.ts';
import { readBuildSpec } from './build-spec.ts';
import { type BuildTarget, isRemote, openTarget } from './build-target.ts';
import { type CompactOptions, createCompactRequest } from './compact.ts';
import {
  addEncryptOptions,
  type EncryptOptions,
  openFiles,
  useEncryptOptions,
} from './encryption.ts';
import { addKeyCommands } from './key-commands.ts';
import {
  type BuildReport,
  createDryRunReport,
  createVersionReport,
  formatDryRunReport,
  formatReport,
} from './report.ts';
import { sealVersion } from './seal.ts';
import { verifyVersion } from './verify-version.ts';
import { createWholeGraph, type WholeGraph, type WholeGraphOptions } from './whole-graph.ts';

const EXAMPLES = `
Examples:
  Build the output of prune-model as version 1 in four shards:
    cube-builder --input out/ --shard-num 4 --cur-version 1 --bundle ctr-dnn \\
      --output-path /srv/models

  Build a table from Parquet files and store one byte per number:
    cube-builder --input 'users/*.parquet' --key-column id --dtype i8 --shard-num 8 \\
      --output-path /srv/models --bundle ads --dict-name users --cur-version 1

  Build a delta on it, with the option names of Cube:
    cube-builder --job-mode delta --depend-version 1 --cur-version 2 \\
      --input-path changed/ --deletes deleted.txt \\
      --output-path /srv/models --bundle ads --dict-name users

  Build several tables from a spec, then only two of eight shards:
    cube-builder --spec build.yaml
    cube-builder --spec build.yaml --only-shards 0-1

A published version never changes. Building it again from the same input succeeds and reports that
it exists; building different content under the same version fails. Versions share equal layers.
After an interrupted build run the same command again: finished shards are not rebuilt.
`;

const SEAL_EXAMPLES = `
Example:
  cube-builder seal --output-path /srv/models --bundle ads --version 1
`;

const DIFF_EXAMPLES = `
Examples:
  Build a delta with the changes between two files, on top of version 1:
    cube-builder diff old.npy new.npy --output-path /srv/models --bundle ads --dict-name users \\
      --depend-version 1 --cur-version 2

  Build a delta with the changes from version 1 to version 5:
    cube-builder diff version:1 version:5 --output-path /srv/models --bundle ads \\
      --depend-version 1 --cur-version 6
`;

const COMPACT_EXAMPLES = `
Example:
  cube-builder compact --version 9 --cur-version 10 --output-path /srv/models --bundle ads
`;

const GRAPH_EXAMPLES = `
Example:
  cube-builder graph --model model.onnx --features features.json \\
    --output-path repo --bundle small --cur-version 1
  cube-agent activate --repository repo --bundle small --version 1 --reason first
  serving --repository repo --bundle small --store none

  cube-builder graph --plain --model encoder.onnx --output-path repo --bundle encoder \\
    --cur-version 1
`;

const EXISTING_TARGET_HELP = {
  folder: 'Repository folder (required)',
  bundle: 'Bundle name (required)',
} as const;
const PARTS_NEED_FOLDER =
  'shards that are built separately need a folder; build there, then copy the version with ' +
  'cube-agent publish';
const MODES = ['base', 'delta'] as const;
const GOLDEN_HELP =
  'File of golden rows (JSON lines) to publish with the version; rows with a field "score" must ' +
  'have that score';
const ONLY_SHARDS_HELP =
  'Build only these shards, such as 0-3,7, without publishing; cube-builder seal publishes';

interface TargetFlags extends ExpectOptions, EncryptOptions {
  readonly outputPath?: string;
  readonly bundle?: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface GraphOptions extends Omit<WholeGraphOptions, 'bundle'>, TargetFlags {}

interface SealFlags extends TargetFlags {
  readonly version: string;
}

interface CompactCommandOptions extends Omit<CompactOptions, 'bundle'>, TargetFlags {}

export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

export function createProgram(): Command {
  const program = createCli(
    'cube-builder',
    'Builds a model version: writes rows to sharded layer files and publishes them.',
  ).enablePositionalOptions();
  addBuildOptions(program)
    .addHelpText('after', EXAMPLES)
    .action(async (options: BuildOptions) => {
      const usage = createFailUsage(program);
      await buildVersion(
        options.spec === undefined
          ? toBuildRequest(options, usage)
          : readBuildSpec(options.spec, options, usage),
        options,
        usage,
      );
    });
  addSeal(program);
  addDiff(program);
  addCompact(program);
  addGraph(program);
  addKeyCommands(program);
  return program;
}

function createFailUsage(command: Command): FailUsage {
  return (text) => command.error(`error: ${text}`);
}

function appendPath(path: string, before: readonly string[] | undefined): string[] {
  return [...(before ?? []), path];
}

function addBuildOptions(command: Command): Command {
  const withInput = command
    .option(
      '--input <path...>',
      'Input files, folders or globs, output folders of prune-model, or - for standard input',
    )
    .option('--input-path <path...>', "Cube's name for --input");
  addTargetOptions(withInput, {
    folder:
      'Repository to publish to: a folder, created if missing, or s3://bucket/prefix (required ' +
      'unless --spec has it)',
    bundle: 'Bundle name (required unless --dict-name or --spec gives it)',
  })
    .addOption(new Option('--job-mode <mode>', 'Build mode (default: base)').choices(MODES))
    .option(
      '--shard-num <n>',
      'Number of shards of a base (required unless --spec has it); a delta always has ' +
        "its parent's. " +
        'A key belongs to shard key mod n',
      parseIntegerBetween(1, SHARD_NUM_MAX),
    )
    .option('--deletes <file>', 'File with keys that a delta deletes; repeatable', appendPath)
    .option('--diff <path...>', 'Two inputs, OLD NEW; the delta contains their differences')
    .option('--golden <file>', GOLDEN_HELP)
    .option('--spec <file>', 'Build spec in YAML: several tables with their inputs and options');
  addExpectOptions(command);
  addVersionOptions(command, 'Name of the new version (required unless --spec has it)');
  return addOutputOptions(addEncryptOptions(addResourceOptions(addTableOptions(command))));
}

function addOutputOptions(command: Command): Command {
  return addJsonOption(addDryRunOption(command));
}

/** The options that the default command and `diff` share. */
function addVersionOptions(command: Command, versionHelp: string): Command {
  return command
    .option(
      '--dict-name <name>',
      "Cube's name for the table; also names the bundle without --bundle",
      parseNameOption('table'),
    )
    .option(
      '--table <name>',
      'Table name (default: the name in the input, or the file name)',
      parseNameOption('table'),
    )
    .option('--cur-version <name>', versionHelp, parseNameOption('version'))
    .option(
      '--depend-version <name>',
      'Parent version of a delta build',
      parseNameOption('version'),
    )
    .option(
      '--last-version <name>',
      'Parent version of a delta build when the parent is a delta; overrides --depend-version',
      parseNameOption('version'),
    )
    .option('--only-shards <list>', ONLY_SHARDS_HELP)
    .option('--only-build', 'Build all shards without publishing; cube-builder seal publishes');
}

function addSeal(program: Command): void {
  const command = program
    .command('seal')
    .description('Publishes a version whose shards were built separately.');
  addOutputOptions(
    addEncryptOptions(addExpectOptions(addTargetOptions(command, EXISTING_TARGET_HELP))),
  )
    .requiredOption('--version <name>', 'Version to publish', parseNameOption('version'))
    .addHelpText('after', SEAL_EXAMPLES)
    .action(async (options: SealFlags) => {
      const usage = createFailUsage(command);
      const { folder, bundle } = readTarget(options, usage);
      if (isRemote(folder)) usage(`--output-path ${folder}: ${PARTS_NEED_FOLDER}`);
      const { dryRun = false } = options;
      useEncryptOptions(options);
      const repository = openRepository(folder, { dryRun });
      const target = { repository, work: repository, close: () => undefined };
      const sealed = await sealVersion(target, bundle, options.version, {
        dryRun,
        expect: toExpectation(options),
      });
      printReport(createVersionReport(repository.location, sealed, 0), options);
    });
}

function addDiff(program: Command): void {
  const command = program
    .command('diff')
    .description('Builds a delta with the differences between two inputs or versions.')
    .argument('<old>', 'Old rows: a path, or version:NAME')
    .argument('<new>', 'New rows: a path, or version:NAME');
  addTargetOptions(command, {
    folder: 'Repository folder (required)',
    bundle: 'Bundle name (required unless --dict-name gives it)',
  }).option(
    '--shard-num <n>',
    'Expected number of shards; the build fails if the parent has another (default: no check)',
    parseIntegerBetween(1, SHARD_NUM_MAX),
  );
  addVersionOptions(addExpectOptions(command), 'Name of the new version (required)');
  addOutputOptions(addEncryptOptions(addResourceOptions(addTableOptions(command))))
    .addHelpText('after', DIFF_EXAMPLES)
    .action(async (before: string, after: string, options: BuildOptions) => {
      const usage = createFailUsage(command);
      const request = toBuildRequest(
        { ...options, jobMode: 'delta', diff: [before, after] },
        usage,
      );
      await buildVersion(request, options, usage);
    });
}

function addCompact(program: Command): void {
  const command = program
    .command('compact')
    .description('Merges base and delta layers into bases: a new version with the same rows.');
  addTargetOptions(command, EXISTING_TARGET_HELP)
    .requiredOption('--version <name>', 'Version to merge', parseNameOption('version'))
    .requiredOption('--cur-version <name>', 'Name of the new version', parseNameOption('version'))
    .addOption(new Option('--layout <name>', LAYOUT_HELP).choices(['indexed']))
    .option('--only-shards <list>', ONLY_SHARDS_HELP);
  addOutputOptions(addEncryptOptions(addResourceOptions(addExpectOptions(command))))
    .addHelpText('after', COMPACT_EXAMPLES)
    .action(async (options: CompactCommandOptions) => {
      const usage = createFailUsage(command);
      const { folder, bundle } = readTarget(options, usage);
      useEncryptOptions(options);
      const repository = openRepository(folder);
      const request = await createCompactRequest(repository, { ...options, bundle });
      await buildVersion(request, { ...options, outputPath: folder }, usage);
    });
}

function addGraph(program: Command): void {
  const command = program
    .command('graph')
    .description('Publishes a whole graph, embeddings included, as a version without tables.')
    .requiredOption('--model <file>', 'Trained model in ONNX format');
  addExpectOptions(command);
  addTargetOptions(command, {
    folder:
      'Repository to publish to: a folder, created if missing, or s3://bucket/prefix (required)',
    bundle: 'Bundle name (required)',
  })
    .requiredOption('--cur-version <name>', 'Name of the new version', parseNameOption('version'))
    .option(
      '--features <file>',
      'features.json of the training script (default: none; requests then contain ids)',
    )
    .option(
      '--accept',
      'Publish although features.json looks wrong: slots with one index, names with two ' +
        'meanings, or ids inputs in another order than the slots (default: refuse)',
    )
    .option('--golden <file>', GOLDEN_HELP)
    .option(
      '--plain',
      'Publish a plain model, whose requests are tensors of any type; files beside it with ' +
        'tensors of it are published too (default: requests contain ids and dense features)',
    );
  addOutputOptions(addEncryptOptions(command))
    .addHelpText('after', GRAPH_EXAMPLES)
    .action(async (options: GraphOptions) => {
      const usage = createFailUsage(command);
      const { folder, bundle } = readTarget(options, usage);
      if (options.plain && (options.features ?? options.golden) !== undefined) {
        usage('--plain: a plain model has no --features and no --golden rows');
      }
      useEncryptOptions(options);
      const version = await createWholeGraph({ ...options, bundle });
      await publishGraph(folder, version, options);
    });
}

async function publishGraph(
  location: string,
  graph: WholeGraph,
  { dryRun = false, json, ...expect }: TargetFlags,
): Promise<void> {
  const target = await openTarget(location, dryRun);
  try {
    const clear = { manifest: graph.manifest, files: openFiles(graph.files) };
    await verifyVersion(target, clear, toExpectation(expect));
    const { published, restored } = await target.repository.publish({ ...graph, layers: [] });
    const { bundle, version, files } = graph.manifest;
    const done = dryRun ? 'would be published' : 'published';
    const outcome = published ? done : 'already published';
    const note = restored === 0 ? '' : `; missing files restored: ${restored}`;
    const text = `${bundle} ${version} ${outcome}: a graph without tables${note}`;
    const report = { repository: location, bundle, version, published, restored, files, dryRun };
    printLine(json ? JSON.stringify(report) : withDryRunNote(text, { dryRun }));
  } finally {
    target.close();
  }
}

function readTarget(
  { outputPath, bundle }: { readonly outputPath?: string; readonly bundle?: string },
  usage: FailUsage,
): { folder: string; bundle: string } {
  return {
    folder: outputPath ?? usage('--output-path is missing: give the repository folder'),
    bundle: bundle ?? usage('--bundle is missing: give the bundle name'),
  };
}

async function buildVersion(
  request: BuildRequest & { readonly outputPath?: string },
  options: TargetFlags,
  usage: FailUsage,
): Promise<void> {
  const folder =
    options.outputPath ??
    request.outputPath ??
    usage('--output-path is missing: give the repository folder');
  if (isRemote(folder) && !(request.publish && request.onlyShards === undefined)) {
    usage(`--output-path ${folder}: ${PARTS_NEED_FOLDER}`);
  }
  useEncryptOptions(options);
  const job = await createBuildJob(folder, request);
  const target = await openTarget(folder, options.dryRun);
  try {
    if (options.dryRun) await printDryRun(folder, target, job, options.json);
    else printReport(await runBuild(target, job), options);
  } finally {
    target.close();
  }
}

async function printDryRun(
  location: string,
  { repository }: BuildTarget,
  { plan, shards, publish }: BuildJob,
  asJson = false,
): Promise<void> {
  const exists = (await repository.listVersions(plan.bundle)).includes(plan.version);
  const report = createDryRunReport(location, plan, { shards, publish, exists });
  printLine(asJson ? JSON.stringify(report) : formatDryRunReport(report));
}

function printReport(
  report: BuildReport,
  { dryRun = false, json = false }: Pick<TargetFlags, 'dryRun' | 'json'>,
): void {
  const text = json
    ? JSON.stringify({ ...report, dryRun })
    : withDryRunNote(formatReport(report), { dryRun });
  printLine(text);
}
