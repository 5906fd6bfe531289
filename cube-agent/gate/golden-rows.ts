/**
 * Golden rows: one JSON row per line, as in golden.jsonl and in the recordings of serving. They are
 * read as a stream. A file with too many rows is sampled, deterministically and in file order.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { splitGoldenRow } from '../../lib/core/golden-row.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { readLines } from '../../lib/platform/text-lines.ts';

/** The limit of serving for one row. */
const LINE_BYTES_MAX = 256 << 10;
/** Invalid lines that one error names. */
const INVALID_SHOWN_MAX = 5;
export const NO_LABEL = 2;

export interface GoldenRow {
  /** Line number, from 1. */
  readonly line: number;
  /** The row as a request of serving has it. */
  readonly value: object;
  /** 0, 1, or NO_LABEL. */
  readonly label: number;
  /** The score that the trained model gives the row; NaN: unknown. */
  readonly score: number;
  /** Already hashed and scaled. Such rows are sent in requests of their own. */
  readonly isKeyed: boolean;
}

export interface GoldenRows {
  /** Name of the file, for messages. */
  readonly source: string;
  readonly rows: readonly GoldenRow[];
  /** Rows of the file before sampling. */
  readonly total: number;
}

export interface GoldenOptions {
  /** Rows of the sample. */
  readonly rowsMax: number;
  /** Whether the field `score` of a row is a feature of the model. */
  readonly hasScoreFeature?: boolean;
}

/** @throws CubeError INVALID_ARGUMENT naming invalid lines, TOO_LARGE for a long line, NOT_FOUND */
export function readGoldenFile(path: string, options: GoldenOptions): Promise<GoldenRows> {
  return sampleRows(readLines(path, LINE_BYTES_MAX), path, options);
}

/** Like `readGoldenFile`, for text in memory. */
export function readGoldenText(
  text: string,
  source: string,
  options: GoldenOptions,
): Promise<GoldenRows> {
  return sampleRows(text.split('\n'), source, options);
}

async function sampleRows(
  lines: AsyncIterable<string> | Iterable<string>,
  source: string,
  { rowsMax, hasScoreFeature = false }: GoldenOptions,
): Promise<GoldenRows> {
  const rows: GoldenRow[] = [];
  const damaged: string[] = [];
  const random = createSeededRandom();
  let line = 0;
  let total = 0;
  for await (const text of lines) {
    line += 1;
    if (text.trim() === '') continue;
    try {
      const row = readRow(text, `${source}, line ${line}`, { line, hasScoreFeature });
      total += 1;
      // Algorithm R: every row is kept with the same probability.
      const index = total <= rowsMax ? rows.length : Math.floor(random() * total);
      if (index < rowsMax) rows[index] = row;
    } catch (error) {
      damaged.push(CubeError.from(error).message);
      if (damaged.length === INVALID_SHOWN_MAX) break;
    }
  }
  if (damaged.length > 0) throw invalidRowsError(damaged);
  if (total === 0) throw new CubeError('INVALID_ARGUMENT', `${source}: no rows`);
  rows.sort((a, b) => a.line - b.line);
  return { source, rows, total };
}

function readRow(
  text: string,
  place: string,
  { line, hasScoreFeature }: { line: number; hasScoreFeature: boolean },
): GoldenRow {
  const given: unknown = JsonReader.parseFile(text, place).value;
  const { row: value, score } = hasScoreFeature
    ? { row: given, score: Number.NaN }
    : splitGoldenRow(given, place);
  const json: JsonReader = JsonReader.of(value, place);
  if (typeof value !== 'object' || value === null || Array.isArray(value)) json.fail('an object');
  const label = json.optional('label', (field) => field.integer(0, 1)) ?? NO_LABEL;
  const isKeyed = Object.hasOwn(value, 'keys') && Object.hasOwn(value, 'scaled');
  return { line, value, label, score, isKeyed };
}

/** @param damaged an error message for each invalid line */
export function invalidRowsError(damaged: readonly string[]): CubeError {
  const shown = damaged.slice(0, INVALID_SHOWN_MAX).join('; ');
  return new CubeError(
    'INVALID_ARGUMENT',
    `golden rows are invalid: ${shown}; correct these lines, or pass a file ` +
      'with one JSON object per line, as golden.jsonl and serving --record have',
  );
}

/** Pseudo-random values in [0, 1), the same in every run. */
function createSeededRandom(): () => number {
  let state = 0x9e3779b9;
  return () => {
    state ^= state << 13;
    state ^= state >>> 17;
    state ^= state << 5;
    return (state >>> 0) / 2 ** 32;
  };
}
