/** Where the time of a pipeline goes, and what more concurrency or batches would change. */
import { CubeError } from '../../lib/core/errors.ts';
import { type IntervalReport, type OpReport, STAGES, type Stage } from './tracer-log.ts';

export interface AnalysisOptions {
  /** Wanted requests per second. Default: as many as were measured. */
  readonly qps?: number;
  /** Size of the batches of `batching`. */
  readonly batchSize: number;
}

export interface OpAnalysis {
  readonly op: string;
  /** Means over all requests, in milliseconds. */
  readonly stageMs: Readonly<Record<Stage, number>>;
  /** What one request occupies an execution for: prep + midp + postp, in milliseconds. */
  readonly costMs: number;
  /** Share of the costs of all ops, 0 to 1. */
  readonly share: number;
  /** As the last report says; undefined: the file does not have it. */
  readonly concurrency: number | undefined;
  /** Concurrent executions that the wanted requests per second occupy on average. */
  readonly neededConcurrency: number;
  /** Requests per second that the concurrency can do; undefined: no cost, or it is not known. */
  readonly maxQps: number | undefined;
  /** Cost of one request in batches whose midp and postp cost as much as those of one request. */
  readonly batchedCostMs: number;
}

export interface QueueAnalysis {
  readonly queue: string;
  readonly firstLength: number;
  readonly lastLength: number;
  readonly maxLength: number;
  readonly capacity: number;
  /** It has grown by more than 5 requests: more arrive than leave. */
  readonly isGrowing: boolean;
}

export interface Analysis {
  readonly intervals: number;
  readonly requests: number;
  /** Requests per second, without the reports that have no requests. */
  readonly qps: number;
  readonly wantedQps: number;
  readonly success: number;
  readonly latencyMs: number;
  readonly batchSize: number;
  /** In the order of the graph. */
  readonly ops: readonly OpAnalysis[];
  readonly queues: readonly QueueAnalysis[];
  /** The op with the fewest requests per second; undefined: unknown. */
  readonly slowest: string | undefined;
}

const GROWTH_MAX = 5;

/** @throws CubeError INVALID_ARGUMENT without a report, or without a request in the reports */
export function analyze(
  reports: readonly IntervalReport[],
  { qps: wanted, batchSize }: AnalysisOptions,
): Analysis {
  const requests = sum(reports, (report) => report.requests);
  if (requests === 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `found ${reports.length} reports and no requests; expected pipeline.tracer of a pipeline ` +
        'that has answered requests, or a serving process that answers some',
    );
  }
  const mean = (value: (report: IntervalReport) => number): number =>
    sum(reports, (report) => report.requests * value(report)) / requests;
  const busy = reports.filter((report) => report.requests > 0 && report.qps > 0);
  const seconds = sum(busy, (report) => report.requests / report.qps);
  const qps = seconds === 0 ? 0 : sum(busy, (report) => report.requests) / seconds;
  const wantedQps = wanted ?? qps;
  const ops = analyzeOps(reports, mean, wantedQps, batchSize);
  const limited = ops.filter(({ maxQps }) => maxQps !== undefined);
  const [slowest] = limited.sort((a, b) => (a.maxQps ?? 0) - (b.maxQps ?? 0));
  return {
    intervals: reports.length,
    requests,
    qps,
    wantedQps,
    success: mean(({ success }) => success),
    latencyMs: mean(({ latencyMs }) => latencyMs),
    batchSize,
    ops,
    queues: analyzeQueues(reports),
    slowest: slowest?.op,
  };
}

function analyzeOps(
  reports: readonly IntervalReport[],
  mean: (value: (report: IntervalReport) => number) => number,
  qps: number,
  batchSize: number,
): OpAnalysis[] {
  const names = new Set(reports.flatMap(({ ops }) => [...ops.keys()]));
  const measured = [...names].map((op) => {
    const stage = (name: Stage): number => mean(({ ops }) => ops.get(op)?.stageMs[name] ?? 0);
    const stageMs = Object.fromEntries(STAGES.map((name) => [name, stage(name)]));
    return { op, stageMs: stageMs as Record<Stage, number> };
  });
  const costs = measured.map(({ stageMs: { prep, midp, postp } }) => prep + midp + postp);
  const total = costs.reduce((all, cost) => all + cost, 0);
  return measured.map(({ op, stageMs }, index) => {
    const costMs = costs[index] ?? 0;
    const concurrency = findConcurrency(reports, op);
    const isLimited = concurrency !== undefined && costMs > 0;
    const { prep, midp, postp } = stageMs;
    return {
      op,
      stageMs,
      costMs,
      share: total === 0 ? 0 : costMs / total,
      concurrency,
      neededConcurrency: (costMs / 1_000) * qps,
      maxQps: isLimited ? (1_000 * concurrency) / costMs : undefined,
      batchedCostMs: (batchSize * prep + midp + postp) / batchSize,
    };
  });
}

function findConcurrency(reports: readonly IntervalReport[], op: string): number | undefined {
  const last: OpReport | undefined = reports.findLast(({ ops }) => ops.has(op))?.ops.get(op);
  return last?.concurrency;
}

function analyzeQueues(reports: readonly IntervalReport[]): QueueAnalysis[] {
  const names = new Set(reports.flatMap(({ queues }) => [...queues.keys()]));
  return [...names].map((queue) => {
    const states = reports.flatMap(({ queues }) => queues.get(queue) ?? []);
    const lengths = states.map(({ length }) => length);
    const [firstLength = 0, lastLength = 0] = [lengths.at(0), lengths.at(-1)];
    return {
      queue,
      firstLength,
      lastLength,
      maxLength: lengths.reduce((max, length) => Math.max(max, length), 0),
      capacity: states.at(-1)?.capacity ?? 0,
      isGrowing: lastLength - firstLength > GROWTH_MAX,
    };
  });
}

function sum<T>(items: readonly T[], value: (item: T) => number): number {
  return items.reduce((total, item) => total + value(item), 0);
}
