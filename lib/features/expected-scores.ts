/**
 * Expected scores of raw rows, and their comparison with the scores of a version. They come from
 * the training side: `rows.tsv:scores.csv` (rows as requests have them, and a file of scores), or
 * JSON lines in which each row has a field `score`.
 */
import { CubeError } from '../core/errors.ts';
import type { LabelledFeatureRows, LabelledKeyedRows } from '../core/feature-rows.ts';
import { hasScoreFeature, SCORE_FIELD, splitGoldenRow } from '../core/golden-row.ts';
import { JsonReader } from '../core/json.ts';
import { parseJsonRows } from '../core/json-rows.ts';
import type { FeatureSpec } from '../core/slots.ts';
import { parseTsvRows } from '../core/tsv-rows.ts';
import { fileExists, readText } from '../platform/files.ts';
import { type RowScorer, SCORED_ROWS_MAX } from './row-scorer.ts';

/** Default tolerance: the largest absolute difference of a score from the expected one. */
export const SCORE_TOLERANCE = 1e-5;
const FILE_BYTES_MAX = 256 << 20;
/** Rows that one error names. */
const SHOWN_MAX = 3;
/** Names of the score column in a file with a header, as ctr-client and others write it. */
const SCORE_COLUMNS: readonly string[] = [SCORE_FIELD, 'probability', 'prob'];

/** A row and the score that training gives it. */
export interface ExpectedRow {
  /** Line number in the file of rows, from 1. */
  readonly line: number;
  /** A line of tab-separated columns, or a JSON row. */
  readonly row: unknown;
  readonly score: number;
}

export interface ExpectedScores {
  /** Name of the file of rows in errors. */
  readonly source: string;
  readonly rows: readonly ExpectedRow[];
}

export interface ScoreComparison {
  readonly rows: number;
  readonly maxAbsDifference: number;
}

/** "120 raw rows, largest difference 3.0e-8" */
export function describeComparison({ rows, maxAbsDifference }: ScoreComparison): string {
  return `${rows} raw rows, largest difference ${maxAbsDifference.toExponential(1)}`;
}

/**
 * @param argument `rows:scores`, two paths; or the path of JSON lines with scores
 * @throws CubeError INVALID_ARGUMENT naming the line that is wrong
 */
export function readExpectedScores(argument: string, features: FeatureSpec): ExpectedScores {
  const [rows, scores] = splitArgument(argument);
  if (scores !== undefined) return pairScores(rows, scores);
  const text = readText(rows, FILE_BYTES_MAX);
  checkLines(text, rows, features);
  const expected = readScoredLines(text, rows, features);
  const total = expected.rows.length;
  if (total > 0) return expected;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${rows}: no row has a field "score"; add the scores of the trained model, or give them in a ` +
      'second file: rows.tsv:scores.csv',
  );
}

/** The rows of JSON lines that have a score; rows without one are left out. */
export function readScoredLines(
  text: string,
  source: string,
  features: FeatureSpec,
): ExpectedScores {
  const isFeature = hasScoreFeature(features);
  const rows: ExpectedRow[] = [];
  for (const [i, line] of text.split('\n').entries()) {
    if (isFeature || !line.includes(`"${SCORE_FIELD}"`)) continue;
    const place = `${source}, line ${i + 1}`;
    const { row, score } = splitGoldenRow(JsonReader.parseFile(line, place).value, place);
    if (!Number.isNaN(score)) rows.push({ line: i + 1, row, score });
  }
  return { source, rows };
}

/** Refuses rows with unknown fields, such as a misspelled score, which would be left out. */
function checkLines(text: string, source: string, features: FeatureSpec): void {
  const isFeature = hasScoreFeature(features);
  for (const [i, line] of text.split('\n').entries()) {
    if (line.trim() === '') continue;
    const place = `${source}, line ${i + 1}`;
    if (!line.trimStart().startsWith('{')) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${place}: not a JSON object; tab-separated rows need a second file with their scores: ` +
          `${source}:scores.csv`,
      );
    }
    const { value } = JsonReader.parseFile(line, place);
    const row = isFeature ? value : splitGoldenRow(value, place).row;
    parseJsonRows(JsonReader.of([row], place), features, 1);
  }
}

function splitArgument(argument: string): [rows: string, scores: string | undefined] {
  if (fileExists(argument)) return [argument, undefined];
  const at = argument.lastIndexOf(':');
  if (at > 0) return [argument.slice(0, at), argument.slice(at + 1)];
  throw new CubeError('NOT_FOUND', `--expect ${argument}: there is no such file`);
}

