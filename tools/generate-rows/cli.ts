/** The command line: a range of a row stream to a file, its truth beside it, the best reachable metrics to stderr. */
import { InvalidArgumentError } from 'commander';
import { auc, logloss } from '../../lib/core/model-metrics.ts';
import { createCli, integerBetween, runCli } from '../../lib/platform/cli.ts';
import { fileError } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { StreamWriter } from '../../lib/platform/stream-writer.ts';
import { RowStream } from './row-stream.ts';

const ROWS_MAX = 1_000_000_000;
const BATCH_ROWS = 1_000;

const EXAMPLES = `
A line is: label \\t I1 … I13 \\t C1 … C26 (tab-separated, a missing value is empty).
Row i depends on the seed and i alone, so ranges of one seed never overlap by chance:

  generate-rows --rows 500000 --output train.tsv
  generate-rows --rows 4096 --skip 500000 --output rows.tsv --truth truth.txt
  generate-rows --rows 3 --output - | cut -f 1-5

The click probability of each row is known, so the AUC and logloss printed are the best any model can reach
on these rows, but for luck.`;

interface GenerateOptions {
  readonly rows: number;
  readonly seed: number;
  readonly skip: number;
  readonly drift: number;
  readonly output: string;
  readonly truth?: string;
}

/** Where text goes: a file that appears whole at the end, or standard output. */
interface Sink {
  write(text: string): Promise<void>;
  finish(): Promise<void>;
  abort(): void;
}

/** The reader of our output left: `generate-rows … | head` is no failure, it had enough. */
class ReaderLeft extends Error {}

function standardOutput(): Sink {
  // The error also reaches the callback of the write; without a listener it would end the process first.
  process.stdout.on('error', () => undefined);
  return {
    write: (text) =>
      new Promise((resolve, reject) => {
        process.stdout.write(text, (error) => {
          if (error == null) resolve();
          else if ((error as NodeJS.ErrnoException).code === 'EPIPE') reject(new ReaderLeft());
          else reject(fileError(error, 'write to', 'standard output'));
        });
      }),
    finish: async () => undefined,
    abort: () => undefined,
  };
}

const nowhere: Sink = {
  write: async () => undefined,
  finish: async () => undefined,
  abort: () => undefined,
};

/** @param argv without the two leading entries of process.argv @returns the exit code: 0, 1 failed, 2 wrong usage */
export async function run(argv: readonly string[]): Promise<number> {
  const program = createCli(
    'generate-rows',
    'Writes labelled Criteo-format rows whose true click probability is known.',
  )
    .requiredOption('-o, --output <file>', 'where the rows go; - is standard output')
    .option('--rows <count>', 'how many rows', integerBetween(1, ROWS_MAX), 10_000)
    .option('--skip <count>', 'start at this row of the stream', integerBetween(0, 2 ** 52), 0)
    .option('--seed <number>', 'which stream', integerBetween(0, 2 ** 32 - 1), 1)
    .option('--truth <file>', 'write the true click probability of each row, one a line')
    .option(
      '--drift <share>',
      'move the truth, 0 to 1: same features, labels as after the world has changed',
      shareOption,
      0,
    )
    .addHelpText('after', EXAMPLES)
    .action(async (options: GenerateOptions) => generate(options));
  return runCli(program, argv);
}

async function generate(options: GenerateOptions): Promise<void> {
  const rows = options.output === '-' ? standardOutput() : new StreamWriter(options.output);
  const truth = options.truth === undefined ? nowhere : new StreamWriter(options.truth);
  try {
    const { labels, probabilities } = await writeRows(options, rows, truth);
    await rows.finish();
    await truth.finish();
    process.stderr.write(`${summary(labels, probabilities)}\n`);
  } catch (error) {
    rows.abort();
    truth.abort();
    if (!(error instanceof ReaderLeft)) throw error;
  }
}

async function writeRows(
  options: GenerateOptions,
  rows: Sink,
  truth: Sink,
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
      rowText += stream.text();
      truthText += `${stream.probability}\n`;
    }
    await rows.write(rowText);
    await truth.write(truthText);
    progress.update(done);
  }
  progress.stop();
  return { labels, probabilities };
}

/** NaN, as without both kinds of label, is said rather than printed. */
function summary(labels: Uint8Array, probabilities: Float64Array): string {
  const clicks = labels.reduce((sum, label) => sum + label, 0);
  const share = ((100 * clicks) / labels.length).toFixed(2);
  const best = auc(labels, probabilities);
  const rank = Number.isNaN(best) ? 'undefined (one kind of label)' : best.toFixed(5);
  const loss = logloss(labels, probabilities).toFixed(5);
  return `${labels.length} rows, ${share}% clicks. Best reachable on these rows: AUC ${rank}, logloss ${loss}`;
}

function shareOption(text: string): number {
  const share = text.trim() === '' ? Number.NaN : Number(text);
  if (!(share >= 0 && share <= 1)) throw new InvalidArgumentError('Expected a number in 0..1.');
  return share;
}
