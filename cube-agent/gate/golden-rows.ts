/**
 * Golden rows: JSON rows a line, as golden.jsonl has them and as serving records them. Read as a stream; of more rows than are
 * wanted a sample is kept, the same for the same file, in the file's order.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readLines } from '../../lib/platform/text-lines.ts';

/** As long as serving takes them. */
const LINE_BYTES_MAX = 256 << 10;
/** Named in one error. */
const DAMAGED_SHOWN_MAX = 5;
export const NO_LABEL = 2;

export interface GoldenRow {
  /** From 1. */
  readonly line: number;
  /** The row as serving takes it. */
  readonly value: object;
  /** 0, 1, or NO_LABEL. */
  readonly label: number;
  /** Hashed and scaled already: such rows are sent apart from others. */
  readonly isKeyed: boolean;
}

export interface GoldenRows {
  /** A file, or a version's own. */
  readonly source: string;
  readonly rows: readonly GoldenRow[];
  /** Rows that there were to choose from. */
  readonly total: number;
}

/** @throws CubeError INVALID_ARGUMENT naming damaged lines, TOO_LARGE for one without end, NOT_FOUND */
export function readGoldenFile(path: string, rowsMax: number): Promise<GoldenRows> {
  return takeRows(readLines(path, LINE_BYTES_MAX), path, rowsMax);
}

/** The same of a file that is in memory. */
export function readGoldenText(text: string, source: string, rowsMax: number): Promise<GoldenRows> {
  return takeRows(text.split('\n'), source, rowsMax);
}

async function takeRows(
  lines: AsyncIterable<string> | Iterable<string>,
  source: string,
  rowsMax: number,
): Promise<GoldenRows> {
  const rows: GoldenRow[] = [];
  const damaged: string[] = [];
  const random = pseudoRandom();
  let line = 0;
  let total = 0;
  for await (const text of lines) {
    line += 1;
    if (text.trim() === '') continue;
    try {
      const row = readRow(text, line, source);
      total += 1;
      // Algorithm R: each row stays with the same chance.
      const place = total <= rowsMax ? rows.length : Math.floor(random() * total);
      if (place < rowsMax) rows[place] = row;
    } catch (error) {
      damaged.push(CubeError.from(error).message);
      if (damaged.length === DAMAGED_SHOWN_MAX) break;
    }
  }
  if (damaged.length > 0) throw damagedError(damaged);
  if (total === 0) throw new CubeError('INVALID_ARGUMENT', `${source}: no rows`);
  rows.sort((a, b) => a.line - b.line);
  return { source, rows, total };
}

function readRow(text: string, line: number, source: string): GoldenRow {
  const json: JsonReader = JsonReader.parse(text, `${source}, line ${line}`);
  const value = json.value;
  if (typeof value !== 'object' || value === null || Array.isArray(value)) json.fail('an object');
  const label = json.optional('label', (field) => field.integer(0, 1)) ?? NO_LABEL;
  const isKeyed = Object.hasOwn(value, 'keys') && Object.hasOwn(value, 'scaled');
  return { line, value, label, isKeyed };
}

/** @param damaged what each damaged line says; one line of text */
export function damagedError(damaged: readonly string[]): CubeError {
  const shown = damaged.slice(0, DAMAGED_SHOWN_MAX).join('; ');
  return new CubeError(
    'INVALID_ARGUMENT',
    `golden rows that cannot be replayed: ${shown}; correct or remove the lines`,
  );
}

/** Values in [0, 1), the same at every run. */
function pseudoRandom(): () => number {
  let state = 0x9e3779b9;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}
