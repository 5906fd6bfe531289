/** The command line of ctr-client: sends rows to serving and prints a report. */
import {
  type Command,
  createCli,
  Option,
  parseIntegerBetween,
  runCli,
  UsageError,
} from '../../lib/platform/cli.ts';
import { addKeyOptions } from '../../lib/rpc/credential-options.ts';
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
  parseSpeed,
  WORKERS_MAX,
} from './flags.ts';
import { runMatrix } from './matrix-run.ts';
import { PROTOCOLS } from './protocols/open-protocol.ts';
import { Session } from './session.ts';
import { runOnce } from './single-run.ts';

const ROWS_MAX = 2 ** 31;
const TIMEOUT_MS_MAX = 600_000;
const CONCURRENCY = 4;
/** Requests of a recording came whether or not earlier ones were answered. */
const REPLAY_CONCURRENCY = 256;

const EXAMPLES = `
Examples:
  ctr-client --rows data/demo/rows.tsv --endpoint 127.0.0.1:8080
  zcat day_23.gz | ctr-client --rows - --endpoint 127.0.0.1:8080 --limit 1000000 --output scores.tsv
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:8080 --rps 500 --batch 40 --concurrency 64 \\
    --warm-up 5 --duration 60
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:8080 --matrix batch=1,8,64 concurrency=1,4,16 \\
    --duration 10 --chart matrix.html
  ctr-client --replay recorded/ctr.jsonl --endpoint 127.0.0.1:8080 --replay-speed 2
  ctr-client --rows golden.jsonl --endpoint 127.0.0.1:8080 --against 127.0.0.1:9292
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:8080 --duration 5 --profile trace.json
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:8080 --experiment-key 15 --by-variant
  ctr-client --rows rows.tsv --endpoint 127.0.0.1:9292 --protocol paddle

Exit codes: 0 success; 1 if more requests failed than --max-errors, scores differ by more than
--max-diff, or a response mixed versions of graph and tables; 2 wrong usage; 130 interrupted, with
the figures so far.`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

export function createProgram(): Command {
  const program = createCli(
    'ctr-client',
    'Sends rows to serving, measures speed and quality, and compares two endpoints.',
  );
  addTargetOptions(program);
  addLoadOptions(program);
  addResultOptions(program);
  return program.addHelpText('after', EXAMPLES).action(predict);
}

function addTargetOptions(program: Command): void {
  program
    .option(
      '--rows <file>',
      'File of tab-separated or JSON rows, one per line; - reads standard input',
    )
    .addOption(
      new Option(
        '--replay <file>',
        'Recording of serving --record: send its requests with the gaps between them that were ' +
          'recorded; latency counts from the planned start',
      ).conflicts(['rows', 'batch', 'rps', 'duration', 'matrix', 'against']),
    )
    .option(
      '--replay-speed <number>',
      'Speed of --replay: 2 halves the gaps between requests (default: 1)',
      parseSpeed,
    )
    .requiredOption('--endpoint <address>', 'Address of serving: host:port or URL', parseAddress)
    .addOption(
      new Option(
        '--protocol <name>',
        'Protocol of requests: CTR over HTTP or gRPC, KServe v2 as JSON or with binary tensors, ' +
          'Paddle over HTTP or baidu_std, or TensorFlow Serving',
      )
        .choices(PROTOCOLS)
        .default(PROTOCOLS[0]),
    )
    .option('--model <name>', 'Model to ask (default: the first one that the endpoint serves)')
    .option('--slots <file>', "The model's slots.json (default: ask the endpoint for its features)")
    .addOption(
      new Option('--limit <rows>', 'Number of rows to read')
        .argParser(parseIntegerBetween(1, ROWS_MAX))
        .default(ROWS_MAX, 'all'),
    );
}

function addLoadOptions(program: Command): void {
  addKeyOptions(program);
  program
    .option('--batch <rows>', 'Rows per request', parseIntegerBetween(1, BATCH_MAX), 64)
    .option(
      '--concurrency <number>',
      `Maximum requests in flight (default: ${CONCURRENCY}, with --replay ${REPLAY_CONCURRENCY})`,
      parseIntegerBetween(1, CONCURRENCY_MAX),
    )
    .addOption(
      new Option(
        '--workers <number>',
        'Threads that share the requests, for several cores; --concurrency and --rps are totals',
      )
        .argParser(parseIntegerBetween(1, WORKERS_MAX))
        .default(1)
        .conflicts(['against', 'profile']),
    )
    .option(
      '--rps <number>',
      'Requests to start per second, whether or not earlier ones have ended; latency counts ' +
        'from the scheduled start',
      parseRate,
    )
    .option(
      '--duration <seconds>',
      'Repeat the rows for this many seconds (default: send each row once)',
      parseSeconds,
    )
    .option(
      '--warm-up <seconds>',
      'Seconds of warm-up before the run, not measured',
      parseSeconds,
      0,
    )
    .option(
      '--timeout-ms <ms>',
      'Timeout of a request, in milliseconds',
      parseIntegerBetween(1, TIMEOUT_MS_MAX),
      60_000,
    )
    .addOption(
      new Option(
        '--matrix <axes...>',
        'One run for each combination, for example: batch=1,8,64 concurrency=1,4,16',
      )
        .argParser(parseAxis)
        .conflicts(['against', 'rps', 'output']),
    )
    .option(
      '--experiment-key <column>',
      'Experiment key of requests: the number of a column of tab-separated rows, the name of a ' +
        'feature of rows by name, or random',
    )
    .addOption(
      new Option('--against <address>', 'Second endpoint to compare with')
        .argParser(parseAddress)
        .conflicts(['rps', 'output']),
    );
}

function addResultOptions(program: Command): void {
  program
    .option(
      '--max-errors <number>',
      'Failed requests tolerated before the exit code is 1',
      parseIntegerBetween(0, ROWS_MAX),
      0,
    )
    .option(
      '--max-diff <number>',
      'Largest difference of scores tolerated with --against',
      parseDifference,
      1e-5,
    )
    .option('--output <file>', 'File for the scores as TSV: row, label, probability, version')
    .option('--chart <file>', 'File for charts: .svg, or .html with the tables', parseChartPath)
    .addOption(
      new Option(
        '--profile <file>',
        'File for a Chrome trace of the first 10,000 requests, with their steps in serving and ' +
          'their calls to shards',
      ).conflicts(['matrix', 'against']),
    )
    .addOption(
      new Option(
        '--by-variant',
        'Report the quality of scores by variant of experiments, with 95 % confidence intervals',
      ).conflicts(['matrix', 'against']),
    )
    .option('--json', 'Print the report as JSON');
}

async function predict(given: Omit<Flags, 'concurrency'> & Partial<Flags>): Promise<void> {
  const { rows, replay, replaySpeed } = given;
  if (rows === undefined && replay === undefined) {
    throw new UsageError('pass --rows with a file of rows, or --replay with a recording');
  }
  if (replay === undefined && replaySpeed !== undefined) {
    throw new UsageError('--replay-speed needs --replay with a recording');
  }
  const concurrency = replay === undefined ? CONCURRENCY : REPLAY_CONCURRENCY;
  const flags: Flags = { concurrency, ...given };
  const session = await Session.open(flags);
  try {
    if (flags.matrix !== undefined) await runMatrix(session, flags.matrix);
    else if (flags.against !== undefined) await runComparison(session, flags.against);
    else await runOnce(session);
  } finally {
    await session.close();
  }
}
