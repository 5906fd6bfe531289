/**
 * Checks findings against limits: one check per limit, and the verdict. A limit that cannot be
 * checked is reported and does not fail the version. Pure.
 */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { ShadowSummary } from '../../lib/core/shadow.ts';
import type { Findings, VersionFindings } from './findings.ts';
import type { GateLimits, LimitName } from './gate-limits.ts';

export interface Check {
  /** Name of the limit, or "served" or "answersBroken", which no policy can change. */
  readonly limit: LimitName | 'served' | 'answersBroken';
  /** A short description. */
  readonly what: string;
  readonly value: number | undefined;
  /** The bound on the value; undefined if it was not checked. */
  readonly threshold: number | undefined;
  readonly outcome: 'pass' | 'fail' | 'not checked';
  /** Why it was not checked, or details of the value. */
  readonly note?: string | undefined;
}

export type Verdict = 'pass' | 'fail';

export function decideVerdict(checks: readonly Check[]): Verdict {
  return checks.some(({ outcome }) => outcome === 'fail') ? 'fail' : 'pass';
}

/** The failed check of a version that cannot be served. */
export function createUnservableCheck(why: string): Check {
  return {
    limit: 'served',
    what: 'the version can be served',
    value: 0,
    threshold: 1,
    outcome: 'fail',
    note: why,
  };
}

export function checkFindings(findings: Findings, limits: GateLimits): Check[] {
  const checker = new Checker(limits);
  return [
    ...checkAnswers(checker, findings),
    ...checkExpected(checker, findings),
    ...checkDrift(checker, findings),
    ...checkQuality(checker, findings),
    ...checkUnseen(checker, findings),
    ...checkLatency(checker, findings),
  ];
}

/**
 * Checks answers to copies of live requests, by the limits of drift and latency that golden rows
 * have too.
 */
export function checkShadow(
  { requests, failed, failures, dropped, drift, latency }: ShadowSummary,
  limits: GateLimits,
): Check[] {
  const checker = new Checker(limits);
  const all = requests + failed;
  const codes = Object.entries(failures).map(([code, count]) => `${count} ${code}`);
  const note = dropped === 0 ? undefined : `${dropped} copies were not sent`;
  return [
    ...checker.atLeast('shadowRequestsMin', 'shadowed requests', all, note),
    ...checker.atMost('shadowErrorsMax', 'shadow: failed', share(failed, all), codes.join(', ')),
    ...checker.atMost('driftMeanMax', 'shadow: drift of scores, mean', drift.mean),
    ...checker.atMost('driftP50Max', 'shadow: drift of scores, median', drift.p50),
    ...checker.atMost('driftP99Max', 'shadow: drift of scores, 99th percentile', drift.p99),
    ...checker.atMost('driftLargestMax', 'shadow: drift of scores, largest', drift.largest),
    ...checker.atMost('psiMax', 'shadow: stability index of scores (PSI)', drift.psi),
    ...checkLatencyRatios(checker, latency.shadow, latency.primary, 'shadow: '),
  ];
}

/** Codes of failures caused by the machine or the shards rather than by a version. */
const ENVIRONMENT_CODES: readonly ErrorCode[] = [
  'DEADLINE_EXCEEDED',
  'OVERLOADED',
  'UNAVAILABLE',
  'STOPPING',
];

/**
 * Refuses to judge when the baseline, too, left rows unanswered: then the failures of the candidate
 * are no evidence.
 * @throws CubeError UNAVAILABLE with what to do
 */
export function requireHealthyBaseline({ baseline }: Findings, { errorsMax }: GateLimits): void {
  if (baseline === undefined || errorsMax === null) return;
  const { failures, rowsSent, version, failedLines } = baseline;
  const lost = ENVIRONMENT_CODES.reduce((sum, code) => sum + (failures[code] ?? 0), 0);
  if (lost / rowsSent <= errorsMax) return;
  throw new CubeError(
    'UNAVAILABLE',
    `the baseline, version ${version}, left ${lost} of ${rowsSent} rows unanswered too ` +
      `(${failedLines[0]?.message}): the machine is overloaded or shards are unavailable; ` +
      'retry later, with a lower --rate or a longer --timeout-ms',
  );
}

