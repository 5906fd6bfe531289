/** The command line of `hypercube features`: commands, options and output. */
import { dirname, resolve } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import {
  readTrainedFeatures,
  type SlotSpec,
  type TrainedFeatures,
} from '../../../lib/core/slots.ts';
import { findFeatureWarnings } from '../../../lib/features/feature-warnings.ts';
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  createCli,
  runCli,
} from '../../../lib/platform/cli.ts';
import { fileExists, makeFolder, readText, replaceFile } from '../../../lib/platform/files.ts';
import { printLine } from '../../../lib/platform/terminal-output.ts';
import { buildSlotSpec } from '../slot-spec.ts';
import { draftFeatures, type FeaturesDraft, formatFeatures } from './draft-features.ts';
import { formatRowReport, inspectRow } from './inspect-row.ts';
import { openModel } from './open-model.ts';

const HELP = `
Examples:
  hypercube features init model.onnx
  hypercube features check --row '{"user": "42", "ad": "7"}'
  hypercube features check --model model.onnx --row "$(head -n 1 rows.tsv)"
`;

/** A longer row does not fit a line. */
const EXAMPLE_FIELDS_MAX = 12;

interface InitOptions {
  readonly output: string;
  readonly force?: boolean;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

interface CheckOptions {
  readonly features: string;
  readonly model?: string;
  readonly row?: string;
  readonly accept?: boolean;
  readonly json?: boolean;
}

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

export function createProgram(): Command {
  const program = createCli(
    'features',
    'Writes and checks features.json, which says how raw features become the inputs of a model.',
  ).addHelpText('after', HELP);
  const init = program
    .command('init')
    .description(
      'Writes features.json from a model: slots, dense inputs and output. Its field $comment ' +
        'lists what the model does not say.',
    )
    .argument('<model>', 'Trained model in ONNX format')
    .option('--output <file>', 'File to write', 'features.json')
    .option('--force', 'Replace an existing file (default: refuse)');
  addJsonOption(addDryRunOption(init)).action(writeDraft);
  const check = program
    .command('check')
    .description('Checks features.json, and prints the keys and tensors that one row becomes.')
    .option('--features <file>', 'File to check', 'features.json')
    .option('--model <file>', 'Trained model in ONNX format that it must match (default: none)')
    .option(
      '--accept',
      'Only warn if features.json looks wrong: slots with one index, names with two meanings, ' +
        'ids inputs in another order than the slots, or a modulo smaller than a table ' +
        '(default: refuse)',
    )
    .option('--row <row>', 'A row as requests have it: JSON, or tab-separated (default: none)');
  addJsonOption(check).action(checkFeatures);
  return program;
}

async function writeDraft(model: string, options: InitOptions): Promise<void> {
  const path = resolve(options.output);
  if (fileExists(path) && options.force !== true && options.dryRun !== true) {
    throw new CubeError('CONFLICT', `${options.output} exists; --force replaces it`);
  }
  const draft = draftFeatures(openModel(model));
  const text = formatFeatures(draft);
  if (options.dryRun) {
    printLine(options.json ? JSON.stringify(draft) : text.trimEnd());
    return;
  }
  makeFolder(dirname(path));
  replaceFile(path, text);
  const { slots, dense, $comment } = draft;
  const report = { features: options.output, slots: slots.length, notes: $comment };
  const features = dense?.features.length ?? 0;
  printLine(
    options.json
      ? JSON.stringify(report)
      : `wrote ${options.output}: ${slots.length} slots, ${features} dense features\n` +
          `The model does not say:\n${$comment.map((line) => `  - ${line}`).join('\n')}\n` +
          `Check it: hypercube features check --features ${options.output} --model ${model}` +
          formatExampleRow(draft),
  );
}

/** A row by name with the first id of each slot; none for a model with many. */
function formatExampleRow({ slots, dense }: FeaturesDraft): string {
  const fields = [
    ...slots.map(({ name, pooling }) => [name, pooling === undefined ? 0 : [0]]),
    ...(dense?.features ?? []).map(({ name }) => [name, 1]),
  ];
  if (fields.length > EXAMPLE_FIELDS_MAX) return '';
  return ` --row '${JSON.stringify(Object.fromEntries(fields))}'`;
}

async function checkFeatures(options: CheckOptions): Promise<void> {
  const { features: path, model, row, json } = options;
  const features = readTrainedFeatures(JsonReader.parseFile(readText(path), path));
  const spec = model === undefined ? undefined : describeInputs(model, features);
  const { embeddings = [], tables = [] } = spec ?? {};
  const warnings = findFeatureWarnings({ features, ids: features.ids, embeddings, tables });
  if (warnings.length > 0 && options.accept !== true) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${path} looks wrong: ${warnings.join('; ')}. Correct it, or check it with --accept`,
    );
  }
  const report = row === undefined ? undefined : inspectRow(features, row);
  const dense = features.dense?.features.length ?? 0;
  const summary = {
    features: path,
    slots: features.slots.length,
    dense,
    model: model ?? null,
    warnings,
  };
  const matches = model === undefined ? '' : `, matches ${model}`;
  printLine(
    json
      ? JSON.stringify({ ...summary, row: report ?? null })
      : [
          `${path}: ${summary.slots} slots, ${dense} dense features${matches}`,
          ...warnings.map((warning) => `warning: ${warning}`),
          ...(report === undefined ? [] : [formatRowReport(report)]),
        ].join('\n\n'),
  );
}

/** Matches features.json with a model. @throws CubeError naming the difference */
function describeInputs(model: string, features: TrainedFeatures): SlotSpec {
  const cut = openModel(model);
  try {
    return buildSlotSpec(cut, features);
  } finally {
    cut.close();
  }
}
