/** An analysis as text. */
import { formatTable } from '../../lib/platform/terminal-output.ts';
import type { Analysis, OpAnalysis, QueueAnalysis } from './analysis.ts';
import { STAGES } from './tracer-log.ts';

export function formatAnalysis(analysis: Analysis): string {
  const { intervals, requests, qps, success, latencyMs, queues } = analysis;
  const summary = [
    `${requests} requests in ${intervals} reports`,
    `${round(qps)} requests/s`,
    `${round(100 * success)} % successful`,
    `mean latency ${round(latencyMs)} ms`,
  ];
  const parts = [`${summary.join(', ')}`, `Mean ms of a request\n${formatOps(analysis)}`];
  parts.push(`Capacity\n${formatCapacity(analysis)}`);
  if (queues.length > 0) parts.push(`Queues\n${formatQueues(queues)}`);
  const advice = listAdvice(analysis);
  if (advice.length > 0) parts.push(advice.map((line) => `- ${line}`).join('\n'));
  return parts.join('\n\n');
}

function formatOps({ ops }: Analysis): string {
  return formatTable(
    ['op', ...STAGES, 'cost', 'share'],
    ops.map(({ op, stageMs, costMs, share }) => [
      op,
      ...STAGES.map((stage) => round(stageMs[stage])),
      round(costMs),
      `${round(100 * share)} %`,
    ]),
  );
}

function formatCapacity({ ops, wantedQps, batchSize }: Analysis): string {
  return formatTable(
    [
      'op',
      'concurrency',
      `needed for ${round(wantedQps)} requests/s`,
      'maximum requests/s',
      `cost in batches of ${batchSize}`,
    ],
    ops.map(({ op, concurrency, neededConcurrency, maxQps, batchedCostMs }) => [
      op,
      concurrency === undefined ? '?' : String(concurrency),
      round(neededConcurrency),
      maxQps === undefined ? '?' : round(maxQps),
      `${round(batchedCostMs)} ms`,
    ]),
  );
}

function formatQueues(queues: readonly QueueAnalysis[]): string {
  return formatTable(
    ['queue', 'first', 'last', 'maximum', 'capacity', ''],
    queues.map(({ queue, firstLength, lastLength, maxLength, capacity, isGrowing }) => [
      queue,
      ...[firstLength, lastLength, maxLength].map(String),
      capacity === 0 ? 'not limited' : String(capacity),
      isGrowing ? 'grows' : '',
    ]),
  );
}

function listAdvice({ ops, queues, slowest, wantedQps, batchSize }: Analysis): string[] {
  const lines: string[] = [];
  const first = ops.find(({ op }) => op === slowest);
  if (first?.maxQps !== undefined) {
    lines.push(`${first.op} limits the pipeline to ${round(first.maxQps)} requests/s`);
  }
  for (const op of ops.filter(isTooSmall)) {
    const needed = Math.ceil(op.neededConcurrency);
    lines.push(`${op.op}: concurrency ${needed} or more for ${round(wantedQps)} requests/s`);
  }
  for (const { queue } of queues.filter(({ isGrowing }) => isGrowing)) {
    lines.push(`${queue}: more requests arrive than leave; raise the concurrency of its op`);
  }
  const [best] = [...ops].sort((a, b) => b.costMs - b.batchedCostMs - (a.costMs - a.batchedCostMs));
  if (best !== undefined && batchSize > 1 && best.batchedCostMs < best.costMs) {
    const saved = round(100 * (1 - best.batchedCostMs / best.costMs));
    lines.push(
      `${best.op}: batches of ${batchSize} save at most ${saved} % of its cost, if process takes ` +
        'as long for a batch as for one request',
    );
  }
  return lines;
}

function isTooSmall({ concurrency, neededConcurrency }: OpAnalysis): boolean {
  return concurrency !== undefined && neededConcurrency > concurrency;
}

/** Three significant digits below 100, else none after the point. */
function round(value: number): string {
  return String(value < 100 ? Number(value.toPrecision(3)) : Math.round(value));
}