const NO_BASELINE = 'there is no baseline';

class Checker {
  readonly limits: GateLimits;

  constructor(limits: GateLimits) {
    this.limits = limits;
  }

  /** @param value undefined or NaN: not measured; `note` gives the reason */
  atMost(limit: LimitName, what: string, value: number | undefined, note?: string): Check[] {
    return this.#check(limit, what, value, note, (measured, bound) => measured <= bound);
  }

  atLeast(limit: LimitName, what: string, value: number | undefined, note?: string): Check[] {
    return this.#check(limit, what, value, note, (measured, bound) => measured >= bound);
  }

  /** @returns no check for a limit that is disabled */
  #check(
    limit: LimitName,
    what: string,
    value: number | undefined,
    note: string | undefined,
    holds: (value: number, threshold: number) => boolean,
  ): Check[] {
    const threshold = this.limits[limit];
    if (threshold === null) return [];
    if (value === undefined || Number.isNaN(value)) {
      const outcome = 'not checked';
      return [{ limit, what, value: undefined, threshold, outcome, note }];
    }
    const outcome = holds(value, threshold) ? 'pass' : 'fail';
    return [{ limit, what, value, threshold, outcome, note }];
  }
}

function checkAnswers(checker: Checker, { candidate }: Findings): Check[] {
  const { rowsSent, rowsFailed, failures, lookups, unavailable, failedLines } = candidate;
  const broken = failures.INTERNAL ?? 0;
  const [first] = failedLines;
  const note = first && `line ${first.line}: ${first.code} ${first.message}`;
  return [
    {
      limit: 'answersBroken',
      what: 'rows on which the graph failed',
      value: broken,
      threshold: 0,
      outcome: broken === 0 ? 'pass' : 'fail',
      note: broken === 0 ? undefined : note,
    },
    ...checker.atMost('errorsMax', 'rows not answered', rowsFailed / rowsSent, note),
    ...checker.atMost('unavailableMax', 'lookups unavailable', share(unavailable, lookups)),
  ];
}

/** No check for golden rows without scores. */
function checkExpected(checker: Checker, { expected }: Findings): Check[] {
  if (expected === undefined) return [];
  const { maxAbsDifference, line, score, expectedScore } = expected;
  const note =
    maxAbsDifference === 0 ? undefined : `line ${line}: ${score} instead of ${expectedScore}`;
  const what = 'difference from expected scores';
  return checker.atMost('expectedDifferenceMax', what, maxAbsDifference, note);
}

function checkDrift(checker: Checker, { drift, baseline }: Findings): Check[] {
  const note = drift ? undefined : baseline ? 'no row was scored by both versions' : NO_BASELINE;
  return [
    ...checker.atMost('driftMeanMax', 'drift of scores, mean', drift?.mean, note),
    ...checker.atMost('driftP50Max', 'drift of scores, median', drift?.p50, note),
    ...checker.atMost('driftP99Max', 'drift of scores, 99th percentile', drift?.p99, note),
    ...checker.atMost('driftLargestMax', 'drift of scores, largest', drift?.largest, note),
    ...checker.atMost('psiMax', 'stability index of scores (PSI)', drift?.psi, note),
  ];
}

