/**
 * Tables of a base and deltas in any dtype: the content of each layer, and a Map with the resulting
 * rows.
 */
import { decodeRows, encodeRows, type RowDtype } from '../../../../lib/core/row-codec.ts';
import { createOracleTable, type OracleTable } from '../../../client/support/oracle.ts';

/** A layer's upserts and deleted keys, over all shards. */
export interface ChainStep {
  readonly rows: ReadonlyMap<bigint, Float32Array>;
  readonly deleted: readonly bigint[];
}

export interface ChainedTable extends OracleTable {
  readonly dtype: RowDtype;
  /** The base first. */
  readonly chain: readonly ChainStep[];
}

export interface StepOptions {
  readonly put?: Iterable<bigint>;
  readonly deleted?: readonly bigint[];
}

/** Rows differ from step to step; `rows` are rounded to the dtype. */
export function chainedTable(
  name: string,
  dim: number,
  steps: readonly StepOptions[],
  options: { dtype?: RowDtype; salt?: number; defaultRow?: readonly number[] } = {},
): ChainedTable {
  const { dtype = 'f32', salt = 1, defaultRow = [] } = options;
  const rows = new Map<bigint, Float32Array>();
  const chain = steps.map(({ put = [], deleted = [] }, depth) => {
    const made = createOracleTable(name, dim, put, { salt: (salt % 50) + depth / 16 }).rows;
    for (const key of deleted) rows.delete(key);
    for (const [key, row] of made) rows.set(key, roundToDtype(dtype, row));
    return { rows: made, deleted };
  });
  return { name, dim, rows, defaultRow, dtype, chain };
}

export function isChained(table: OracleTable): table is ChainedTable {
  return 'chain' in table;
}

function roundToDtype(dtype: RowDtype, row: Float32Array): Float32Array {
  return decodeRows(dtype, encodeRows(dtype, row, row.length).rows, row.length, 1);
}
