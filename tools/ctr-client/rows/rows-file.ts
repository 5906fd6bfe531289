/**
 * The rows of a file or of standard input as the client needs them: what to send, and labels to measure by. Lines of tab-separated
 * columns stay lines; JSON rows (docs/wire/serving.md), as golden.jsonl has them, are by position, by name or of keys. What values
 * mean is the model's matter.
 */
import type { CtrKeyRow, CtrNamedRow, CtrPositionalRow } from '../../../lib/client/ctr-rows.ts';
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import { readLines } from '../../../lib/platform/text-lines.ts';

/** Rows of one kind. */
export type RowValues =
  | { readonly kind: 'lines'; readonly values: readonly string[] }
  | { readonly kind: 'positions'; readonly values: readonly CtrPositionalRow[] }
  | { readonly kind: 'names'; readonly values: readonly CtrNamedRow[] }
  | { readonly kind: 'keys'; readonly values: readonly CtrKeyRow[] };

export type RowKind = RowValues['kind'];

export interface RowsFile {
  /** What to call it in errors. */
  readonly source: string;
  readonly rows: RowValues;
  readonly count: number;
  /** One a row; undefined when rows have none. */
  readonly labels: Uint8Array | undefined;
}

/** All rows are held, so that passes can be repeated and answers be put beside them. */
const CHARS_MAX = 500_000_000;

/**
 * @param path "-" is standard input
 * @param columns of a line without its label, as the model wants them
 * @param limit rows to take at most
 * @throws CubeError naming source and row
 */
export async function readRowsFile(
  path: string,
  columns: number,
  limit: number,
): Promise<RowsFile> {
  const source = path === '-' ? 'standard input' : path;
  const lines: string[] = [];
  let chars = 0;
  for await (const line of readLines(path)) {
    chars += line.length;
    if (chars > CHARS_MAX) {
      const most = `more than ${CHARS_MAX} characters; send it in parts, or take the first rows`;
      throw new CubeError('TOO_LARGE', `${source}: ${most} with --limit`);
    }
    lines.push(line);
    if (lines.length === limit) break;
  }
  while (lines.at(-1) === '') lines.pop();
  if (lines.length === 0) {
    throw new CubeError('INVALID_ARGUMENT', `${source}: no rows: the file is empty`);
  }
  const isJson = lines[0]!.trimStart().startsWith('{');
  return isJson ? jsonRows(lines, source) : lineRows(lines, source, columns);
}

function lineRows(values: readonly string[], source: string, columns: number): RowsFile {
  const first = countColumns(values[0]!);
  if (first !== columns && first !== columns + 1) {
    const both = `${columns + 1} tab-separated columns with label, or ${columns} without`;
    refuseColumns(source, 0, both, first);
  }
  const labels = first === columns + 1 ? new Uint8Array(values.length) : undefined;
  values.forEach((line, row) => {
    const got = countColumns(line);
    if (got !== first) {
      refuseColumns(source, row, `${first} tab-separated columns like the first row`, got);
    }
    if (labels === undefined) return;
    const label = line.slice(0, line.indexOf('\t'));
    if (label !== '0' && label !== '1') {
      const shown = JSON.stringify(label.slice(0, 40));
      refuse(source, row, `, column 1 (label): expected 0 or 1, got ${shown}`);
    }
    labels[row] = label === '1' ? 1 : 0;
  });
  return { source, rows: { kind: 'lines', values }, count: values.length, labels };
}

function jsonRows(lines: readonly string[], source: string): RowsFile {
  const labels = new Uint8Array(lines.length);
  let labelled = 0;
  let kind: RowKind | undefined;
  const values = lines.map((line, row) => {
    const json = JsonReader.parse(line, `${source}: row ${row + 1}`);
    const label = json.optional('label', (field) => field.integer(0, 1));
    labels[row] = label ?? 0;
    if (label !== undefined) labelled++;
    const own = kindOf(json);
    kind ??= own;
    if (own !== kind) {
      refuse(
        source,
        row,
        `: is given by its ${own}, the first row by its ${kind}: one way for all`,
      );
    }
    return own === 'keys' ? keyRow(json) : unlabelled(json.value as CtrNamedRow);
  });
  if (labelled > 0 && labelled < lines.length) {
    refuse(
      source,
      lines.length - 1,
      `: ${labelled} of ${lines.length} rows have a label: all or none`,
    );
  }
  return {
    source,
    rows: { kind: kind!, values } as RowValues,
    count: values.length,
    labels: labelled === 0 ? undefined : labels,
  };
}

function kindOf(json: JsonReader): RowKind {
  if (!json.field('keys').missing && !json.field('scaled').missing) return 'keys';
  return Array.isArray(json.field('categorical').value) ? 'positions' : 'names';
}

function unlabelled({ label: _, ...row }: CtrNamedRow): CtrNamedRow {
  return row;
}

function keyRow(json: JsonReader): CtrKeyRow {
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

function refuseColumns(source: string, row: number, expected: string, got: number): never {
  refuse(source, row, `: expected ${expected}, got ${got}; is it a file of rows for this model?`);
}

function refuse(source: string, row: number, what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `${source}: row ${row + 1}${what}`);
}
