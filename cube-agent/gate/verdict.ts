/** Findings held against limits: one check for each, and the verdict. What cannot be checked is said, and fails nothing. Pure. */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { Findings, SideFindings } from './findings.ts';
import type { GateLimits, LimitName } from './gate-limits.ts';

export interface Check {
  /** The limit's name; "served" and "answersBroken", which no policy can move, beside. */
  readonly limit: LimitName | 'served' | 'answersBroken';
  /** In a few words. */
  readonly what: string;
  readonly value: number | undefined;
  /** What the value may be; undefined for what was not checked. */
  readonly threshold: number | undefined;
  readonly outcome: 'pass' | 'fail' | 'not checked';
  /** Why it was not checked, or what the value comes from. */
  readonly note?: string | undefined;
}

export type Verdict = 'pass' | 'fail';

export function verdictOf(checks: readonly Check[]): Verdict {
  return checks.some(({ outcome }) => outcome === 'fail') ? 'fail' : 'pass';
}

/** The check of a version that does not come up at all. */
export function unfitCheck(why: string): Check {
  return {
    ...{ limit: 'served', what: 'the version can be served', value: 0, threshold: 1 },
    ...{ outcome: 'fail', note: why },
  };
}

export function checksOf(findings: Findings, limits: GateLimits): Check[] {
  const checker = new Checker(limits);
  return [
    ...answerChecks(checker, findings),
    ...driftChecks(checker, findings),
    ...qualityChecks(checker, findings),
    ...unseenChecks(checker, findings),
    ...latencyChecks(checker, findings),
  ];
}

/** Failures that say something of the machine, or of the shards, before they say anything of a version. */
const MACHINE_CODES: readonly ErrorCode[] = [
  'DEADLINE_EXCEEDED',
  'OVERLOADED',
  'UNAVAILABLE',
  'STOPPING',
];

/**
 * The version that is active went unanswered too: what the new one did in such conditions is no evidence.
 * @throws CubeError UNAVAILABLE saying what to do
 */
export function requireFitMachine({ baseline }: Findings, { errorsMax }: GateLimits): void {
  if (baseline === undefined || errorsMax === null) return;
  const { failures, rowsSent, version, failedLines } = baseline;
  const lost = MACHINE_CODES.reduce((sum, code) => sum + (failures[code] ?? 0), 0);
  if (lost / rowsSent <= errorsMax) return;
  throw new CubeError(
    'UNAVAILABLE',
    `the active version ${version} left ${lost} of ${rowsSent} rows unanswered too (${failedLines[0]?.message}): ` +
      'the machine is too busy, or shards are away; try later, with a lower --rate or a longer --timeout-ms',
  );
}

const NO_BASELINE = 'there is no version to compare with';

class Checker {
  readonly limits: GateLimits;

  constructor(limits: GateLimits) {
    this.limits = limits;
  }

  /** @param value undefined or NaN: it could not be measured, and `note` says why */
  atMost(limit: LimitName, what: string, value: number | undefined, note?: string): Check[] {
    return this.#check(limit, what, value, note, (measured, bound) => measured <= bound);
  }

  atLeast(limit: LimitName, what: string, value: number | undefined, note?: string): Check[] {
    return this.#check(limit, what, value, note, (measured, bound) => measured >= bound);
  }

