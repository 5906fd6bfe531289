/** What a look at a bundle finds: how bad, what, where, and the command line that helps. */

/** error: it does not work, or will not when something else fails; warning: it soon may not; note: good to know. */
const SEVERITIES = ['error', 'warning', 'note'] as const;

export type Severity = (typeof SEVERITIES)[number];

export interface Finding {
  readonly severity: Severity;
  /** A name for programs, such as "server-down"; docs/operations.md lists them. */
  readonly check: string;
  readonly where: string;
  readonly what: string;
  /** What to do about it, a command line where one does it. */
  readonly todo: string;
}

export type Report = (finding: Finding) => void;

/** Which bundle is looked at, and how to write commands about it. */
export interface Patient {
  readonly repository: string;
  readonly bundle: string;
  readonly channel: string;
}

/** A command line that steers the channel. */
export function channelCommand(
  { repository, bundle, channel }: Patient,
  command: string,
  rest = '',
): string {
  const target = `--repository ${repository} --bundle ${bundle} --channel ${channel}`;
  return `cube-agent ${command} ${target}${rest === '' ? '' : ` ${rest}`}`;
}

/** The worst first; of one severity in the order of the looks. */
export function sortFindings(findings: readonly Finding[]): Finding[] {
  return [...findings].sort(
    (a, b) => SEVERITIES.indexOf(a.severity) - SEVERITIES.indexOf(b.severity),
  );
}
