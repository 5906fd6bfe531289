/**
 * What a lookup asks and answers, for every store: columns of keys in, columns of rows and outcomes out. The
 * caller owns all arrays; a lookup writes each row and each outcome exactly once, whatever happens, so that no
 * buffer is ever left with the values of an earlier batch.
 */
import { CubeError } from '../core/errors.ts';
import { type Manifest, type TableRef, tableOf } from '../core/manifest.ts';

/** The key is in the table. */
export const OUTCOME_HIT = 0;
/** The key is not in the table: the default row. A fact about the model, not a failure. */
export const OUTCOME_UNSEEN = 1;
/** No replica answered for the key's shard: the default row, and nothing is known about the key. */
export const OUTCOME_UNAVAILABLE = 2;

/** The keys of one table in one batch. */
export interface LookupGroup {
  readonly table: string;
  /** 2·count words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
  /** Out: count·dim values. */
  readonly rows: Float32Array;
  /** Out: one OUTCOME_ byte a key. */
  readonly outcomes: Uint8Array;
}

export interface LookupSummary {
  /** The one version that answered all groups. */
  readonly version: string;
  readonly unseen: number;
  readonly unavailable: number;
  /** Why the first of the unavailable keys is: which shard, which replica, what it said. */
  readonly reason?: string;
}

const defaultRows = new WeakMap<TableRef, Float32Array>();

/** The row of a key that is not in the table, made once a table. Do not write to it. */
export function defaultRowOf(table: TableRef): Float32Array {
  let row = defaultRows.get(table);
  if (row === undefined) {
    row = new Float32Array(table.dim);
    row.set(table.defaultRow);
    defaultRows.set(table, row);
  }
  return row;
}

/**
 * The tables of the groups, in order.
 * @throws CubeError NOT_FOUND for an unknown table, INVALID_ARGUMENT for arrays that are too short, UNSUPPORTED for
 * rows that are not f32
 */
export function tablesOf(manifest: Manifest, groups: readonly LookupGroup[]): TableRef[] {
  return groups.map((group) => {
    const table = tableOf(manifest, group.table);
    if (table.dtype !== 'f32') {
      throw new CubeError(
        'UNSUPPORTED',
        `${manifest.bundle} ${manifest.version}: table ${table.name} has rows of ${table.dtype}; this build looks up f32`,
      );
    }
    const { count, keys, rows, outcomes } = group;
    if (!Number.isSafeInteger(count) || count < 0) {
      throw new CubeError('INVALID_ARGUMENT', `table ${table.name}: a count of ${count} keys`);
    }
    requireLength(table, 'keys', keys.length, 2 * count);
    requireLength(table, 'rows', rows.length, table.dim * count);
    requireLength(table, 'outcomes', outcomes.length, count);
    return table;
  });
}

function requireLength(table: TableRef, name: string, length: number, needed: number): void {
  if (length >= needed) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `table ${table.name}: the array ${name} has ${length} elements, this lookup needs ${needed}`,
  );
}
