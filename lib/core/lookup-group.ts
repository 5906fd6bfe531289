/**
 * The request and the result of a lookup, for every store: columns of keys in, columns of rows and
 * outcomes out. The caller owns all arrays. A lookup writes each row and each outcome exactly once,
 * also when it fails, so that no buffer keeps values of an earlier batch.
 */
import { CubeError } from './errors.ts';
import { getTable, type Manifest, type TableDtype, type TableRef } from './manifest.ts';

/** The key is in the table. */
export const OUTCOME_HIT = 0;
/** The key is not in the table: the default row. A property of the model, not a failure. */
export const OUTCOME_UNSEEN = 1;
/** No replica answered for the key's shard: the default row, and nothing is known about the key. */
export const OUTCOME_UNAVAILABLE = 2;

/** The keys of one table in one batch, and an outcome for each. */
interface KeyColumn {
  readonly table: string;
  /** 2·count words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
  /** Out: one OUTCOME_ byte per key. */
  readonly outcomes: Uint8Array;
}

/** Rows as f32 for any dtype of the table. */
export interface LookupGroup extends KeyColumn {
  /** Out: count·dim values. */
  readonly rows: Float32Array;
}

/** Rows as the table stores them. */
export interface StoredGroup extends KeyColumn {
  /**
   * Out: count·rowBytes bytes, aligned to 4 bytes in their buffer. An unseen key gets the default
   * row in the table's dtype, an unavailable key zero bytes.
   */
  readonly rows: Uint8Array;
}

/** Values of any length, of tables of dtype bytes. */
export type ValueGroup = KeyColumn;

/**
 * Value i of a group is values[ends[i − 1] … ends[i]), from 0 for the first; a key that is not a
 * hit has none.
 */
export interface Values {
  readonly values: Uint8Array;
  readonly ends: Uint32Array;
}

export interface LookupSummary {
  /** The one version that answered all groups. */
  readonly version: string;
  readonly unseen: number;
  readonly unavailable: number;
  /** Why the first unavailable key is unavailable: shard, replica, and the replica's error. */
  readonly reason?: string;
  /** Some keys are unavailable because they were waited for until the deadline. */
  readonly deadlineExceeded?: boolean;
}

export interface StoredSummary extends LookupSummary {
  /** How the rows of each group are stored (docs/formats/layer.md). */
  readonly groups: readonly { readonly dtype: TableDtype; readonly rowBytes: number }[];
}

export interface ValuesSummary extends LookupSummary {
  /** One entry per group. */
  readonly values: readonly Values[];
}

const defaultRows = new WeakMap<TableRef, Float32Array>();

/** The row of a key that is not in the table, made once per table. Do not write to it. */
export function getDefaultRow(table: TableRef): Float32Array {
  let row = defaultRows.get(table);
  if (row === undefined) {
    row = new Float32Array(table.dim);
    row.set(table.defaultRow);
    defaultRows.set(table, row);
  }
  return row;
}

/**
 * Finds the tables of the groups, in order, for a store that returns rows of f32.
 * @throws CubeError NOT_FOUND for an unknown table, INVALID_ARGUMENT for arrays that are too short,
 * UNSUPPORTED for tables of dtype bytes
 */
export function resolveTables(manifest: Manifest, groups: readonly LookupGroup[]): TableRef[] {
  return groups.map((group) => {
    const table = getTable(manifest, group.table);
    if (table.dtype === 'bytes') {
      throw new CubeError(
        'UNSUPPORTED',
        `${manifest.bundle} ${manifest.version}: table ${table.name} has values of any length ` +
          '(dtype bytes), which are no embeddings',
      );
    }
    checkKeyColumn(group);
    requireArrayLength(table.name, 'rows', group.rows.length, table.dim * group.count);
    return table;
  });
}

/** @throws CubeError INVALID_ARGUMENT for arrays that are too short */
export function checkKeyColumn({ table, keys, count, outcomes }: KeyColumn): void {
  if (!Number.isSafeInteger(count) || count < 0) {
    throw new CubeError('INVALID_ARGUMENT', `table ${table}: a count of ${count} keys`);
  }
  requireArrayLength(table, 'keys', keys.length, 2 * count);
  requireArrayLength(table, 'outcomes', outcomes.length, count);
}

/** @throws CubeError INVALID_ARGUMENT */
export function requireArrayLength(
  table: string,
  name: string,
  length: number,
  needed: number,
): void {
  if (length >= needed) return;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `table ${table}: the array ${name} has ${length} elements, this lookup needs ${needed}`,
  );
}
