/** What a check found: problems, which make the exit code 1, and notes, which do not; and how much it looked at. */
import { CubeError } from '../../lib/core/errors.ts';
import { bytesText } from '../../lib/platform/text-table.ts';

export interface Finding {
  /** A file, a URL or a server. */
  readonly place: string;
  /** What is wrong and what to do. */
  readonly message: string;
  readonly code: string;
  /** Number of the damaged block of 1 MiB, and where it begins in the file. */
  readonly block?: number;
  readonly offset?: number;
}

export interface Checked {
  versions: number;
  layers: number;
  files: number;
  channels: number;
  servers: number;
  bytes: number;
}

export class Findings {
  readonly problems: Finding[] = [];
  readonly notes: Finding[] = [];
  readonly checked: Checked = {
    ...{ versions: 0, layers: 0, files: 0, channels: 0, servers: 0, bytes: 0 },
  };
  readonly #onBytes: (bytes: number) => void;

  /** @param onBytes told all bytes checked so far */
  constructor(onBytes: (bytes: number) => void) {
    this.#onBytes = onBytes;
  }

  problem(place: string, message: string, code = 'CORRUPT'): void {
    this.problems.push({ place, message, code });
  }

  /** The problem that an error tells of. */
  failed(place: string, thrown: unknown, where: { block?: number; offset?: number } = {}): void {
    const { code, message } = CubeError.from(thrown);
    this.problems.push({ place, message, code, ...where });
  }

  note(place: string, message: string): void {
    this.notes.push({ place, message, code: 'NOTE' });
  }

  addBytes(bytes: number): void {
    this.checked.bytes += bytes;
    this.#onBytes(this.checked.bytes);
  }
}

/** The findings for people: each with its place, then what was looked at. */
export function findingsText({ problems, notes, checked }: Findings): string {
  const lines: string[] = [];
  const add = (kind: string, { place, message }: Finding): void => {
    // Most messages begin with the place that they are about.
    lines.push(`${kind}  ${message.includes(place) ? message : `${place}: ${message}`}`);
  };
  for (const problem of problems) add('problem', problem);
  for (const note of notes) add('note   ', note);
  const { bytes, ...counts } = checked;
  const parts = Object.entries(counts)
    .filter(([, count]) => count > 0)
    .map(([name, count]) => `${count} ${count === 1 ? name.slice(0, -1) : name}`);
  if (bytes > 0) parts.push(bytesText(bytes));
  const found = problems.length === 1 ? '1 problem' : `${problems.length} problems`;
  const verdict = problems.length === 0 ? 'sound' : found;
  lines.push(`${verdict}: checked ${parts.length === 0 ? 'nothing' : parts.join(', ')}`);
  return lines.join('\n');
}

export function findingsJson(target: string, { problems, notes, checked }: Findings): string {
  const sound = problems.length === 0;
  return JSON.stringify({ target, sound, checked, problems, notes });
}
