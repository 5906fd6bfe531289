/** Tables made of a base and deltas, in any dtype: what each layer writes, and the Map that all of them mean together. */
import { decodeRows, encodeRows, type RowDtype } from '../../../lib/core/row-codec.ts';
import { type OracleTable, tableWith } from '../../client/oracle.ts';

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

export interface StepWish {
  readonly put?: Iterable<bigint>;
  readonly deleted?: readonly bigint[];
}

/** Rows of each step tell the step apart; `rows` are as the dtype gives them back. */
export function chainedTable(
  name: string,
  dim: number,
  steps: readonly StepWish[],
  options: { dtype?: RowDtype; salt?: number; defaultRow?: readonly number[] } = {},
): ChainedTable {
  const { dtype = 'f32', salt = 1, defaultRow = [] } = options;
  const rows = new Map<bigint, Float32Array>();
  const chain = steps.map(({ put = [], deleted = [] }, depth) => {
    const made = tableWith(name, dim, put, { salt: (salt % 50) + depth / 16 }).rows;
    for (const key of deleted) rows.delete(key);
    for (const [key, row] of made) rows.set(key, asStored(dtype, row));
    return { rows: made, deleted };
  });
  return { name, dim, rows, defaultRow, dtype, chain };
}

export function isChained(table: OracleTable): table is ChainedTable {
  return 'chain' in table;
}

function asStored(dtype: RowDtype, row: Float32Array): Float32Array {
  return decodeRows(dtype, encodeRows(dtype, row, row.length).rows, row.length, 1);
}
