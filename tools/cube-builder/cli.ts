/** The command line of cube-builder. */
import { SHARD_NUM_MAX } from '../../lib/core/layer-format.ts';
import {
  type Command,
  createCli,
  integerBetween,
  nameOption,
  Option,
  runCli,
} from '../../lib/platform/cli.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { openTarget, runBuild } from './build.ts';
import { makeJob } from './build-job.ts';
import {
  addResourceOptions,
  addTableOptions,
  addTargetOptions,
  type BuildOptions,
  type ResourceOptions,
  requestOf,
  type Usage,
} from './build-options.ts';
import type { BuildRequest } from './build-request.ts';
import { readBuildSpec } from './build-spec.ts';
import { compactRequest } from './compact.ts';
import { type BuildReport, formatReport, sealedReport } from './report.ts';
import { sealVersion } from './seal.ts';
import { type WholeGraphOptions, wholeGraph } from './whole-graph.ts';

const EXAMPLES = `
Examples:
  Build what prune-model wrote, as version 1 in four shards:
    cube-builder --input out/ --shard-num 4 --output-path /srv/models --cur-version 1 --bundle ctr-dnn

  A table of Parquet files, rows stored in a byte a number:
    cube-builder --input 'users/*.parquet' --key-column id --dtype i8 --shard-num 8 \\
      --output-path /srv/models --bundle ads --dict-name users --cur-version 1

  A delta on it, in Cube's words:
    cube-builder --job-mode delta --depend-version 1 --cur-version 2 --input-path changed/ --deletes gone.txt \\
      --output-path /srv/models --bundle ads --dict-name users

  Several tables, by a spec; and two of eight shards on this machine:
    cube-builder --spec build.yaml
    cube-builder --spec build.yaml --only-shards 0-1

A version never changes: building the same again says so and ends well, building something else under the same
version is refused. Layers that another version has already are shared. A build that was killed is simply run again:
shards that are finished are not built again.
`;

const SEAL_EXAMPLES = `
Example:
  cube-builder seal --output-path /srv/models --bundle ads --version 1
`;

const DIFF_EXAMPLES = `
Examples:
  What turns yesterday's file into today's, on top of version 1:
    cube-builder diff old.npy new.npy --output-path /srv/models --bundle ads --dict-name users \\
      --depend-version 1 --cur-version 2

  What turns version 1 into version 5, both in the repository:
    cube-builder diff version:1 version:5 --output-path /srv/models --bundle ads --depend-version 1 --cur-version 6
`;

const COMPACT_EXAMPLES = `
Example:
  cube-builder compact --version 9 --cur-version 10 --output-path /srv/models --bundle ads
`;

const GRAPH_EXAMPLES = `
Example:
  cube-builder graph --model model.onnx --features features.json --output-path repo --bundle small --cur-version 1
  cube-agent activate --repository repo --bundle small --version 1
  serving --repository repo --bundle small --store none
`;

interface GraphOptions extends Omit<WholeGraphOptions, 'bundle'> {
  readonly outputPath?: string;
  readonly bundle?: string;
}

interface SealOptions {
  readonly outputPath?: string;
  readonly bundle?: string;
  readonly version: string;
  readonly json?: boolean;
}

interface CompactOptions extends ResourceOptions {
  readonly outputPath?: string;
  readonly bundle?: string;
  readonly version: string;
  readonly curVersion: string;
  readonly layout?: 'indexed';
  readonly onlyShards?: string;
  readonly json?: boolean;
}

export function run(argv?: readonly string[]): Promise<number> {
  const program = createCli(
    'cube-builder',
    'Builds a version: rows to sharded layer files, published in a repository.',
  ).enablePositionalOptions();
  addBuildOptions(program)
    .addHelpText('after', EXAMPLES)
    .action(async (options: BuildOptions) => {
      const usage = usageOf(program);
      await build(
        options.spec === undefined
          ? requestOf(options, usage)
          : readBuildSpec(options.spec, options, usage),
        options,
        usage,
      );
    });
  addSeal(program);
  addDiff(program);
  addCompact(program);
  addGraph(program);
  return runCli(program, argv);
}

function usageOf(command: Command): Usage {
  return (text) => command.error(`error: ${text}`);
}

function pathList(path: string, before: readonly string[] | undefined): string[] {
  return [...(before ?? []), path];
}

function addBuildOptions(command: Command): Command {
  const withInput = command
    .option('--input <path...>', 'files, folders or globs; what prune-model wrote; - is stdin')
    .option('--input-path <path...>', "the same, by Cube's name for it");
  addTargetOptions(withInput)
    .option(
      '--dict-name <name>',
      "Cube's name for a table, and for its bundle",
      nameOption('table'),
    )
    .option('--table <name>', 'the table, where the input does not name it', nameOption('table'))
    .addOption(new Option('--job-mode <mode>', 'a base unless given').choices(['base', 'delta']))
    .option('--shard-num <n>', 'a key goes to shard key mod n', integerBetween(1, SHARD_NUM_MAX))
    .option('--cur-version <name>', 'the version', nameOption('version'))
    .option('--depend-version <name>', 'of a delta: the version it goes on', nameOption('version'))
    .option('--last-version <name>', 'the same, where it is a delta itself', nameOption('version'))
    .option('--deletes <file>', 'of a delta: keys that are deleted', pathList)
    .option('--diff <path...>', 'of a delta: OLD NEW, and the delta is what differs')
    .option('--golden <file>', 'golden.jsonl: requests that travel with the version')
    .option('--only-shards <list>', 'build these alone (0-3,7); cube-builder seal publishes')
    .option('--only-build', 'build all shards and publish nothing yet')
    .option('--spec <file>', 'a build in YAML: several tables, each with its input and options');
  return addResourceOptions(addTableOptions(command)).option('--json', 'the report for programs');
}