function pairScores(rowsPath: string, scoresPath: string): ExpectedScores {
  const lines = readLines(rowsPath);
  const scores = parseScores(readLines(scoresPath), scoresPath);
  if (lines.length === 0 || lines.length !== scores.length) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${rowsPath} has ${lines.length} rows and ${scoresPath} ${scores.length} scores; every row ` +
        'needs one score, in the same order',
    );
  }
  const isJson = lines[0]!.startsWith('{');
  const rows = lines.map((text, i): ExpectedRow => {
    const line = i + 1;
    const row = isJson ? JsonReader.parseFile(text, `${rowsPath}, line ${line}`).value : text;
    return { line, row, score: scores[i]! };
  });
  return { source: rowsPath, rows };
}

/** Lines of a file, without the last line break. */
function readLines(path: string): string[] {
  const text = readText(path, FILE_BYTES_MAX).replaceAll('\r\n', '\n');
  if (text === '') return [];
  return (text.endsWith('\n') ? text.slice(0, -1) : text).split('\n');
}

/** One score per line, or columns of which the header names one `score` or `probability`. */
function parseScores(lines: readonly string[], source: string): number[] {
  const names = splitColumns(lines[0] ?? '').map((name) => name.replaceAll('"', '').trim());
  const hasHeader = names.some((name) => name === '' || Number.isNaN(Number(name)));
  const named = names.findIndex((name) => SCORE_COLUMNS.includes(name));
  if (names.length > 1 && named < 0) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source}: several columns, and no header that names one "score" or "probability"`,
    );
  }
  const column = Math.max(named, 0);
  return lines.slice(hasHeader ? 1 : 0).map((line, i) => {
    const text = splitColumns(line)[column]?.trim() ?? '';
    const score = text === '' ? Number.NaN : Number(text);
    if (Number.isFinite(score)) return score;
    const number = i + (hasHeader ? 2 : 1);
    const shown = JSON.stringify(text.slice(0, 40));
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${source}, line ${number}: expected a score, got ${shown}`,
    );
  });
}

function splitColumns(line: string): string[] {
  return line.split(/[\t,;]/);
}

/**
 * Scores all rows and compares them. @param tolerance largest absolute difference
 * @throws CubeError INVALID_ARGUMENT naming the rows that differ by more, or cannot be scored
 */
export async function compareScores(
  scorer: RowScorer,
  { source, rows }: ExpectedScores,
  tolerance: number,
): Promise<ScoreComparison> {
  let worst = 0;
  const misses: string[] = [];
  let missed = 0;
  for (const chunk of splitRows(rows)) {
    const actual = await scoreRows(scorer, chunk, source);
    chunk.forEach(({ line, score }, i) => {
      const difference = Math.abs(actual[i]! - score);
      // A NaN is worse than any difference.
      if (difference <= tolerance) worst = Math.max(worst, difference);
      else {
        missed++;
        if (misses.length < SHOWN_MAX)
          misses.push(`line ${line}: ${actual[i]} instead of ${score}`);
      }
    });
  }
  if (missed === 0) return { rows: rows.length, maxAbsDifference: worst };
  throw new CubeError(
    'INVALID_ARGUMENT',
    `the scores of ${missed} of ${rows.length} raw rows of ${source} differ from the expected ` +
      `ones by more than ${tolerance} (${misses.join('; ')}); compare hash, slot indices and ` +
      'dense scaling in features.json with the training script (hypercube features check shows ' +
      'the keys of a row), or give a larger --expect-tolerance, which quantized tables need',
  );
}

/** Runs of rows of the same form, each small enough for one call of the scorer. */
function* splitRows(rows: readonly ExpectedRow[]): Generator<readonly ExpectedRow[]> {
  for (let start = 0; start < rows.length; ) {
    const form = describeForm(rows[start]!);
    let end = start + 1;
    while (
      end < rows.length &&
      end - start < SCORED_ROWS_MAX &&
      describeForm(rows[end]!) === form
    ) {
      end++;
    }
    yield rows.slice(start, end);
    start = end;
  }
}

function describeForm({ row }: ExpectedRow): string {
  if (typeof row === 'string') return 'tsv';
  return typeof row === 'object' && row !== null && Object.hasOwn(row, 'keys') ? 'keys' : 'json';
}

/** Scores some rows; when that fails, row by row, so that the error names the line. */
async function scoreRows(
  scorer: RowScorer,
  rows: readonly ExpectedRow[],
  source: string,
): Promise<Float64Array> {
  try {
    return await scorer.score(parseRows(rows, source, scorer.features));
  } catch (error) {
    const [row, ...others] = rows;
    if (row !== undefined && others.length === 0) {
      const { code, message } = CubeError.from(error);
      throw new CubeError(code, `line ${row.line} of ${source}: ${message}`, { cause: error });
    }
    for (const one of rows) await scoreRows(scorer, [one], source);
    throw error;
  }
}

function parseRows(
  rows: readonly ExpectedRow[],
  source: string,
  features: FeatureSpec,
): LabelledFeatureRows | LabelledKeyedRows {
  const values = rows.map(({ row }) => row);
  if (typeof values[0] === 'string') return parseTsvRows(values.join('\n'), features, rows.length);
  return parseJsonRows(JsonReader.of(values, source), features, rows.length);
}
