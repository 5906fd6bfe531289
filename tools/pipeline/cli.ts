/** The command line of pipeline. */
import {
  addJsonOption,
  type Command,
  createCli,
  InvalidArgumentError,
  parseIntegerBetween,
  runCli,
} from '../../lib/platform/cli.ts';
import { printLine } from '../../lib/platform/terminal-output.ts';
import { readLines } from '../../lib/platform/text-lines.ts';
import { analyze } from './analysis.ts';
import { readLiveReport } from './live-metrics.ts';
import { formatAnalysis } from './report.ts';
import { type IntervalReport, readReports } from './tracer-log.ts';

const EXAMPLES = `
Examples:
  pipeline analyze PipelineServingLogs/pipeline.tracer
  pipeline analyze pipeline.tracer --qps 500 --batch-size 16 --last 6
  pipeline analyze http://localhost:18071 --seconds 30
  pipeline analyze pipeline.tracer --json`;

const BATCH_SIZE = 8;
const LAST = 1_000;
const SECONDS = 10;

interface AnalyzeOptions {
  readonly qps?: number;
  readonly batchSize: number;
  readonly last: number;
  readonly seconds: number;
  readonly json?: boolean;
}

export function createProgram(): Command {
  const program = createCli('pipeline', 'Says where the time of a pipeline goes.').addHelpText(
    'after',
    EXAMPLES,
  );
  addJsonOption(program.command('analyze'))
    .description('Times, capacity and queues from the reports of a tracer, or from live metrics')
    .argument(
      '<source>',
      'pipeline.tracer, also of Paddle Serving; - for standard input; or the address of serving, ' +
        'as http://host:port',
    )
    .option('--qps <n>', 'Wanted requests per second (default: as measured)', parseRate)
    .option('--batch-size <n>', 'Batches to compute', parseIntegerBetween(1, 100_000), BATCH_SIZE)
    .option('--last <n>', 'Only the last reports', parseIntegerBetween(1, 100_000), LAST)
    .option(
      '--seconds <n>',
      'How long to watch a serving process',
      parseIntegerBetween(1, 86_400),
      SECONDS,
    )
    .action(analyzeSource);
  return program;
}

export function run(argv: readonly string[] = process.argv.slice(2)): Promise<number> {
  return runCli(createProgram(), argv);
}

async function analyzeSource(
  source: string,
  { json, last, seconds, ...options }: AnalyzeOptions,
): Promise<void> {
  const reports = /^https?:\/\//.test(source)
    ? await readLiveReport(source, 1_000 * seconds)
    : await readFile(source, last);
  const analysis = analyze(reports, options);
  printLine(json ? JSON.stringify(analysis) : formatAnalysis(analysis));
}

async function readFile(file: string, last: number): Promise<IntervalReport[]> {
  const reports: IntervalReport[] = [];
  for await (const report of readReports(readLines(file))) {
    if (reports.push(report) > last) reports.shift();
  }
  return reports;
}

function parseRate(text: string): number {
  const value = text.trim() === '' ? Number.NaN : Number(text);
  if (value > 0 && value <= 1e9) return value;
  throw new InvalidArgumentError('Expected a number above 0 and at most 1000000000.');
}
