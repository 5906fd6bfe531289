/** A file of Criteo-format rows as the client needs it: lines to send, labels to measure by. Values are the server's matter. */
import { CubeError } from '../../lib/core/errors.ts';
import { readText } from '../../lib/platform/files.ts';

export interface RowsFile {
  readonly path: string;
  readonly lines: readonly string[];
  /** One a row; undefined when the file has no label column. */
  readonly labels: Uint8Array | undefined;
}

const FILE_BYTES_MAX = 500_000_000;

/**
 * @param columns of a row without its label, as the model wants them
 * @param limit rows to take at most
 * @throws CubeError naming file and row
 */
export function readRowsFile(path: string, columns: number, limit: number): RowsFile {
  const lines = readText(path, FILE_BYTES_MAX).split('\n', limit + 1);
  if (lines.at(-1) === '') lines.pop();
  if (lines.length > limit) lines.length = limit;
  if (lines.length === 0) {
    throw new CubeError('INVALID_ARGUMENT', `${path}: no rows: the file is empty`);
  }
  const first = countColumns(lines[0]!);
  if (first !== columns && first !== columns + 1) refuseColumns(path, 0, first, columns);
  const labelled = first === columns + 1;
  const labels = labelled ? new Uint8Array(lines.length) : undefined;
  lines.forEach((line, row) => {
    const got = countColumns(line);
    if (got !== first) refuseColumns(path, row, got, columns, first);
    if (labels === undefined) return;
    const label = line.slice(0, line.indexOf('\t'));
    if (label !== '0' && label !== '1') {
      const shown = JSON.stringify(label.slice(0, 40));
      throw new CubeError(
        'INVALID_ARGUMENT',
        `${path}: row ${row + 1}, column 1 (label): expected 0 or 1, got ${shown}`,
      );
    }
    labels[row] = label === '1' ? 1 : 0;
  });
  return { path, lines, labels };
}

function countColumns(line: string): number {
  let columns = 1;
  for (let at = line.indexOf('\t'); at >= 0; at = line.indexOf('\t', at + 1)) columns++;
  return columns;
}

function refuseColumns(
  path: string,
  row: number,
  got: number,
  columns: number,
  first?: number,
): never {
  const expected =
    first === undefined
      ? `${columns + 1} tab-separated columns with label, or ${columns} without`
      : `${first} tab-separated columns like the first row`;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${path}: row ${row + 1}: expected ${expected}, got ${got}; is it a file of rows for this model?`,
  );
}
