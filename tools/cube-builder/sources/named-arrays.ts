/**
 * Which of the arrays of a file (or a folder) make tables: each array of floats is one, with the keys of `<name>.keys`,
 * or of `keys` where there is one table only. What is neither is refused by name, unless the caller named its arrays.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { toName } from '../../../lib/core/names.ts';
import { type ArrayPart, isRowType, type TableArrays } from './array-source.ts';
import type { SourceFile } from './row-source.ts';

const KEYS = 'keys';
const KEYS_SUFFIX = '.keys';
/** Names that say nothing: a file with one table is named after the file. */
const PLAIN_NAMES = new Set(['rows', 'values', 'embedding', 'embeddings', 'weight', 'arr_0']);

export interface NamedArray {
  readonly name: string;
  readonly part: ArrayPart;
}

export interface ArraysOptions {
  /** What to call the file in errors. */
  readonly path: string;
  /** The name of a table whose array's name says nothing. */
  readonly fileName: string;
  /** Only these arrays. */
  readonly wanted: readonly string[] | undefined;
  readonly files: readonly SourceFile[];
}

/** @throws CubeError naming an array that fits nowhere */
export function tablesOf(arrays: readonly NamedArray[], options: ArraysOptions): TableArrays[] {
  const { path, fileName, wanted, files } = options;
  const known = new Map(arrays.map(({ name, part }) => [name, part]));
  const absent = wanted?.find((name) => !known.has(name));
  if (absent !== undefined) {
    throw new CubeError(
      'NOT_FOUND',
      `${path}: no array ${absent}; there are ${[...known.keys()].join(', ')}`,
    );
  }
  const isKeys = (name: string): boolean => name === KEYS || name.endsWith(KEYS_SUFFIX);
  const rows = arrays.filter(({ name }) => wanted?.includes(name) ?? !isKeys(name));
  for (const { name, part } of rows) checkTable(name, part, path);
  if (rows.length === 0) throw new CubeError('INVALID_ARGUMENT', `${path}: no array of rows in it`);
  if (known.has(KEYS) && rows.length > 1 && wanted === undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${path}: "keys" beside ${rows.length} tables; name each table's keys <table>.keys`,
    );
  }
  return rows.map(({ name, part }) => ({
    name: rows.length === 1 && PLAIN_NAMES.has(name) ? fileName : toName(name),
    rows: part,
    keys: known.get(`${name}${KEYS_SUFFIX}`) ?? (rows.length === 1 ? known.get(KEYS) : undefined),
    files,
  }));
}

function checkTable(name: string, part: ArrayPart, path: string): void {
  if (isRowType(part.type) && part.shape.length <= 2) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${path}: ${name} is ${part.type} of shape (${part.shape.join(', ')}), neither a table of ` +
      'floats nor its keys; name the arrays that are tables (--arrays)',
  );
}
