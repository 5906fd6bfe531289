/**
 * Groups the arrays of a file into tables: each array of floats is a table. Its keys are the array
 * `<name>.keys`, or `keys` if there is only one table. Other arrays are refused, unless the caller
 * selected arrays.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { toValidName } from '../../../lib/core/names.ts';
import { type ArrayPart, isRowType, type TableArrays } from './array-source.ts';
import type { SourceFile } from './row-source.ts';

const KEYS = 'keys';
const KEYS_SUFFIX = '.keys';
/** Generic names: a table whose array has such a name is named after the file. */
const PLAIN_NAMES = new Set(['rows', 'values', 'embedding', 'embeddings', 'weight', 'arr_0']);

export interface NamedArray {
  readonly name: string;
  readonly part: ArrayPart;
}

export interface ArraysOptions {
  /** Name of the file in errors. */
  readonly path: string;
  /** Name of a table whose array has a generic name. */
  readonly fileName: string;
  /** Only these arrays; all when undefined. */
  readonly selected: readonly string[] | undefined;
  readonly files: readonly SourceFile[];
}

/** @throws CubeError for an array that is neither a table nor its keys */
export function groupTables(arrays: readonly NamedArray[], options: ArraysOptions): TableArrays[] {
  const { path, fileName, selected, files } = options;
  const byName = new Map(arrays.map(({ name, part }) => [name, part]));
  const absent = selected?.find((name) => !byName.has(name));
  if (absent !== undefined) {
    throw new CubeError(
      'NOT_FOUND',
      `${path}: no array ${absent}; the arrays are ${[...byName.keys()].join(', ')}`,
    );
  }
  const isKeys = (name: string): boolean => name === KEYS || name.endsWith(KEYS_SUFFIX);
  const rows = arrays.filter(({ name }) => selected?.includes(name) ?? !isKeys(name));
  for (const { name, part } of rows) checkTable(name, part, path);
  if (rows.length === 0) throw new CubeError('INVALID_ARGUMENT', `${path}: no array of rows`);
  if (byName.has(KEYS) && rows.length > 1 && selected === undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${path}: one "keys" array for ${rows.length} tables; name the keys of each <table>.keys`,
    );
  }
  return rows.map(({ name, part }) => ({
    name: rows.length === 1 && PLAIN_NAMES.has(name) ? fileName : toValidName(name),
    rows: part,
    keys: byName.get(`${name}${KEYS_SUFFIX}`) ?? (rows.length === 1 ? byName.get(KEYS) : undefined),
    files,
  }));
}

function checkTable(name: string, part: ArrayPart, path: string): void {
  if (isRowType(part.type) && part.shape.length <= 2) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${path}: ${name} is ${part.type} of shape (${part.shape.join(', ')}), neither a table of ` +
      'floats nor its keys; select the arrays that are tables (--arrays)',
  );
}
