/** The command line of prune-model: options, exit codes, output. */
import type { CubeError } from '../../lib/core/errors.ts';
import { addExpectOptions, type ExpectOptions } from '../../lib/features/expect-options.ts';
import { SCORE_TOLERANCE } from '../../lib/features/expected-scores.ts';
import {
  type Command,
  createCli,
  EXIT_FAILED,
  EXIT_OK,
  EXIT_USAGE,
  Option,
  parseIntegerBetween,
  runCli,
} from '../../lib/platform/cli.ts';
import { CONVERTED_DIFFERENCE_MAX, DIFFERENCE_MAX } from './cut/verification.ts';
import { type FormatOption, MODEL_FORMATS } from './model-format.ts';
import { type PruneRequest, pruneModel } from './prune.ts';
import { formatReport } from './report.ts';

const EXIT_NOTHING_TO_PRUNE = 3;
const EXIT_REFUSED = 4;
const EXIT_INVALID_MODEL = 5;

/** Rows sampled for the comparison of the models (the verification). */
const DEFAULT_SAMPLES = 64;
const SAMPLES_MAX = 100_000;

const HELP = `
Exit codes:
  0  pruned and compared, or with --dry-run: can be pruned
  1  failed: a file cannot be read or written, features.json does not match, or outputs or
     expected scores differ
  2  wrong usage, or --output may not be replaced
  3  nothing to prune: the model has no embedding lookups (it may be pruned already)
  4  refused: a lookup has an unsupported form, or the models cannot be compared
     (--verify 0 skips the comparison)
  5  not a valid model: damaged, data missing, or onnxruntime cannot run it
With any code but 0, --output is unchanged.

Examples:
  prune-model --model data/demo/model.onnx --features data/demo/features.json --output out/
  prune-model --model model.onnx --features features.json --output out/ --expect rows.tsv:scores.csv
  prune-model --model model.onnx --output out/ --verify 1000 --force
  prune-model --model model.onnx --output out/ --dry-run --json
  prune-model --model ctr/__model__ --output out/ --to onnx
`;

export interface Options extends ExpectOptions {
  readonly model: string;
  readonly output: string;
  readonly params?: string;
  readonly format: FormatOption;
  readonly features?: string;
  readonly fetch?: readonly string[];
  readonly verify: number;
  readonly accept?: boolean;
  readonly force?: boolean;
  readonly dryRun?: boolean;
  readonly json?: boolean;
  readonly to?: 'onnx';
  readonly sequenceLength?: readonly string[];
}

/** @returns the exit code */
export async function run(argv?: readonly string[]): Promise<number> {
  let exit = EXIT_OK;
  const program = createProgram(async (options) => {
    exit = await prune(options);
  });
  const code = await runCli(program, argv, getExitCode);
  return code === EXIT_OK ? exit : code;
}

export function createProgram(action: (options: Options) => Promise<void>): Command {
  const program = createCli(
    'prune-model',
    'Splits a trained model into its embedding tables and a small graph that takes their rows ' +
      'as inputs, and compares the results of both with those of the full model on sample rows.',
  )
    .requiredOption(
      '--model <path>',
      'Trained model (ONNX or Paddle), or the folder that contains it',
    )
    .requiredOption(
      '--output <folder>',
      'Folder for the pruned model, slots.json, tables/ and report.json',
    )
    .option(
      '--features <file>',
      'features.json of the training script; checked against the model and copied to --output ' +
        '(default: none)',
    )
    .option(
      '--accept',
      'Prune although features.json looks wrong: slots with one index, names with two meanings, ' +
        'ids inputs in another order than the slots, or a modulo smaller than a table ' +
        '(default: refuse)',
    )
    .option('--force', 'Replace an earlier output (default: refuse)')
    .option('--dry-run', 'Report what would be done and write nothing')
    .option('--json', 'Print report.json instead of a table')
    .option(
      '--verify <n>',
      'Number of sample rows for the verification, which compares the outputs of the full and ' +
        `the pruned model. They may differ by at most ${DIFFERENCE_MAX} ` +
        `(${CONVERTED_DIFFERENCE_MAX} with --to), relative above 1. 0 skips the verification`,
      parseIntegerBetween(0, SAMPLES_MAX),
      DEFAULT_SAMPLES,
    )
    .addOption(new Option('--format <name>', 'Model format').choices(MODEL_FORMATS).default('auto'))
    .option(
      '--fetch <name...>',
      'Outputs or intermediate values to keep, with everything they need (default: all outputs)',
    )
    .option(
      '--params <file>',
      'Paddle: file or folder with the parameters (default: the parameter files beside the model)',
    )
    .addOption(
      new Option(
        '--to <format>',
        'Paddle: convert the pruned program to ONNX (default: keep the format)',
      ).choices(['onnx']),
    )
    .option(
      '--sequence-length <[input=]n...>',
      'With --to: number of ids per row in sequence inputs; 5 for all inputs, or C3=5 for one ' +
        '(default: 1)',
    )
    .addHelpText('after', HELP)
    .action(action);
  return addExpectOptions(program);
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
    ...(options.expect === undefined
      ? {}
      : {
          expect: { scores: options.expect, tolerance: options.expectTolerance ?? SCORE_TOLERANCE },
        }),
    accept: options.accept ?? false,
    force: options.force ?? false,
    dryRun: options.dryRun ?? false,
  };
  const report = await pruneModel(request);
  if (report === undefined) {
    process.stderr.write(
      `prune-model: ${options.model} has no embedding lookups; nothing to prune, nothing was ` +
        'written. Serve it as it is: serving --model, or publish it with cube-builder graph ' +
        '--plain\n',
    );
    return EXIT_NOTHING_TO_PRUNE;
  }
  const action = request.dryRun ? 'would prune' : 'pruned';
  const title = `${action} ${options.model} -> ${options.output}`;
  const text = options.json
    ? `${JSON.stringify(report, null, 2)}\n`
    : formatReport(report, title, request.dryRun);
  process.stdout.write(text);
  return EXIT_OK;
}

function getExitCode({ code }: CubeError): number {
  if (code === 'CONFLICT') return EXIT_USAGE;
  if (code === 'UNSUPPORTED') return EXIT_REFUSED;
  if (code === 'CORRUPT') return EXIT_INVALID_MODEL;
  return EXIT_FAILED;
}