function addSeal(program: Command): void {
  const command = program
    .command('seal')
    .description('Publishes a version whose shards were built apart.');
  addTargetOptions(command)
    .requiredOption('--version <name>', 'the version', nameOption('version'))
    .option('--json', 'the report for programs')
    .addHelpText('after', SEAL_EXAMPLES)
    .action(async (options: SealOptions) => {
      const usage = usageOf(command);
      const { folder, bundle } = targetOf(options, usage);
      const repository = openRepository(folder);
      const sealed = await sealVersion(repository, bundle, options.version);
      print(sealedReport(repository.location, sealed, 0), options.json);
    });
}

function addDiff(program: Command): void {
  const command = program
    .command('diff')
    .description('Builds the delta that turns one input, or version, into another.')
    .argument('<old>', 'files, or version:NAME')
    .argument('<new>', 'files, or version:NAME');
  addTargetOptions(command)
    .option(
      '--dict-name <name>',
      "Cube's name for a table, and for its bundle",
      nameOption('table'),
    )
    .option('--table <name>', 'the table, where the input does not name it', nameOption('table'))
    .option('--shard-num <n>', "the parent's", integerBetween(1, SHARD_NUM_MAX))
    .option('--cur-version <name>', 'the version', nameOption('version'))
    .option('--depend-version <name>', 'the version it goes on', nameOption('version'))
    .option('--last-version <name>', 'the same, where it is a delta itself', nameOption('version'))
    .option('--only-shards <list>', 'build these alone (0-3,7); cube-builder seal publishes')
    .option('--only-build', 'build all shards and publish nothing yet');
  addResourceOptions(addTableOptions(command))
    .option('--json', 'the report for programs')
    .addHelpText('after', DIFF_EXAMPLES)
    .action(async (before: string, after: string, options: BuildOptions) => {
      const usage = usageOf(command);
      const request = requestOf({ ...options, jobMode: 'delta', diff: [before, after] }, usage);
      await build(request, options, usage);
    });
}

function addCompact(program: Command): void {
  const command = program
    .command('compact')
    .description('Merges the layers of a version into bases: the same rows, as a new version.');
  addTargetOptions(command)
    .requiredOption('--version <name>', 'the version to merge', nameOption('version'))
    .requiredOption('--cur-version <name>', 'the new version', nameOption('version'))
    .addOption(new Option('--layout <name>', 'of the bases').choices(['indexed']))
    .option('--only-shards <list>', 'build these alone (0-3,7); cube-builder seal publishes');
  addResourceOptions(command)
    .option('--json', 'the report for programs')
    .addHelpText('after', COMPACT_EXAMPLES)
    .action(async (options: CompactOptions) => {
      const usage = usageOf(command);
      const { folder, bundle } = targetOf(options, usage);
      const repository = openRepository(folder);
      const request = await compactRequest(repository, { ...options, bundle });
      await build(request, { ...options, outputPath: folder }, usage);
    });
}

function addGraph(program: Command): void {
  const command = program
    .command('graph')
    .description('Publishes a graph as it is, its embeddings inside: a version without tables.')
    .requiredOption('--model <file>', 'the trained model in ONNX');
  addTargetOptions(command)
    .requiredOption('--cur-version <name>', 'the version', nameOption('version'))
    .option(
      '--features <file>',
      'features.json of the training script; without it requests are of ids',
    )
    .option('--golden <file>', 'golden requests to publish with the version')
    .addHelpText('after', GRAPH_EXAMPLES)
    .action(async (options: GraphOptions) => {
      const { folder, bundle } = targetOf(options, usageOf(command));
      const version = await wholeGraph({ ...options, bundle });
      const { published } = await (await openTarget(folder)).publish({ ...version, layers: [] });
      const how = published ? 'is published' : 'was published already';
      process.stdout.write(`${bundle} ${options.curVersion} ${how}: a graph without tables\n`);
    });
}

function targetOf(
  { outputPath, bundle }: { readonly outputPath?: string; readonly bundle?: string },
  usage: Usage,
): { folder: string; bundle: string } {
  return {
    folder: outputPath ?? usage('--output-path is missing: the repository'),
    bundle: bundle ?? usage('--bundle is missing: the name of the model'),
  };
}

async function build(
  request: BuildRequest & { readonly outputPath?: string },
  options: { readonly outputPath?: string; readonly json?: boolean },
  usage: Usage,
): Promise<void> {
  const folder =
    options.outputPath ?? request.outputPath ?? usage('--output-path is missing: the repository');
  const job = await makeJob(folder, request);
  const repository = await openTarget(folder);
  print(await runBuild(repository, job), options.json);
}

function print(report: BuildReport, asJson = false): void {
  process.stdout.write(`${asJson ? JSON.stringify(report) : formatReport(report)}\n`);
}
