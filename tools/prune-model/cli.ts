/** The command line of prune-model. */
import type { CubeError } from '../../lib/core/errors.ts';
import {
  type Command,
  createCli,
  EXIT_FAILED,
  EXIT_OK,
  EXIT_USAGE,
  integerBetween,
  Option,
  runCli,
} from '../../lib/platform/cli.ts';
import { type FormatOption, MODEL_FORMATS } from './model-format.ts';
import { type PruneRequest, pruneModel } from './prune.ts';
import { formatReport } from './report.ts';

const EXIT_NOTHING = 3;
const EXIT_REFUSED = 4;
const EXIT_INVALID_MODEL = 5;

/** Rows sampled in the proof. */
const DEFAULT_SAMPLES = 64;
const SAMPLES_MAX = 100_000;

const HELP = `
Exit codes:
  0  pruned and proved (or, with --dry-run, it would be)
  1  failed: a file cannot be read or written, features.json does not fit, or the proof failed
  2  wrong usage, or --output may not be replaced
  3  nothing to prune: the model has no embedding lookups (it may be pruned already)
  4  refused: the model holds a lookup that is not understood, or it cannot be proved (--verify 0 accepts that)
  5  not a valid model: damaged, data missing, or onnxruntime cannot run it
Whatever is not 0 leaves --output as it was.

Examples:
  prune-model --model data/demo/model.onnx --features data/demo/features.json --output out/
  prune-model --model model.onnx --output out/ --verify 1000 --force
  prune-model --model model.onnx --output out/ --dry-run --json
  prune-model --model ctr/__model__ --output out/ --to onnx
`;

interface Options {
  readonly model: string;
  readonly output: string;
  readonly params?: string;
  readonly format: FormatOption;
  readonly features?: string;
  readonly fetch?: readonly string[];
  readonly verify: number;
  readonly force?: boolean;
  readonly dryRun?: boolean;
  readonly json?: boolean;
  readonly to?: 'onnx';
  readonly sequenceLength?: readonly string[];
}

/** @returns the exit code */
export async function run(argv?: readonly string[]): Promise<number> {
  let exit = EXIT_OK;
  const program: Command = createCli(
    'prune-model',
    'Takes the embedding tables out of a trained model: a small graph that takes rows, and the tables.',
  )
    .requiredOption('--model <path>', 'the trained model, or the folder that holds it')
    .requiredOption(
      '--output <folder>',
      'where to write the model, slots.json, tables/, report.json',
    )
    .option('--params <file>', 'the parameters, where they are in a file of their own')
    .addOption(
      new Option('--format <name>', 'what the model is').choices(MODEL_FORMATS).default('auto'),
    )
    .option('--features <file>', 'features.json of the training script; checked and carried along')
    .option(
      '--verify <n>',
      'rows to compare the full and the pruned model on; 0: no proof',
      integerBetween(0, SAMPLES_MAX),
      DEFAULT_SAMPLES,
    )
    .option('--fetch <name...>', 'keep only these outputs (or values), and what they need')
    .addOption(
      new Option('--to <format>', 'convert the pruned Paddle program to ONNX').choices(['onnx']),
    )
    .option(
      '--sequence-length <[input=]n...>',
      'with --to: ids of a row in inputs that take any number (default: 1)',
    )
    .option('--force', 'replace an earlier output')
    .option('--dry-run', 'report what would be done, write nothing')
    .option('--json', 'print report.json instead of a table')
    .addHelpText('after', HELP)
    .action(async (options: Options) => {
      exit = await prune(options);
    });
  const code = await runCli(program, argv, exitCodeOf);
  return code === EXIT_OK ? exit : code;
}

async function prune(options: Options): Promise<number> {
  const request: PruneRequest = {
    model: options.model,
    output: options.output,
    format: options.format,
    ...(options.params === undefined ? {} : { params: options.params }),
    features: options.features,
    ...(options.fetch === undefined ? {} : { fetch: options.fetch }),
    ...(options.to === undefined ? {} : { to: options.to }),
    ...(options.sequenceLength === undefined ? {} : { sequenceLengths: options.sequenceLength }),
    samples: options.verify,
    force: options.force ?? false,
    dryRun: options.dryRun ?? false,
  };
  const report = await pruneModel(request);
  if (report === undefined) {
    process.stderr.write(
      `prune-model: ${options.model} has no embedding lookups: nothing to prune, nothing was written\n`,
    );
    return EXIT_NOTHING;
  }
  const done = request.dryRun ? 'would prune' : 'pruned';
  const title = `${done} ${options.model} -> ${options.output}`;
  const text = options.json
    ? `${JSON.stringify(report, null, 2)}\n`
    : formatReport(report, title, request.dryRun);
  process.stdout.write(text);
  return EXIT_OK;
}

function exitCodeOf({ code }: CubeError): number {
  if (code === 'CONFLICT') return EXIT_USAGE;
  if (code === 'UNSUPPORTED') return EXIT_REFUSED;
  if (code === 'CORRUPT') return EXIT_INVALID_MODEL;
  return EXIT_FAILED;
}