function checkQuality(checker: Checker, { candidate, baseline }: Findings): Check[] {
  const labelled = candidate.quality?.rows ?? 0;
  const enough = labelled > 0 && labelled >= (checker.limits.qualityRowsMin ?? 0);
  const candidateValue = enough ? candidate.quality : undefined;
  const baselineValue = enough ? baseline?.quality : undefined;
  const few = enough ? undefined : `too few labelled rows: ${labelled} (qualityRowsMin)`;
  const equal = Number.isNaN(candidateValue?.auc) ? 'all labels are equal' : undefined;
  const alone = few ?? (baseline === undefined ? NO_BASELINE : undefined);
  const rise = (of: 'logloss' | 'calibration'): number | undefined =>
    candidateValue && baselineValue && candidateValue[of] / baselineValue[of] - 1;
  const shift = rise('calibration');
  return [
    ...checker.atLeast('aucMin', 'AUC', candidateValue?.auc, few ?? equal),
    ...checker.atMost(
      'aucDropMax',
      'AUC drop',
      candidateValue && baselineValue && baselineValue.auc - candidateValue.auc,
      alone ?? equal,
    ),
    ...checker.atMost('loglossRiseMax', 'relative rise of logloss', rise('logloss'), alone),
    ...checker.atMost(
      'calibrationShiftMax',
      'relative change of calibration',
      shift === undefined ? undefined : Math.abs(shift),
      alone ?? equal,
    ),
  ];
}

function checkUnseen(checker: Checker, { candidate, baseline }: Findings): Check[] {
  const candidateValue = share(candidate.unseen, candidate.lookups);
  const worst = baseline && findWorstSlot(candidate, baseline);
  const note = baseline === undefined ? NO_BASELINE : undefined;
  return [
    ...checker.atMost('unseenMax', 'lookups without a row', candidateValue),
    ...checker.atMost(
      'unseenRiseMax',
      'rise of lookups without a row',
      baseline && candidateValue - share(baseline.unseen, baseline.lookups),
      note,
    ),
    ...checker.atMost(
      'slotUnseenRiseMax',
      'rise of lookups without a row, worst slot',
      worst?.rise,
      note ?? (worst === undefined ? 'the versions have no slot in common' : `slot ${worst.slot}`),
    ),
  ];
}

function findWorstSlot(
  candidate: VersionFindings,
  baseline: VersionFindings,
): { slot: string; rise: number } | undefined {
  const before = new Map(baseline.slots.map((slot) => [slot.slot, slot]));
  const rises = candidate.slots.flatMap((now) => {
    const then = before.get(now.slot);
    return then === undefined
      ? []
      : [{ slot: now.slot, rise: computeUnseenShare(now) - computeUnseenShare(then) }];
  });
  return rises.sort((a, b) => b.rise - a.rise)[0];
}

/** Share of a slot's lookups without a row. */
export function computeUnseenShare(slot: VersionFindings['slots'][number]): number {
  return share(slot.unseen, slot.hit + slot.unseen + slot.unavailable);
}

function checkLatency(checker: Checker, { candidate, baseline }: Findings): Check[] {
  return [
    ...checkLatencyRatios(checker, candidate.latency, baseline?.latency),
    ...checker.atMost('latencyP99MsMax', 'p99 latency, ms', candidate.latency.p99Ms),
  ];
}

interface Latency {
  readonly p50Ms: number;
  readonly p99Ms: number;
}

function checkLatencyRatios(
  checker: Checker,
  { p50Ms, p99Ms }: Latency,
  baseline: Latency | undefined,
  prefix = '',
): Check[] {
  const slackMs = checker.limits.latencySlackMs ?? 0;
  /** Differences up to the slack count as equal. */
  const ratio = (candidateValue: number, baselineValue: number | undefined): number | undefined => {
    if (baselineValue === undefined || Number.isNaN(candidateValue) || Number.isNaN(baselineValue))
      return undefined;
    return candidateValue - baselineValue <= slackMs
      ? Math.min(candidateValue / baselineValue, 1)
      : candidateValue / baselineValue;
  };
  const note =
    baseline === undefined ? NO_BASELINE : `a difference up to ${slackMs} ms counts as equal`;
  return [
    ...checker.atMost(
      'latencyP50RatioMax',
      `${prefix}median latency, ratio`,
      ratio(p50Ms, baseline?.p50Ms),
      note,
    ),
    ...checker.atMost(
      'latencyP99RatioMax',
      `${prefix}p99 latency, ratio`,
      ratio(p99Ms, baseline?.p99Ms),
      note,
    ),
  ];
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}
