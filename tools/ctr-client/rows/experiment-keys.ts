/** The experiment keys of rows: a column of the rows, or drawn at random for each request. */
import { randomUUID } from 'node:crypto';
import { CubeError } from '../../../lib/core/errors.ts';
import { isHeaderText } from '../../../lib/core/header-text.ts';
import { EXPERIMENT_KEY, EXPERIMENT_KEY_CHARS_MAX } from '../../../proto/ctr.ts';
import type { RowsFile } from './rows-file.ts';

/**
 * The key of a row when requests have at most `batchRows` rows; '' is none. Rows with different
 * keys are sent in different requests.
 */
export type RowKeys = (row: number, batchRows: number) => string;

/** The value of --experiment-key that draws a key for each request. */
const RANDOM = 'random';
/** What metadata of gRPC can carry. */
const PRINTABLE_ASCII = /^[\x20-\x7e]*$/;

export const NO_KEYS: RowKeys = () => '';

/**
 * @param source `random`, the number of a column of tab-separated lines (from 1), or the name of a
 *   feature of rows by name
 * @param isAscii whether the protocol carries only ASCII
 * @throws CubeError naming source and row
 */
export function readRowKeys(rows: RowsFile, source: string, isAscii: boolean): RowKeys {
  if (source === RANDOM) {
    const run = randomUUID();
    return (row, batchRows) => `${run}-${Math.floor(row / batchRows)}`;
  }
  const keys = readColumn(rows, source);
  const canCarry = isAscii ? (key: string) => PRINTABLE_ASCII.test(key) : isHeaderText;
  keys.forEach((key, row) => {
    if (canCarry(key) && key.length <= EXPERIMENT_KEY_CHARS_MAX) return;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${rows.source}: row ${row + 1}: ${EXPERIMENT_KEY} takes at most ` +
        `${EXPERIMENT_KEY_CHARS_MAX} printable ${isAscii ? 'ASCII ' : ''}characters` +
        `${isAscii ? ' over gRPC' : ''}, got ` +
        JSON.stringify(key.slice(0, 40)),
    );
  });
  return (row) => keys[row] ?? '';
}

function readColumn({ rows, source, labels }: RowsFile, name: string): string[] {
  if (rows.kind === 'names') {
    if (rows.values.some((row) => Object.hasOwn(row, name))) {
      return rows.values.map((row, at) => toKey(row[name], `${source}: row ${at + 1}: ${name}`));
    }
    throw new CubeError('NOT_FOUND', `--experiment-key: no row of ${source} has ${name}`);
  }
  if (rows.kind !== 'lines') {
    throw new CubeError(
      'UNSUPPORTED',
      `--experiment-key ${name} needs tab-separated rows or rows by name; ` +
        `${source} has rows by ${rows.kind}: use --experiment-key ${RANDOM}`,
    );
  }
  const [first = ''] = rows.values;
  const columns = first.split('\t').length;
  const column = Number(name);
  const min = labels === undefined ? 1 : 2;
  if (!Number.isInteger(column) || column < min || column > columns) {
    const label = labels === undefined ? '' : '; column 1 is the label';
    throw new CubeError(
      'INVALID_ARGUMENT',
      `--experiment-key ${name}: expected ${RANDOM}, or a column of ${source}, ` +
        `${min} to ${columns}${label}`,
    );
  }
  return rows.values.map((line) => line.split('\t', column)[column - 1] ?? '');
}

function toKey(value: unknown, location: string): string {
  if (value === undefined || value === null) return '';
  if (typeof value === 'string' || typeof value === 'number') return String(value);
  throw new CubeError('INVALID_ARGUMENT', `${location}: expected one value as experiment key`);
}
