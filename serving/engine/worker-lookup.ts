/**
 * Lookups of a model worker, in memories that it shares with the store. Distinct keys, index and
 * rows never leave the worker.
 */

import type { TableRows } from '../../lib/features/gather-rows.ts';
import type { GraphPlan } from '../../lib/features/graph-plan.ts';
import { type BagRows, TableBatch, wrapNegativeKeys } from '../../lib/features/table-batch.ts';
import {
  type AttachedVersion,
  attachSharedVersion,
  type SharedVersion,
} from '../../lib/store/shared-version.ts';
import { ShardedLookup } from '../stores/sharded-lookup.ts';
import type { SlabViews } from './batch-slab.ts';

/** The data that a worker needs for lookups; can be cloned to another thread. */
export interface SharedTables {
  readonly shards: readonly SharedVersion[];
  /** The worker's area of the memories. */
  readonly thread: number;
}

/** How one table's keys of a batch are looked up. */
interface TableLookup {
  /**
   * Every key is looked up directly into the tensor of the one graph input that takes all of them.
   */
  readonly isDirect: boolean;
  /** Scratch for the table's keys, when it does not take all keys of a row unchanged. */
  readonly picked: Uint32Array | undefined;
  readonly batch: TableBatch | undefined;
}

export class WorkerLookup {
  /**
   * For each embedding input, its tensor when the rows are already laid out as the graph takes
   * them.
   */
  readonly tensors: readonly (Float32Array | undefined)[];
  readonly #plan: GraphPlan;
  readonly #rowsMax: number;
  #tables: readonly TableRows[];
  readonly #lookups: readonly TableLookup[];
  readonly #lookup: ShardedLookup;
  readonly #attached: readonly AttachedVersion[];

  constructor(plan: GraphPlan, rowsMax: number, { shards, thread }: SharedTables) {
    this.#plan = plan;
    this.#rowsMax = rowsMax;
    this.#attached = shards.map((shard) => attachSharedVersion(shard, thread));
    this.#lookup = new ShardedLookup(this.#attached);
    this.#tables = this.#makeTables(0);
    this.#lookups = plan.tables.map((table, t) => {
      const isDirect = isDirectInput(plan, t);
      const isWhole = table.wrapRows === 0 && isIdentity(table.columns, plan.keyNum);
      const picked = isWhole ? undefined : new Uint32Array(2 * rowsMax * table.columns.length);
      return { isDirect, picked, batch: isDirect ? undefined : new TableBatch(table, rowsMax) };
    });
    this.tensors = plan.embeddings.map(({ table }) =>
      this.#lookups[table]!.isDirect ? this.#tables[table]!.rows : undefined,
    );
  }

  /** The rows of the last `lookUp`; the next call overwrites them. */
  get tables(): readonly TableRows[] {
    return this.#tables;
  }

  /** Fills `tables` or `tensors`, and the slab's outcomes. @returns the number of unseen keys */
  lookUp({ keys, ends, outcomes }: SlabViews, rowCount: number): number {
    const { keyNum, hasBags } = this.#plan;
    const keyRows: BagRows = { keys, ends, rowStart: 0, rowCount, rowKeys: keyNum };
    if (hasBags) this.#reserve(ends[rowCount * keyNum - 1]!);
    let unseen = 0;
    for (let t = 0; t < this.#lookups.length; t++) {
      const { batch } = this.#lookups[t]!;
      const table = this.#tables[t]!;
      if (batch === undefined) {
        unseen += this.#lookUpDirect(t, keyRows, outcomes[t]!);
        continue;
      }
      unseen += this.#lookup.lookup(batch.prepareGroup(keyRows, table));
      batch.expandOutcomes(table, rowCount, outcomes[t]!);
    }
    return unseen;
  }

  #lookUpDirect(t: number, { keys, rowCount, rowKeys }: BagRows, outcomes: Uint8Array): number {
    const { name, columns, wrapRows } = this.#plan.tables[t]!;
    const { picked } = this.#lookups[t]!;
    const count = rowCount * columns.length;
    if (picked !== undefined) {
      pickKeys(keys, rowKeys, columns, rowCount, picked);
      if (wrapRows > 0) wrapNegativeKeys(picked, count, wrapRows);
    }
    const { rows } = this.#tables[t]!;
    return this.#lookup.lookup({ table: name, keys: picked ?? keys, count, rows, outcomes });
  }

  #reserve(values: number): void {
    if (this.#tables.every(({ index }) => index.length >= values)) return;
    this.#tables = this.#makeTables(values);
  }

  /** @param values the least room for values in each table */
  #makeTables(values: number): TableRows[] {
    const { tables, hasBags } = this.#plan;
    return tables.map(({ columns, dim }) => {
      const bags = this.#rowsMax * columns.length;
      const room = Math.max(bags, values);
      return {
        ends: new Uint32Array(hasBags ? bags : 0),
        index: new Int32Array(room),
        rows: new Float32Array(room * dim),
      };
    });
  }

  detach(): void {
    for (const version of this.#attached) version.detach();
  }
}

/**
 * Whether one graph input takes all of a table's rows, in order. Then keys that a batch has twice
 * are looked up twice, which costs less than finding duplicates: the row is in the processor's
 * cache.
 */
function isDirectInput({ embeddings, tables, hasBags, fixedBatch }: GraphPlan, t: number): boolean {
  if (hasBags || fixedBatch > 0) return false;
  const inputs = embeddings.filter(({ table }) => table === t);
  const [input, other] = inputs;
  if (input === undefined || other !== undefined) return false;
  return isIdentity(input.columns, tables[t]!.columns.length);
}

/** Whether the columns are 0, 1, … count − 1. */
function isIdentity(columns: Int32Array, count: number): boolean {
  return columns.length === count && columns.every((column, i) => column === i);
}

function pickKeys(
  keys: Uint32Array,
  keyNum: number,
  columns: Int32Array,
  rowCount: number,
  picked: Uint32Array,
): void {
  let to = 0;
  for (let row = 0; row < rowCount; row++) {
    for (let c = 0; c < columns.length; c++) {
      const from = 2 * (row * keyNum + columns[c]!);
      picked[to++] = keys[from]!;
      picked[to++] = keys[from + 1]!;
    }
  }
}
