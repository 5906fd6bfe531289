/**
 * A recording of serving (`--record`) with the times of its requests. Consecutive rows with the
 * same time `at` came in one request. Requests are recorded when they are answered, so they are
 * sorted by their times here; the rows stay in the order of the file.
 */
import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { parseJsonLines, type RowsFile, readFileLines } from './rows-file.ts';

/** A request of a recording, with the rows start … end (exclusive). */
export interface RecordedRequest {
  readonly start: number;
  readonly end: number;
  /** When it arrived, in milliseconds after the first request. */
  readonly atMs: number;
}

export interface Recording {
  readonly rows: RowsFile;
  /** By time. */
  readonly requests: readonly RecordedRequest[];
}

/**
 * An incomplete last line is left out: its writer was killed, or is still writing.
 * @param limit maximum rows to read
 * @throws CubeError INVALID_ARGUMENT naming file and row: without a time, damaged, no recording
 */
export async function readRecording(path: string, limit: number): Promise<Recording> {
  const { lines, source } = await readFileLines(path, limit);
  const [first = ''] = lines;
  if (!first.trimStart().startsWith('{')) {
    throw withoutTimes(`${source}: row 1 is not JSON`, path);
  }
  if (lines.length > 1 && !isJson(lines.at(-1) ?? '')) lines.pop();
  requireRows(first, source, path);
  const { times, ...rows } = parseJsonLines(lines, source, true);
  const missing = times.findIndex(Number.isNaN);
  if (missing >= 0) throw withoutTimes(`${source}: row ${missing + 1} has no time "at"`, path);
  return { rows, requests: listRequests(times) };
}

function isJson(line: string): boolean {
  try {
    JSON.parse(line);
    return true;
  } catch {
    return false;
  }
}

/** @throws CubeError for a recording of a plain model */
function requireRows(line: string, source: string, path: string): void {
  const json = JsonReader.parse(line, `${source}: row 1`);
  if (json.field('inputs').isMissing) {
    const isRow = !json.field('categorical').isMissing || !json.field('keys').isMissing;
    if (!isRow) throw withoutTimes(`${source}: row 1 is a row by name`, path);
    return;
  }
  throw new CubeError(
    'UNSUPPORTED',
    `--replay: ${source} has requests of a plain model, which take tensors; ` +
      'ctr-client sends rows of features',
  );
}

function withoutTimes(found: string, path: string): CubeError {
  return new CubeError(
    'INVALID_ARGUMENT',
    `--replay needs the times of requests, but ${found}; record them with serving --record, or ` +
      `send the rows at a fixed rate: --rows ${path} --rps 100`,
  );
}

function listRequests(times: Float64Array): RecordedRequest[] {
  const requests: { start: number; end: number; atMs: number }[] = [];
  for (const [row, atMs] of times.entries()) {
    const last = requests.at(-1);
    if (last?.atMs === atMs) last.end = row + 1;
    else requests.push({ start: row, end: row + 1, atMs });
  }
  requests.sort((a, b) => a.atMs - b.atMs);
  const firstMs = requireDefined(requests[0], 'a request').atMs;
  return requests.map((request) => ({ ...request, atMs: request.atMs - firstMs }));
}
