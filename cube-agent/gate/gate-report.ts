/** The report of one run of the gate: what is stored as JSON, and what text and page are made of. */
import type { Findings } from './findings.ts';
import type { GateLimits } from './gate-limits.ts';
import type { Check, Verdict } from './verdict.ts';

export const REPORT_FORMAT = 1;

export interface GateReport {
  readonly format: typeof REPORT_FORMAT;
  readonly bundle: string;
  readonly version: string;
  /** The version compared with; null for a first one. */
  readonly against: string | null;
  readonly at: string;
  readonly by: string;
  readonly verdict: Verdict;
  readonly golden: {
    readonly source: string;
    readonly rows: number;
    /** Rows that there were to choose from. */
    readonly total: number;
    readonly labelled: number;
  };
  readonly replay: { readonly rowsPerRequest: number; readonly requestsPerSecond: number };
  /** Where the limits were read. */
  readonly policy: string;
  readonly limits: GateLimits;
  readonly checks: readonly Check[];
  /** Absent for a version that could not be served at all. */
  readonly findings?: Findings;
}

/** "toy 2 against 1" */
export function subjectOf({ bundle, version, against }: GateReport): string {
  return `${bundle} ${version}${against === null ? '' : ` against ${against}`}`;
}

/** A number as people read it: four digits that say something. NaN, and what JSON has made of it, is "–". */
export function shown(value: number | null | undefined): string {
  if (value === undefined || value === null || Number.isNaN(value)) return '–';
  if (value === 0 || Number.isInteger(value)) return String(value);
  if (Math.abs(value) >= 1e-4 && Math.abs(value) < 1e6) return String(Number(value.toPrecision(4)));
  return value.toExponential(2).replace(/\.?0+e/, 'e');
}

/** "0.25 %" */
export function percent(value: number): string {
  return Number.isFinite(value) ? `${Number((value * 100).toPrecision(3))} %` : '–';
}
