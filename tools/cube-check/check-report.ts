/** Collects what a check finds and how much it checked, and prints both. */
import { CubeError, type ErrorCode } from '../../lib/core/errors.ts';
import type { Finding } from '../../lib/core/findings.ts';
import { formatBytes } from '../../lib/platform/terminal-output.ts';

/** Number of a damaged block of 1 MiB, and its offset in the file. */
interface BlockLocation {
  readonly block?: number;
  readonly offset?: number;
}

/** A finding as it is printed. The fields are a contract: `--json` prints them. */
interface PrintedFinding extends BlockLocation {
  /** A file, a URL or a server. */
  readonly place: string;
  /** What is wrong, and what to do about it. */
  readonly message: string;
  readonly code: string;
}

interface CheckedCounts {
  versions: number;
  layers: number;
  files: number;
  channels: number;
  servers: number;
  bytes: number;
}

export class CheckReport {
  /** Errors; with at least one the exit code is 1. */
  readonly problems: PrintedFinding[] = [];
  /** Warnings and notes. */
  readonly notes: PrintedFinding[] = [];
  readonly checked: CheckedCounts = {
    versions: 0,
    layers: 0,
    files: 0,
    channels: 0,
    servers: 0,
    bytes: 0,
  };
  readonly #onBytes: (bytes: number) => void;

  /** @param onBytes called with the number of all bytes checked so far */
  constructor(onBytes: (bytes: number) => void) {
    this.#onBytes = onBytes;
  }

  /** Adds a finding of the checks that doctor shares: an error is a problem, the rest are notes. */
  add({ severity, where, what, todo, code = 'CORRUPT' }: Finding): void {
    if (severity === 'error') this.addProblem(where, what, { todo, code });
    else this.addNote(where, what);
  }

  addProblem(
    where: string,
    what: string,
    details: { todo?: string; code?: ErrorCode; location?: BlockLocation } = {},
  ): void {
    const { todo = '', code = 'CORRUPT', location = {} } = details;
    const message = todo === '' ? what : `${what}; ${todo}`;
    this.problems.push({ place: where, message: addPlace(message, where), code, ...location });
  }

  /** Adds a problem described by an error. */
  addError(where: string, thrown: unknown, location: BlockLocation = {}): void {
    const { code, message } = CubeError.from(thrown);
    this.addProblem(where, message, { code, location });
  }

  addNote(where: string, what: string): void {
    this.notes.push({ place: where, message: what, code: 'NOTE' });
  }

  addBytes(bytes: number): void {
    this.checked.bytes += bytes;
    this.#onBytes(this.checked.bytes);
  }
}

/** Error messages mostly name the place already. */
function addPlace(message: string, place: string): string {
  return message.includes(place) ? message : `${place}: ${message}`;
}

/** One line for each finding, then one line with the result and what was checked. */
export function formatReport({ problems, notes, checked }: CheckReport): string {
  const lines = [
    ...problems.map(({ place, message }) => `problem  ${addPlace(message, place)}`),
    ...notes.map(({ place, message }) => `note     ${addPlace(message, place)}`),
  ];
  const { bytes, ...counts } = checked;
  const parts = Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([name, count]) => `${count} ${count === 1 ? name.slice(0, -1) : name}`);
  if (bytes > 0) parts.push(formatBytes(bytes));
  const count = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const result = problems.length === 0 ? 'sound' : count;
  lines.push(`${result}: checked ${parts.length === 0 ? 'nothing' : parts.join(', ')}`);
  return lines.join('\n');
}

export function formatReportJson(
  target: string,
  { problems, notes, checked }: CheckReport,
): string {
  return JSON.stringify({ target, sound: problems.length === 0, checked, problems, notes });
}
