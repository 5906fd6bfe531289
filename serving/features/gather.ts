/**
 * From distinct rows to the tensor that one input of a graph takes: a row for each column of each row of the batch, copied, or
 * pooled from the rows of its values.
 */
import type { ColumnPooling, EmbeddingPlan, GraphPlan } from './graph-plan.ts';

/** The rows of one table in a batch. */
export interface TableRows {
  /** Which of `rows` each value takes, column by column of each row. */
  readonly index: Int32Array;
  /** Where the values of each (row, column of the table) end in `index`; used where slots have bags. */
  readonly ends: Uint32Array;
  /** The distinct ones. */
  readonly rows: Float32Array;
}

/** Up to this dim an element loop copies a row faster than `set(subarray)`. */
const LOOP_COPY_DIM = 16;

/** Fills the first `rowCount` rows of `target`: the columns of the input, each of the table's dim. */
export function gatherRows(
  source: TableRows,
  { tables, hasBags }: GraphPlan,
  embedding: EmbeddingPlan,
  rowCount: number,
  target: Float32Array,
): void {
  const table = tables[embedding.table]!;
  if (hasBags) poolRows(source, table, embedding, { rowCount, target });
  else copyRows(source, table, embedding, { rowCount, target });
}

type TablePlan = GraphPlan['tables'][number];

interface Target {
  readonly rowCount: number;
  readonly target: Float32Array;
}

function copyRows(
  { index, rows }: TableRows,
  table: TablePlan,
  { columns }: EmbeddingPlan,
  { rowCount, target }: Target,
): void {
  const { dim } = table;
  const tableColumns = table.columns.length;
  const columnNum = columns.length;
  const inLoop = dim <= LOOP_COPY_DIM;
  let to = 0;
  for (let row = 0; row < rowCount; row++) {
    const rowIndex = row * tableColumns;
    for (let c = 0; c < columnNum; c++) {
      let from = index[rowIndex + columns[c]!]! * dim;
      if (inLoop) {
        const end = from + dim;
        // Two at a time take less than half as long as one by one.
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
  { rowCount, target }: Target,
): void {
  const { ends } = source;
  const pool = new BagPool(source, table, target);
  let to = 0;
  for (let row = 0; row < rowCount; row++) {
    for (let c = 0; c < columns.length; c++) {
      const bag = row * table.columns.length + columns[c]!;
      pool.write(bag === 0 ? 0 : ends[bag - 1]!, ends[bag]!, poolings[c], to);
      to += table.dim;
    }
  }
}

/** Pools bags of one batch, one after another: bag by bag there are only numbers. */
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

  /** Writes at `to` what the values [start, end) of the index come to. */
  write(start: number, end: number, how: ColumnPooling | undefined, to: number): void {
    if (start === end) {
      this.#writeEmpty(how, to);
      return;
    }
    this.#copy(start, to);
    const count = end - start;
    if (count === 1) return;
    for (let value = start + 1; value < end; value++) {
      if (how?.pooling === 'max') this.#raise(value, to);
      else this.#add(value, to);
    }
    if (how?.pooling === 'mean') this.#divide(count, to);
    else if (how?.pooling === 'sqrtn') this.#divide(Math.sqrt(count), to);
  }

  #writeEmpty(how: ColumnPooling | undefined, to: number): void {
    this.#target.fill(0, to, to + this.#dim);
    // An empty list of numbers is a default row of zeros.
    if (how?.emptyBag === 'default') this.#target.set(this.#defaultRow, to);
  }

  #copy(value: number, to: number): void {
    const from = this.#index[value]! * this.#dim;
    for (let d = 0; d < this.#dim; d++) this.#target[to + d] = this.#rows[from + d]!;
  }

  #add(value: number, to: number): void {
    const from = this.#index[value]! * this.#dim;
    for (let d = 0; d < this.#dim; d++) this.#target[to + d]! += this.#rows[from + d]!;
  }

  #raise(value: number, to: number): void {
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
