/**
 * The command line of generate-rows: writes a range of a row stream and its click probabilities to
 * files, and the best reachable metrics to standard error.
 */
import { resolve } from 'node:path';
import { InvalidArgumentError } from 'commander';
import { auc, logloss } from '../../lib/core/model-metrics.ts';
import {
  addDryRunOption,
  addJsonOption,
  type Command,
  createCli,
  parseIntegerBetween,
  runCli,
  UsageError,
  withDryRunNote,
} from '../../lib/platform/cli.ts';
import { fileError } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { StreamWriter } from '../../lib/platform/stream-writer.ts';
import { RowStream } from './row-stream.ts';

const ROWS_MAX = 1_000_000_000;
const BATCH_ROWS = 1_000;

const EXAMPLES = `
Format of a line: label \\t I1 … I13 \\t C1 … C26 (tab-separated; a missing value is empty).
Row i depends only on the seed and i. Use different ranges of one seed for training and testing:

  generate-rows --rows 500000 --output train.tsv
  generate-rows --rows 4096 --skip 500000 --output rows.tsv --truth truth.txt
  generate-rows --rows 3 --output - | cut -f 1-5

The click probability of each row is known. The AUC and logloss that this command prints at the end
are the best that a model can be expected to reach on these rows.`;

interface GenerateOptions {
  readonly rows: number;
  readonly seed: number;
  readonly skip: number;
  readonly drift: number;
  readonly output: string;
  readonly truth?: string;
  readonly dryRun?: boolean;
  readonly json?: boolean;
}

/** Output for text: a file that appears when it is complete, or standard output. */
interface TextSink {
  write(text: string): Promise<void>;
  finish(): Promise<void>;
  abort(): void;
}

/** The reader closed the pipe, as in `generate-rows … | head`. This is not a failure. */
class OutputClosed extends Error {}

function createStandardOutputSink(): TextSink {
  // The write callback handles the error; without a listener it would end the process first.
  process.stdout.on('error', () => undefined);
  return {
    write: (text) =>
      new Promise((resolve, reject) => {
        process.stdout.write(text, (error) => {
          if (error == null) resolve();
          else if ((error as NodeJS.ErrnoException).code === 'EPIPE') reject(new OutputClosed());
          else reject(fileError(error, 'write to', 'standard output'));
        });
      }),
    finish: async () => undefined,
    abort: () => undefined,
  };
}

const discardingSink: TextSink = {
  write: async () => undefined,
  finish: async () => undefined,
  abort: () => undefined,
};

/**
 * @param argv without the two leading entries of process.argv @returns the exit code: 0, 1 failed,
 *   2 wrong usage
 */
export async function run(argv: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

export function createProgram(): Command {
  const program = createCli(
    'generate-rows',
    'Writes labelled Criteo-format rows whose true click probability is known.',
  )
    .requiredOption('-o, --output <file>', 'File for the rows; - is standard output')
    .option('--rows <count>', 'Number of rows', parseIntegerBetween(1, ROWS_MAX), 10_000)
    .option(
      '--skip <count>',
      'Rows to skip at the start of the stream',
      parseIntegerBetween(0, 2 ** 52),
      0,
    )
    .option('--seed <number>', 'Seed of the stream', parseIntegerBetween(0, 2 ** 32 - 1), 1)
    .option(
      '--truth <file>',
      'File for the true click probability of each row, one per line (default: none)',
    )
    .option(
      '--drift <share>',
      'Share, from 0 to 1, by which the click probabilities change from those of an undrifted ' +
        'stream: 0 not at all, 1 completely. Features do not change',
      parseShare,
      0,
    )
    .addHelpText('after', EXAMPLES)
    .action(async (options: GenerateOptions) => generate(options));
  // The result goes to standard error: rows may go to standard output.
  return addJsonOption(addDryRunOption(program));
}

async function generate(options: GenerateOptions): Promise<void> {
  const { output, truth: truthPath, dryRun, json } = options;
  if (truthPath !== undefined && resolve(truthPath) === resolve(output)) {
    throw new UsageError('--output and --truth are the same file');
  }
  const rows = dryRun ? discardingSink : openSink(output);
  const truth = dryRun || truthPath === undefined ? discardingSink : new StreamWriter(truthPath);
  try {
    const { labels, probabilities } = await writeRows(options, rows, truth);
    await rows.finish();
    await truth.finish();
    const summary = json
      ? JSON.stringify({ ...summarize(labels, probabilities), dryRun: dryRun ?? false })
      : withDryRunNote(formatSummary(labels, probabilities), { dryRun });
    process.stderr.write(`${summary}\n`);
  } catch (error) {
    rows.abort();
    truth.abort();
    if (!(error instanceof OutputClosed)) throw error;
  }
}

function openSink(output: string): TextSink {
  return output === '-' ? createStandardOutputSink() : new StreamWriter(output);
}

async function writeRows(
  options: GenerateOptions,
  rows: TextSink,
  truth: TextSink,
): Promise<{ labels: Uint8Array; probabilities: Float64Array }> {
  const stream = new RowStream(options.seed, options.drift);
  const labels = new Uint8Array(options.rows);
  const probabilities = new Float64Array(options.rows);
  const progress = startProgress('generating', options.rows, 'rows');
  for (let done = 0; done < options.rows; ) {
    const end = Math.min(done + BATCH_ROWS, options.rows);
    let rowText = '';
    let truthText = '';
    for (; done < end; done++) {
      stream.seek(options.skip + done);
      labels[done] = stream.label;
      probabilities[done] = stream.probability;
      rowText += stream.formatRow();
      truthText += `${stream.probability}\n`;
    }
    await rows.write(rowText);
    await truth.write(truthText);
    progress.update(done);
  }
  progress.stop();
  return { labels, probabilities };
}

interface Summary {
  readonly rows: number;
  readonly clicks: number;
  /** NaN, null in JSON, when all labels are equal. */
  readonly auc: number;
  readonly logloss: number;
}

function summarize(labels: Uint8Array, probabilities: Float64Array): Summary {
  return {
    rows: labels.length,
    clicks: labels.reduce((sum, label) => sum + label, 0),
    auc: auc(labels, probabilities),
    logloss: logloss(labels, probabilities),
  };
}

function formatSummary(labels: Uint8Array, probabilities: Float64Array): string {
  const { rows, clicks, auc: best, logloss: lowest } = summarize(labels, probabilities);
  const share = ((100 * clicks) / rows).toFixed(2);
  const rank = Number.isNaN(best) ? 'undefined (all labels are equal)' : best.toFixed(5);
  const loss = lowest.toFixed(5);
  return (
    `${rows} rows, ${share}% clicks. Best reachable on these rows: AUC ${rank}, ` +
    `logloss ${loss}`
  );
}

function parseShare(text: string): number {
  const share = text.trim() === '' ? Number.NaN : Number(text);
  if (!(share >= 0 && share <= 1)) throw new InvalidArgumentError('Expected a number from 0 to 1.');
  return share;
}
