/** The command line of cube-builder. */
import {
  type Command,
  createCli,
  integerBetween,
  nameOption,
  runCli,
} from '../../lib/platform/cli.ts';
import { buildVersion } from './build.ts';
import { type BuildReport, formatReport } from './report.ts';

const SHARD_NUM_MAX = 65_536;

const EXAMPLES = `
Examples:
  Build what prune-model wrote, as version 1 in four shards:
    cube-builder --input out/ --shard-num 4 --output-path /srv/models --cur-version 1 --bundle ctr-dnn

  The same with Cube's name for it, and golden requests for the gate:
    cube-builder --input out/ --shard-num 4 --output-path /srv/models --cur-version 1 \\
      --dict-name ctr-dnn --golden golden.jsonl

A version never changes: building the same again says so and ends well, building something else under the same
version is refused. Layers that another version has already are shared. A build that was killed is simply run again.
`;

interface CliOptions {
  readonly input: string;
  readonly shardNum: number;
  readonly outputPath: string;
  readonly curVersion: string;
  readonly bundle?: string;
  readonly dictName?: string;
  readonly golden?: string;
  readonly json?: boolean;
}

export function run(argv?: readonly string[]): Promise<number> {
  const program = createCli(
    'cube-builder',
    'Builds a version of a pruned model: rows to sharded layer files, published in a repository.',
  )
    .requiredOption('--input <folder>', 'what prune-model wrote: model.onnx, slots.json, tables/')
    .requiredOption(
      '--shard-num <n>',
      'a key goes to shard key mod n',
      integerBetween(1, SHARD_NUM_MAX),
    )
    .requiredOption('--output-path <folder>', 'the repository; made when absent')
    .requiredOption('--cur-version <name>', 'the version', nameOption('version'))
    .option('--bundle <name>', 'the model', nameOption('bundle'))
    .option('--dict-name <name>', "the same, by Cube's name for it", nameOption('bundle'))
    .option('--golden <file>', 'golden.jsonl: requests that travel with the version')
    .option('--json', 'the report for programs')
    .addHelpText('after', EXAMPLES)
    .action(async (options: CliOptions) => {
      const { input, shardNum, outputPath, curVersion, golden } = options;
      const report = await buildVersion({
        input,
        shardNum,
        outputPath,
        version: curVersion,
        bundle: bundleOf(options, program),
        golden,
      });
      printReport(report, options.json ?? false);
    });
  return runCli(program, argv);
}

function bundleOf({ bundle, dictName }: CliOptions, program: Command): string {
  if (bundle !== undefined && dictName !== undefined && bundle !== dictName) {
    program.error(`error: --bundle ${bundle} and --dict-name ${dictName} name two models`);
  }
  return bundle ?? dictName ?? program.error('error: --bundle is missing: the name of the model');
}

function printReport(report: BuildReport, asJson: boolean): void {
  process.stdout.write(`${asJson ? JSON.stringify(report) : formatReport(report)}\n`);
}
