/** The report of a gate as plain text. */
import { formatTable } from '../../lib/platform/terminal-output.ts';
import type { Findings, VersionFindings } from './findings.ts';
import { formatNumber, formatPercent, formatSubject, type GateReport } from './gate-report.ts';
import { type Check, computeUnseenShare } from './verdict.ts';

const SLOTS_MAX = 10;
const LINES_MAX = 5;

export function renderTextReport(report: GateReport): string {
  const { verdict, at, by, golden, policy, checks, findings } = report;
  const sample = golden.rows === golden.total ? '' : ` of ${golden.total}`;
  return [
    `${verdict === 'pass' ? 'PASS' : 'FAIL'}  ${formatSubject(report)}`,
    `${at}, by ${by}; limits: ${policy}`,
    `${golden.rows}${sample} rows of ${golden.source}, ${golden.labelled} with labels`,
    '',
    renderCheckTable(checks),
    ...(findings === undefined ? [] : ['', renderFigures(findings), ...renderDetails(findings)]),
    '',
  ].join('\n');
}

function renderCheckTable(checks: readonly Check[]): string {
  const rows = checks.map(({ outcome, what, value, threshold, limit, note }) => [
    outcome === 'fail' ? 'FAIL' : outcome === 'pass' ? 'pass' : '-',
    what,
    formatNumber(value),
    formatNumber(threshold),
    limit,
    note ?? '',
  ]);
  return formatTable(['', 'CHECK', 'VALUE', 'LIMIT', 'NAME', 'NOTE'], rows);
}

/** The figures of one version by name, for the text and the HTML report. */
export function listFigures(side: VersionFindings): readonly (readonly [string, string])[] {
  const { quality, latency, lookups, unseen, unavailable } = side;
  return [
    ['rows sent, all requests', String(side.rowsSent)],
    ['rows not answered', String(side.rowsFailed)],
    ['mean score', formatNumber(side.scoreMean)],
    ['AUC', formatNumber(quality?.auc)],
    ['logloss', formatNumber(quality?.logloss)],
    ['calibration', formatNumber(quality?.calibration)],
    ['lookups', String(lookups)],
    ['without a row', `${unseen} (${formatPercent(lookups === 0 ? 0 : unseen / lookups)})`],
    ['unavailable', String(unavailable)],
    ['latency p50, ms', formatNumber(latency.p50Ms)],
    ['latency p99, ms', formatNumber(latency.p99Ms)],
    ['requests timed', String(latency.requests)],
  ];
}

function renderFigures({ candidate, baseline }: Findings): string {
  const before = baseline === undefined ? [] : listFigures(baseline).map(([, value]) => value);
  const rows = listFigures(candidate).map(([name, value], i) => [name, value, before[i] ?? '–']);
  const versions = [`CANDIDATE ${candidate.version}`, `BASELINE ${baseline?.version ?? '–'}`];
  return formatTable(['', ...versions], rows);
}

function renderDetails({ candidate, baseline, furthest }: Findings): string[] {
  const lines: string[] = [];
  const slots = compareSlots(candidate, baseline).slice(0, SLOTS_MAX);
  if (slots.length > 0) {
    const rows = slots.map(({ slot, candidate, baseline }) => [
      slot,
      formatPercent(candidate),
      formatPercent(baseline),
    ]);
    const head = ['SLOT (largest difference first)', 'UNSEEN, CANDIDATE', 'BASELINE'];
    lines.push('', formatTable(head, rows));
  }
  if (furthest.length > 0) {
    const rows = furthest
      .slice(0, LINES_MAX)
      .map(({ line, candidate: candidateScores, baseline: baselineScores }) => [
        String(line),
        formatNumber(candidateScores),
        formatNumber(baselineScores),
      ]);
    lines.push('', formatTable(['LINE (largest difference first)', 'CANDIDATE', 'BASELINE'], rows));
  }
  if (candidate.failedLines.length > 0) {
    const rows = candidate.failedLines
      .slice(0, LINES_MAX)
      .map(({ line, code, message }) => [String(line), code, message]);
    lines.push('', formatTable(['LINE', 'CODE', 'REASON'], rows));
  }
  return lines;
}

export interface SlotComparison {
  readonly slot: string;
  /** Share of the slot's lookups without a row. The baseline is NaN if it lacks the slot. */
  readonly candidate: number;
  readonly baseline: number;
}

/** All slots, the largest difference first. */
export function compareSlots(
  candidate: VersionFindings,
  baseline: VersionFindings | undefined,
): SlotComparison[] {
  const before = new Map(baseline?.slots.map((slot) => [slot.slot, computeUnseenShare(slot)]));
  const apart = ({ candidate, baseline }: SlotComparison): number =>
    Number.isNaN(baseline) ? candidate : Math.abs(candidate - baseline);
  return candidate.slots
    .map((slot) => {
      const then = before.get(slot.slot) ?? Number.NaN;
      return { slot: slot.slot, candidate: computeUnseenShare(slot), baseline: then };
    })
    .sort((a, b) => apart(b) - apart(a));
}
