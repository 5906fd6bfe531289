/**
 * Fills the tensor of one graph input from the distinct rows of a batch: for each (row, column),
 * one embedding row is copied, or pooled from the rows of a bag's values.
 */
import type { ColumnPooling, EmbeddingPlan, GraphPlan } from './graph-plan.ts';

/** The rows of one table in a batch. */
export interface TableRows {
  /** The index in `rows` of each value, row by row and column by column. */
  readonly index: Int32Array;
  /**
   * Where the values of each (row, column of the table) end in `index`; used when slots have bags.
   */
  readonly ends: Uint32Array;
  /** The distinct rows. */
  readonly rows: Float32Array;
}

/** Up to this dim an element loop copies a row faster than `set(subarray)`. */
const LOOP_COPY_DIM = 16;

/**
 * Fills the first `rowCount` rows of `target`: the columns of the input, each with the dim of the
 * table.
 * @param selected the rows of the batch to take; default: the first `rowCount`
 */
export function gatherRows(
  source: TableRows,
  { tables, hasBags }: GraphPlan,
  embedding: EmbeddingPlan,
  rowCount: number,
  target: Float32Array,
  selected?: Int32Array,
): void {
  const table = tables[embedding.table]!;
  if (hasBags) poolRows(source, table, embedding, { rowCount, target, selected });
  else copyRows(source, table, embedding, { rowCount, target, selected });
}

type TablePlan = GraphPlan['tables'][number];

interface GatherTarget {
  readonly rowCount: number;
  readonly target: Float32Array;
  readonly selected: Int32Array | undefined;
}

function copyRows(
  { index, rows }: TableRows,
  table: TablePlan,
  { columns }: EmbeddingPlan,
  { rowCount, target, selected }: GatherTarget,
): void {
  const { dim } = table;
  const tableColumns = table.columns.length;
  const columnNum = columns.length;
  const inLoop = dim <= LOOP_COPY_DIM;
  let to = 0;
  for (let row = 0; row < rowCount; row++) {
    const rowIndex = (selected === undefined ? row : selected[row]!) * tableColumns;
    for (let c = 0; c < columnNum; c++) {
      let from = index[rowIndex + columns[c]!]! * dim;
      if (inLoop) {
        const end = from + dim;
        // Copying two elements at a time takes less than half as long as one by one.
        for (; from + 1 < end; from += 2, to += 2) {
          target[to] = rows[from]!;
          target[to + 1] = rows[from + 1]!;
        }
        if (from < end) target[to++] = rows[from]!;
      } else {
        target.set(rows.subarray(from, from + dim), to);
        to += dim;
      }
    }
  }
}

function poolRows(
  source: TableRows,
  table: TablePlan,
  { columns, poolings = [] }: EmbeddingPlan,
  { rowCount, target, selected }: GatherTarget,
): void {
  const { ends } = source;
  const pool = new BagPool(source, table, target);
  let to = 0;
  for (let row = 0; row < rowCount; row++) {
    const from = (selected === undefined ? row : selected[row]!) * table.columns.length;
    for (let c = 0; c < columns.length; c++) {
      const bag = from + columns[c]!;
      pool.write(bag === 0 ? 0 : ends[bag - 1]!, ends[bag]!, poolings[c], to);
      to += table.dim;
    }
  }
}

/** Pools the bags of one batch one after another, without allocations per bag. */
class BagPool {
  readonly #index: Int32Array;
  readonly #rows: Float32Array;
  readonly #dim: number;
  readonly #defaultRow: readonly number[];
  readonly #target: Float32Array;

  constructor({ index, rows }: TableRows, table: TablePlan, target: Float32Array) {
    this.#index = index;
    this.#rows = rows;
    this.#dim = table.dim;
    this.#defaultRow = table.defaultRow;
    this.#target = target;
  }

  /** Writes the pooled values [start, end) of the index from `to` on. */
  write(start: number, end: number, pooling: ColumnPooling | undefined, to: number): void {
    if (start === end) {
      this.#writeEmpty(pooling, to);
      return;
    }
    this.#copy(start, to);
    const count = end - start;
    if (count === 1) return;
    for (let value = start + 1; value < end; value++) {
      if (pooling?.pooling === 'max') this.#takeMax(value, to);
      else this.#add(value, to);
    }
    if (pooling?.pooling === 'mean') this.#divide(count, to);
    else if (pooling?.pooling === 'sqrtn') this.#divide(Math.sqrt(count), to);
  }

  #writeEmpty(pooling: ColumnPooling | undefined, to: number): void {
    this.#target.fill(0, to, to + this.#dim);
    // An empty list means a default row of zeros.
    if (pooling?.emptyBag === 'default') this.#target.set(this.#defaultRow, to);
  }

  #copy(value: number, to: number): void {
    const from = this.#index[value]! * this.#dim;
    for (let d = 0; d < this.#dim; d++) this.#target[to + d] = this.#rows[from + d]!;
  }

  #add(value: number, to: number): void {
    const from = this.#index[value]! * this.#dim;
    for (let d = 0; d < this.#dim; d++) this.#target[to + d]! += this.#rows[from + d]!;
  }

  #takeMax(value: number, to: number): void {
    const from = this.#index[value]! * this.#dim;
    for (let d = 0; d < this.#dim; d++) {
      const x = this.#rows[from + d]!;
      if (x > this.#target[to + d]!) this.#target[to + d] = x;
    }
  }

  #divide(by: number, to: number): void {
    for (let d = 0; d < this.#dim; d++) this.#target[to + d]! /= by;
  }
}
