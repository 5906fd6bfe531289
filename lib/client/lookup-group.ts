/**
 * What a lookup asks and answers, for every store: columns of keys in, columns of rows and outcomes out. The
 * caller owns all arrays; a lookup writes each row and each outcome exactly once, whatever happens, so that no
 * buffer is ever left with the values of an earlier batch.
 */
import { CubeError } from '../core/errors.ts';
import { type Manifest, type TableDtype, type TableRef, tableOf } from '../core/manifest.ts';

/** The key is in the table. */
export const OUTCOME_HIT = 0;
/** The key is not in the table: the default row. A fact about the model, not a failure. */
export const OUTCOME_UNSEEN = 1;
/** No replica answered for the key's shard: the default row, and nothing is known about the key. */
export const OUTCOME_UNAVAILABLE = 2;

/** The keys of one table in one batch, and what comes back for each. */
interface KeyColumn {
  readonly table: string;
  /** 2·count words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
  /** Out: one OUTCOME_ byte a key. */
  readonly outcomes: Uint8Array;
}

/** Rows as f32, whatever the table's dtype. */
export interface LookupGroup extends KeyColumn {
  /** Out: count·dim values. */
  readonly rows: Float32Array;
}

/** Rows as the table stores them. */
export interface StoredGroup extends KeyColumn {
  /**
   * Out: count·rowBytes bytes, beginning at a multiple of 4 of their buffer. An unseen key has the default row in the table's
   * dtype, an unavailable one zero bytes.
   */
  readonly rows: Uint8Array;
}

/** Values of any length, of tables of dtype bytes. */
export type ValueGroup = KeyColumn;

/** Value i of a group is values[ends[i − 1] … ends[i]), from 0 for the first; a key that is no hit has none. */
export interface Values {
  readonly values: Uint8Array;
  readonly ends: Uint32Array;
}

export interface LookupSummary {
  /** The one version that answered all groups. */
  readonly version: string;
  readonly unseen: number;
  readonly unavailable: number;
  /** Why the first of the unavailable keys is: which shard, which replica, what it said. */
  readonly reason?: string;
}

export interface StoredSummary extends LookupSummary {
  /** How the rows of each group are stored (docs/formats/layer.md). */
  readonly groups: readonly { readonly dtype: TableDtype; readonly rowBytes: number }[];
}

export interface ValuesSummary extends LookupSummary {
  /** One a group. */
  readonly values: readonly Values[];
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
 * The tables of the groups, in order, for a store that gives rows of f32, whatever the tables' dtypes.
 * @throws CubeError NOT_FOUND for an unknown table, INVALID_ARGUMENT for arrays that are too short, UNSUPPORTED for
 * values of any length
 */
export function tablesOf(manifest: Manifest, groups: readonly LookupGroup[]): TableRef[] {
  return groups.map((group) => {
    const table = tableOf(manifest, group.table);
    if (table.dtype === 'bytes') {
      throw new CubeError(
        'UNSUPPORTED',
        `${manifest.bundle} ${manifest.version}: table ${table.name} has values of any length (dtype bytes), which are no embeddings`,
      );
    }
    checkColumn(group);
    requireLength(table.name, 'rows', group.rows.length, table.dim * group.count);
    return table;
  });
}

/** @throws CubeError INVALID_ARGUMENT for arrays that are too short */
export function checkColumn({ table, keys, count, outcomes }: KeyColumn): void {
  if (!Number.isSafeInteger(count) || count < 0) {
    throw new CubeError('INVALID_ARGUMENT', `table ${table}: a count of ${count} keys`);
  }
  requireLength(table, 'keys', keys.length, 2 * count);
  requireLength(table, 'outcomes', outcomes.length, count);
}

/** @throws CubeError INVALID_ARGUMENT */
export function requireLength(table: string, name: string, length: number, needed: number): void {
  if (length >= needed) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `table ${table}: the array ${name} has ${length} elements, this lookup needs ${needed}`,
  );
}