  /** Nothing for a limit that is switched off. */
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

function answerChecks(checker: Checker, { candidate }: Findings): Check[] {
  const { rowsSent, rowsFailed, failures, lookups, unavailable, failedLines } = candidate;
  const broken = failures.INTERNAL ?? 0;
  const [first] = failedLines;
  const note = first && `line ${first.line}: ${first.code} ${first.message}`;
  return [
    {
      ...{
        limit: 'answersBroken',
        what: 'rows on which the graph failed',
      },
      ...{ value: broken, threshold: 0, outcome: broken === 0 ? 'pass' : 'fail' },
      note: broken === 0 ? undefined : note,
    },
    ...checker.atMost('errorsMax', 'rows not answered', rowsFailed / rowsSent, note),
    ...checker.atMost('unavailableMax', 'lookups unavailable', share(unavailable, lookups)),
  ];
}

function driftChecks(checker: Checker, { drift, baseline }: Findings): Check[] {
  const note = drift ? undefined : baseline ? 'no row was answered by both' : NO_BASELINE;
  return [
    ...checker.atMost('driftMeanMax', 'drift of scores, mean', drift?.mean, note),
    ...checker.atMost('driftP50Max', 'drift of scores, median', drift?.p50, note),
    ...checker.atMost('driftP99Max', 'drift of scores, 99th percentile', drift?.p99, note),
    ...checker.atMost('driftLargestMax', 'drift of scores, largest', drift?.largest, note),
    ...checker.atMost('psiMax', 'stability index of scores (PSI)', drift?.psi, note),
  ];
}

function qualityChecks(checker: Checker, { candidate, baseline }: Findings): Check[] {
  const labelled = candidate.quality?.rows ?? 0;
  const enough = labelled > 0 && labelled >= (checker.limits.qualityRowsMin ?? 0);
  const ours = enough ? candidate.quality : undefined;
  const theirs = enough ? baseline?.quality : undefined;
  const few = enough ? undefined : `${labelled} labelled rows, too few (qualityRowsMin)`;
  const equal = Number.isNaN(ours?.auc) ? 'all labels are equal' : undefined;
  const alone = few ?? (baseline === undefined ? NO_BASELINE : undefined);
  const rise = (of: 'logloss' | 'calibration'): number | undefined =>
    ours && theirs && ours[of] / theirs[of] - 1;
  const shift = rise('calibration');
  return [
    ...checker.atLeast('aucMin', 'AUC', ours?.auc, few ?? equal),
    ...checker.atMost(
      'aucDropMax',
      'AUC lost',
      ours && theirs && theirs.auc - ours.auc,
      alone ?? equal,
    ),
    ...checker.atMost('loglossRiseMax', 'logloss risen by', rise('logloss'), alone),
    ...checker.atMost(
      'calibrationShiftMax',
      'calibration moved by',
      shift === undefined ? undefined : Math.abs(shift),
      alone ?? equal,
    ),
  ];
}

function unseenChecks(checker: Checker, { candidate, baseline }: Findings): Check[] {
  const ours = share(candidate.unseen, candidate.lookups);
  const worst = baseline && worstSlot(candidate, baseline);
  const note = baseline === undefined ? NO_BASELINE : undefined;
  return [
    ...checker.atMost('unseenMax', 'lookups without a row', ours),
    ...checker.atMost(
      'unseenRiseMax',
      'lookups without a row, more by',
      baseline && ours - share(baseline.unseen, baseline.lookups),
      note,
    ),
    ...checker.atMost(
      'slotUnseenRiseMax',
      'the same in the worst slot',
      worst?.rise,
      note ?? (worst === undefined ? 'no slot is in both' : `slot ${worst.slot}`),
    ),
  ];
}

function worstSlot(
  candidate: SideFindings,
  baseline: SideFindings,
): { slot: string; rise: number } | undefined {
  const before = new Map(baseline.slots.map((slot) => [slot.slot, slot]));
  const rises = candidate.slots.flatMap((now) => {
    const then = before.get(now.slot);
    return then === undefined
      ? []
      : [{ slot: now.slot, rise: unseenShare(now) - unseenShare(then) }];
  });
  return rises.sort((a, b) => b.rise - a.rise)[0];
}

/** Of one slot's lookups, those that found no row. */
export function unseenShare(slot: SideFindings['slots'][number]): number {
  return share(slot.unseen, slot.hit + slot.unseen + slot.unavailable);
}

function latencyChecks(checker: Checker, { candidate, baseline }: Findings): Check[] {
  const slackMs = checker.limits.latencySlackMs ?? 0;
  const { p50Ms, p99Ms } = candidate.latency;
  /** A difference below the slack is none. */
  const ratio = (ours: number, theirs: number | undefined): number | undefined => {
    if (theirs === undefined || Number.isNaN(ours) || Number.isNaN(theirs)) return undefined;
    return ours - theirs <= slackMs ? Math.min(ours / theirs, 1) : ours / theirs;
  };
  const note = baseline === undefined ? NO_BASELINE : `up to ${slackMs} ms more counts as equal`;
  return [
    ...checker.atMost(
      'latencyP50RatioMax',
      'median latency, ratio',
      ratio(p50Ms, baseline?.latency.p50Ms),
      note,
    ),
    ...checker.atMost(
      'latencyP99RatioMax',
      'p99 latency, ratio',
      ratio(p99Ms, baseline?.latency.p99Ms),
      note,
    ),
    ...checker.atMost('latencyP99MsMax', 'p99 latency, ms', p99Ms),
  ];
}

function share(part: number, whole: number): number {
  return whole === 0 ? 0 : part / whole;
}
