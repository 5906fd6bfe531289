/** The report of a gate as text, for terminals and mails. */
import { table } from '../../lib/platform/text-table.ts';
import type { Findings, SideFindings } from './findings.ts';
import { type GateReport, percent, shown, subjectOf } from './gate-report.ts';
import { type Check, unseenShare } from './verdict.ts';

const SLOTS_SHOWN = 10;
const LINES_SHOWN = 5;

export function reportText(report: GateReport): string {
  const { verdict, at, by, golden, policy, checks, findings } = report;
  const sample = golden.rows === golden.total ? '' : ` of ${golden.total}`;
  return [
    `${verdict === 'pass' ? 'PASS' : 'FAIL'}  ${subjectOf(report)}`,
    `${at}, by ${by}; limits: ${policy}`,
    `${golden.rows}${sample} rows of ${golden.source}, ${golden.labelled} with labels`,
    '',
    checkTable(checks),
    ...(findings === undefined ? [] : ['', sideTable(findings), ...detailsOf(findings)]),
    '',
  ].join('\n');
}

function checkTable(checks: readonly Check[]): string {
  const rows = checks.map(({ outcome, what, value, threshold, limit, note }) => [
    outcome === 'fail' ? 'FAIL' : outcome === 'pass' ? 'pass' : '-',
    what,
    shown(value),
    shown(threshold),
    limit,
    note ?? '',
  ]);
  return table(['', 'CHECK', 'VALUE', 'LIMIT', 'NAME', 'NOTE'], rows);
}

/** The figures of a side, named; the page shows the same ones. */
export function figuresOf(side: SideFindings): readonly (readonly [string, string])[] {
  const { quality, latency, lookups, unseen, unavailable } = side;
  return [
    ['rows sent, all requests', String(side.rowsSent)],
    ['rows not answered', String(side.rowsFailed)],
    ['mean score', shown(side.scoreMean)],
    ['AUC', shown(quality?.auc)],
    ['logloss', shown(quality?.logloss)],
    ['calibration', shown(quality?.calibration)],
    ['lookups', String(lookups)],
    ['without a row', `${unseen} (${percent(lookups === 0 ? 0 : unseen / lookups)})`],
    ['unavailable', String(unavailable)],
    ['latency p50, ms', shown(latency.p50Ms)],
    ['latency p99, ms', shown(latency.p99Ms)],
    ['requests timed', String(latency.requests)],
  ];
}

function sideTable({ candidate, baseline }: Findings): string {
  const before = baseline === undefined ? [] : figuresOf(baseline).map(([, value]) => value);
  const rows = figuresOf(candidate).map(([name, value], i) => [name, value, before[i] ?? '–']);
  const versions = [`CANDIDATE ${candidate.version}`, `ACTIVE ${baseline?.version ?? '–'}`];
  return table(['', ...versions], rows);
}

function detailsOf({ candidate, baseline, furthest }: Findings): string[] {
  const lines: string[] = [];
  const slots = slotRises(candidate, baseline).slice(0, SLOTS_SHOWN);
  if (slots.length > 0) {
    const rows = slots.map(({ slot, now, then }) => [slot, percent(now), percent(then)]);
    const head = ['SLOT (furthest apart first)', 'WITHOUT A ROW', 'ACTIVE'];
    lines.push('', table(head, rows));
  }
  if (furthest.length > 0) {
    const rows = furthest
      .slice(0, LINES_SHOWN)
      .map(({ line, candidate: ours, baseline: theirs }) => [
        String(line),
        shown(ours),
        shown(theirs),
      ]);
    lines.push('', table(['LINE (furthest apart first)', 'SCORE', 'ACTIVE'], rows));
  }
  if (candidate.failedLines.length > 0) {
    const rows = candidate.failedLines
      .slice(0, LINES_SHOWN)
      .map(({ line, code, message }) => [String(line), code, message]);
    lines.push('', table(['LINE', 'CODE', 'NOT ANSWERED BECAUSE'], rows));
  }
  return lines;
}

export interface SlotRise {
  readonly slot: string;
  /** Shares of the slot's lookups that found no row; NaN without a baseline, or without that slot in it. */
  readonly now: number;
  readonly then: number;
}

/** Every slot, those that moved furthest first. */
export function slotRises(candidate: SideFindings, baseline: SideFindings | undefined): SlotRise[] {
  const before = new Map(baseline?.slots.map((slot) => [slot.slot, unseenShare(slot)]));
  const apart = ({ now, then }: SlotRise): number =>
    Number.isNaN(then) ? now : Math.abs(now - then);
  return candidate.slots
    .map((slot) => {
      const then = before.get(slot.slot) ?? Number.NaN;
      return { slot: slot.slot, now: unseenShare(slot), then };
    })
    .sort((a, b) => apart(b) - apart(a));
}
