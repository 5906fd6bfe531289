/** The command line of ctr-client: rows in, traffic, report out. */
import { dirname } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { type Command, createCli, integerBetween, Option, runCli } from '../../lib/platform/cli.ts';
import { isFolder, makeFolder, replaceFile } from '../../lib/platform/files.ts';
import { startProgress } from '../../lib/platform/progress.ts';
import { Endpoint } from './endpoint.ts';
import { makeReport, predictionsCsv, type Report, reportText } from './report.ts';
import { type RowsFile, readRowsFile } from './rows-file.ts';
import { Traffic, type TrafficResult } from './traffic.ts';

interface Flags {
  readonly rows: string;
  readonly endpoint: string;
  readonly batch: number;
  readonly concurrency: number;
  readonly limit: number;
  readonly output?: string;
  readonly json?: boolean;
}

const ROWS_MAX = 2 ** 31;

const EXAMPLES = `
Examples:
  ctr-client --rows data/demo/rows.tsv --endpoint http://127.0.0.1:8080
  ctr-client --rows rows.tsv --endpoint http://127.0.0.1:8080 --batch 1 --concurrency 16 --limit 1000
  ctr-client --rows rows.tsv --endpoint http://127.0.0.1:8080 --output predictions.csv --json

Exit code 1 when a request failed, or an answer mixed versions of graph and tables.`;

/** @returns the exit code */
export function run(argv?: readonly string[]): Promise<number> {
  return runCli(createProgram(), argv);
}

function createProgram(): Command {
  return createCli('ctr-client', 'Sends Criteo-format rows to serving; reports speed and quality.')
    .requiredOption('--rows <file>', 'tab-separated rows: [label,] dense, categorical')
    .requiredOption('--endpoint <url>', 'where serving listens, such as http://127.0.0.1:8080')
    .option('--batch <rows>', 'rows in a request', integerBetween(1, 10_000), 64)
    .option('--concurrency <number>', 'requests in flight', integerBetween(1, 1_000), 4)
    .addOption(
      new Option('--limit <rows>', 'take only the first rows')
        .argParser(integerBetween(1, ROWS_MAX))
        .default(ROWS_MAX, 'all'),
    )
    .option('--output <file>', 'write row,label,probability,version as CSV')
    .option('--json', 'print the report as JSON')
    .addHelpText('after', EXAMPLES)
    .action(predictFile);
}

async function predictFile(flags: Flags): Promise<void> {
  const endpoint = new Endpoint(flags.endpoint, flags.concurrency);
  try {
    const { columns } = await endpoint.modelShape();
    if (flags.output !== undefined) checkOutput(flags.output);
    const rows = readRowsFile(flags.rows, columns, flags.limit);
    const result = await sendRows(endpoint, rows, flags);
    const report = makeReport(rows, result);
    process.stdout.write(flags.json === true ? `${JSON.stringify(report)}\n` : reportText(report));
    checkAnswers(report, flags.output);
    if (flags.output !== undefined) replaceFile(flags.output, predictionsCsv(rows, result));
  } finally {
    endpoint.close();
  }
}

async function sendRows(
  endpoint: Endpoint,
  { lines }: RowsFile,
  flags: Flags,
): Promise<TrafficResult> {
  const progress = startProgress('predicting', lines.length, 'rows');
  try {
    const traffic = new Traffic(endpoint, {
      lines,
      batchRows: flags.batch,
      concurrency: flags.concurrency,
      onRows: progress.update,
    });
    return await traffic.go();
  } finally {
    progress.stop();
  }
}

/** Told before the rows are sent, not after. @throws CubeError when no file can be written there */
function checkOutput(path: string): void {
  if (isFolder(path)) {
    throw new CubeError('CONFLICT', `--output ${path} is a folder; name a file in it`);
  }
  makeFolder(dirname(path));
}

/** @throws CubeError when the answers are not all there, or not all whole */
function checkAnswers({ rows, rowsPredicted, mixedVersions, failures }: Report, output?: string) {
  if (mixedVersions > 0) {
    throw new CubeError(
      'CONFLICT',
      `${mixedVersions} answers mixed versions of graph and tables: this must never happen`,
    );
  }
  if (rowsPredicted === rows) return;
  const [code = 'INTERNAL', failure] = Object.entries(failures)[0] ?? [];
  const unwritten = output === undefined ? '' : `; ${output} is not written`;
  throw new CubeError(
    'UNAVAILABLE',
    `${rows - rowsPredicted} of ${rows} rows were not predicted (${code}: ${failure?.first})${unwritten}`,
  );
}
