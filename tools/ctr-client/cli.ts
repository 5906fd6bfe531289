/** The command line of ctr-client: rows in, traffic, report out. */
import { type Command, createCli, integerBetween, Option, runCli } from '../../lib/platform/cli.ts';
import { runComparison } from './comparison-run.ts';
import {
  BATCH_MAX,
  CONCURRENCY_MAX,
  type Flags,
  parseAddress,
  parseAxis,
  parseChartPath,
  parseDifference,
  parseRate,
  parseSeconds,
} from './flags.ts';
import { runMatrix } from './matrix-run.ts';
import { PROTOCOLS } from './protocols/open-caller.ts';
import { Session } from './session.ts';
import { runOnce } from './single-run.ts';

const ROWS_MAX = 2 ** 31;
const TIMEOUT_MS_MAX = 600_000;

const EXAMPLES = `
Examples:
  ctr-client --rows data/demo/rows.tsv --endpoint 127.0.0.1:8080
  zcat day_23.gz | ctr-client --rows - --endpoint 127.0.0.1:8080 --limit 1000000 --output scores.tsv
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:8080 --rps 500 --batch 40 --concurrency 64 --warm-up 5 --duration 60
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:8080 --matrix batch=1,8,64 concurrency=1,4,16 --duration 10 --chart matrix.html
  ctr-client --rows golden.jsonl --endpoint 127.0.0.1:8080 --against 127.0.0.1:9292
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:9292 --protocol paddle --slots slots.json

Exit code 1 when more requests failed than --max-errors, scores differ by more than --max-diff, or an answer mixed versions of
graph and tables; 2 for wrong usage; 130 when interrupted, with the figures up to then.`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

function createProgram(): Command {
  const program = createCli(
    'ctr-client',
    'Sends rows to serving; measures speed and quality, draws them, and compares two endpoints.',
  );
  addWhat(program);
  addPace(program);
  addResults(program);
  return program.addHelpText('after', EXAMPLES).action(predict);
}

function addWhat(program: Command): void {
  program
    .requiredOption('--rows <file>', 'tab-separated or JSON rows, one a line; - is standard input')
    .requiredOption('--endpoint <address>', 'serving, as host:port or a URL', parseAddress)
    .addOption(
      new Option('--protocol <name>', 'how to ask').choices(PROTOCOLS).default(PROTOCOLS[0]),
    )
    .option('--model <name>', 'where several are served; the first one if left out')
    .option('--slots <file>', 'slots.json of the model: names and scaling, which paddle needs')
    .addOption(
      new Option('--limit <rows>', 'take only the first rows')
        .argParser(integerBetween(1, ROWS_MAX))
        .default(ROWS_MAX, 'all'),
    );
}

function addPace(program: Command): void {
  program
    .option('--batch <rows>', 'rows in a request', integerBetween(1, BATCH_MAX), 64)
    .option('--concurrency <number>', 'requests in flight', integerBetween(1, CONCURRENCY_MAX), 4)
    .option('--rps <number>', 'requests due a second, latency counted from then', parseRate)
    .option('--duration <seconds>', 'send the rows again and again for so long', parseSeconds)
    .option('--warm-up <seconds>', 'before the run, not counted', parseSeconds, 0)
    .option('--timeout-ms <ms>', 'of a request', integerBetween(1, TIMEOUT_MS_MAX), 60_000)
    .addOption(
      new Option('--matrix <axes...>', 'a run for each of batch=1,8,64 concurrency=1,4,16')
        .argParser(parseAxis)
        .conflicts(['against', 'rps', 'output']),
    )
    .addOption(
      new Option('--against <address>', 'ask this one too, and compare')
        .argParser(parseAddress)
        .conflicts(['rps', 'output']),
    );
}

function addResults(program: Command): void {
  program
    .option('--max-errors <number>', 'requests that may fail', integerBetween(0, ROWS_MAX), 0)
    .option('--max-diff <number>', "what a row's two scores may differ by", parseDifference, 1e-5)
    .option('--output <file>', 'write row, label, probability and version as TSV')
    .option('--chart <file>', 'draw the figures: .svg, or .html with the tables', parseChartPath)
    .option('--json', 'print the report as JSON');
}

async function predict(flags: Flags): Promise<void> {
  const session = await Session.open(flags);
  try {
    if (flags.matrix !== undefined) await runMatrix(session);
    else if (flags.against !== undefined) await runComparison(session);
    else await runOnce(session);
  } finally {
    session.close();
  }
}
