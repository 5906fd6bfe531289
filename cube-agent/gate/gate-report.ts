/**
 * The report of one gate run, as it is stored in JSON. The text and HTML reports are made from it.
 */
import type { ShadowSummary } from '../../lib/core/shadow.ts';
import type { Findings } from './findings.ts';
import type { GateLimits } from './gate-limits.ts';
import type { Check, Verdict } from './verdict.ts';

export const REPORT_FORMAT = 1;

export interface GateReport {
  readonly format: typeof REPORT_FORMAT;
  readonly bundle: string;
  readonly version: string;
  /** The baseline version; null for a first version. */
  readonly against: string | null;
  readonly at: string;
  readonly by: string;
  readonly verdict: Verdict;
  readonly golden: {
    readonly source: string;
    readonly rows: number;
    /** Rows of the source before sampling. */
    readonly total: number;
    readonly labelled: number;
  };
  readonly replay: { readonly rowsPerRequest: number; readonly requestsPerSecond: number };
  /** Source of the limits. */
  readonly policy: string;
  readonly limits: GateLimits;
  readonly checks: readonly Check[];
  /** Absent for a version that could not be served. */
  readonly findings?: Findings;
  /** Answers to copies of live requests; absent without shadowRequestsMin. */
  readonly shadow?: ShadowSummary;
}

/** "toy 2 against 1" */
export function formatSubject({ bundle, version, against }: GateReport): string {
  return `${bundle} ${version}${against === null ? '' : ` against ${against}`}`;
}

/** A number with four significant digits. NaN, which is null in JSON, gives "–". */
export function formatNumber(value: number | null | undefined): string {
  if (value === undefined || value === null || Number.isNaN(value)) return '–';
  if (value === 0 || Number.isInteger(value)) return String(value);
  if (Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6) return String(Number(value.toPrecision(4)));
  return value.toExponential(2).replace(/\.?0+e/, 'e');
}

/** "0.25 %" */
export function formatPercent(value: number): string {
  return Number.isFinite(value) ? `${Number((value * 100).toPrecision(3))} %` : '–';
}
