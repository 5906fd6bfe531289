/**
 * Reads rows and labels from a file or standard input. Tab-separated lines stay lines; JSON rows
 * (docs/wire/serving.md), as in golden.jsonl, are by position, by name or as keys. The model
 * decides what values mean.
 */

import type { CtrKeyRow, CtrNamedRow, CtrPositionalRow } from '../../../lib/client/ctr-rows.ts';
import { CubeError, requireDefined } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { nameInput, readLines } from '../../../lib/platform/text-lines.ts';

/** Rows in one form. */
export type RowValues =
  | { readonly kind: 'lines'; readonly values: readonly string[] }
  | { readonly kind: 'positions'; readonly values: readonly CtrPositionalRow[] }
  | { readonly kind: 'names'; readonly values: readonly CtrNamedRow[] }
  | { readonly kind: 'keys'; readonly values: readonly CtrKeyRow[] }
  /** Rows of a recording; those of one request have one form. */
  | {
      readonly kind: 'positions and keys';
      readonly values: readonly (CtrPositionalRow | CtrKeyRow)[];
    };

export type RowKind = RowValues['kind'];

export interface RowsFile {
  /** Name for error messages. */
  readonly source: string;
  readonly rows: RowValues;
  readonly count: number;
  /** Label of each row; undefined without labels. */
  readonly labels: Uint8Array | undefined;
}

/** All rows are held in memory, so that they can be sent repeatedly. */
const CHARS_MAX = 500_000_000;

/**
 * @param path "-" is standard input
 * @param columns expected columns of a line without its label
 * @param limit maximum rows to read
 * @throws CubeError naming source and row
 */
export async function readRowsFile(
  path: string,
  columns: number,
  limit: number,
): Promise<RowsFile> {
  const { lines, source } = await readFileLines(path, limit);
  return lines[0]?.trimStart().startsWith('{')
    ? parseJsonLines(lines, source)
    : readTsvRows(lines, source, columns);
}

/** @throws CubeError when the file cannot be read or has no rows */
export async function readFileLines(
  path: string,
  limit: number,
): Promise<{ lines: string[]; source: string }> {
  const source = nameInput(path);
  const lines: string[] = [];
  let chars = 0;
  for await (const line of readLines(path)) {
    chars += line.length;
    if (chars > CHARS_MAX) {
      throw new CubeError(
        'TOO_LARGE',
        `${source} has more than ${CHARS_MAX} characters; split it, or use --limit`,
      );
    }
    lines.push(line);
    if (lines.length === limit) break;
  }
  while (lines.at(-1) === '') lines.pop();
  if (lines.length > 0) return { lines, source };
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${source}: the file is empty; expected at least one row`,
  );
}

function readTsvRows(values: readonly string[], source: string, columns: number): RowsFile {
  const first = countColumns(values[0] ?? '');
  if (first !== columns && first !== columns + 1) {
    const both = `${columns + 1} tab-separated columns with label, or ${columns} without`;
    throwWrongColumns(source, 0, both, first);
  }
  const labels = first === columns + 1 ? new Uint8Array(values.length) : undefined;
  values.forEach((line, row) => {
    const got = countColumns(line);
    if (got !== first) {
      throwWrongColumns(source, row, `${first} tab-separated columns like the first row`, got);
    }
    if (labels === undefined) return;
    const label = line.slice(0, line.indexOf('\t'));
    if (label !== '0' && label !== '1') {
      const shown = JSON.stringify(label.slice(0, 40));
      throwInvalidRow(source, row, `, column 1 (label): expected 0 or 1, got ${shown}`);
    }
    labels[row] = label === '1' ? 1 : 0;
  });
  return { source, rows: { kind: 'lines', values }, count: values.length, labels };
}

/**
 * @param mayDiffer whether rows by position and rows of keys may stand in one file
 * @returns the rows, and the time `at` of each, NaN without one
 */
export function parseJsonLines(
  lines: readonly string[],
  source: string,
  mayDiffer = false,
): RowsFile & { readonly times: Float64Array } {
  const labels = new Uint8Array(lines.length);
  const times = new Float64Array(lines.length).fill(Number.NaN);
  let labelled = 0;
  let kind: RowKind | undefined;
  const values: (CtrKeyRow | CtrPositionalRow | CtrNamedRow)[] = [];
  for (const [row, line] of lines.entries()) {
    const json = JsonReader.parse(line, `${source}: row ${row + 1}`);
    const label = json.optional('label', (field) => field.integer(0, 1));
    labels[row] = label ?? 0;
    if (label !== undefined) labelled++;
    const own = detectRowKind(json);
    kind ??= own;
    if (own !== kind && mayDiffer && own !== 'names') kind = 'positions and keys';
    else if (own !== kind) {
      throwInvalidRow(
        source,
        row,
        ` is given by ${own}, but the first row by ${kind}; use one form for all rows`,
      );
    }
    if (own === 'names') values.push(withoutLabel(json.value as CtrNamedRow));
    else {
      times[row] = json.optional('at', (field) => field.number()) ?? Number.NaN;
      values.push(own === 'keys' ? readKeyRow(json) : withoutTime(json.value as CtrPositionalRow));
    }
  }
  if (labelled > 0 && labelled < lines.length) {
    throwInvalidRow(
      source,
      lines.length - 1,
      `: ${labelled} of ${lines.length} rows have a label; label all rows or none`,
    );
  }
  return {
    source,
    rows: { kind: requireDefined(kind, 'the form of the rows'), values } as RowValues,
    count: values.length,
    labels: labelled === 0 ? undefined : labels,
    times,
  };
}

function detectRowKind(json: JsonReader): 'keys' | 'positions' | 'names' {
  if (!json.field('keys').isMissing && !json.field('scaled').isMissing) return 'keys';
  return Array.isArray(json.field('categorical').value) ? 'positions' : 'names';
}

function withoutLabel({ label: _, ...row }: CtrNamedRow): CtrNamedRow {
  return row;
}

/** A row by position, without what requests do not need. */
function withoutTime(
  given: CtrPositionalRow & { label?: unknown; at?: unknown },
): CtrPositionalRow {
  const { label: _, at: __, ...row } = given;
  return row;
}

function readKeyRow(json: JsonReader): CtrKeyRow {
  const keys = json
    .field('keys')
    .items()
    .map((field) =>
      Array.isArray(field.value) ? field.items().map((key) => key.u64()) : field.u64(),
    );
  return {
    keys,
    scaled: json
      .field('scaled')
      .items()
      .map((field) => field.number()),
  };
}

function countColumns(line: string): number {
  let columns = 1;
  for (let at = line.indexOf('\t'); at >= 0; at = line.indexOf('\t', at + 1)) columns++;
  return columns;
}

function throwWrongColumns(source: string, row: number, expected: string, got: number): never {
  throwInvalidRow(
    source,
    row,
    `: expected ${expected}, got ${got}; is this file meant for this model?`,
  );
}

function throwInvalidRow(source: string, row: number, what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `${source}: row ${row + 1}${what}`);
}
