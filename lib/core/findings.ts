/** Findings of checks: what is wrong, where, and what to do about it. */
import type { ErrorCode } from './errors.ts';

/**
 * error: broken, or it breaks with the next failure; warning: it may break soon; note: for
 * information, nothing has to be done.
 */
const SEVERITIES = ['error', 'warning', 'note'] as const;

export type Severity = (typeof SEVERITIES)[number];

export interface Finding {
  readonly severity: Severity;
  /** A stable name for programs, such as "server-down"; docs/operations.md lists them. */
  readonly check: string;
  /** A file, a URL, a server, or an object such as "version 3, table users, shard 1". */
  readonly where: string;
  readonly what: string;
  /** What to do about it, as a command line if one does it. Empty if nothing has to be done. */
  readonly todo: string;
  /** The code of the error behind the finding. */
  readonly code?: ErrorCode | undefined;
}

export type ReportFinding = (finding: Finding) => void;

/** Whether nothing has to be done: there are no findings but notes. */
export function areOnlyNotes(findings: readonly Finding[]): boolean {
  return findings.every(({ severity }) => severity === 'note');
}

/** The worst first; findings of one severity keep their order. */
export function sortFindings(findings: readonly Finding[]): Finding[] {
  return [...findings].sort(
    (a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity),
  );
}
