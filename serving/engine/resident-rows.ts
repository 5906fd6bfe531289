/**
 * A model worker's own lookups: the keys of a batch to rows, in memories that it shares with the store. Distinct keys, index and rows
 * never leave the worker.
 */
import {
  type AttachedVersion,
  attachShared,
  type SharedVersion,
} from '../../lib/store/shared-version.ts';
import type { TableRows } from '../features/gather.ts';
import type { GraphPlan } from '../features/graph-plan.ts';
import { ShardedLookup } from '../stores/sharded-lookup.ts';
import type { SlabViews } from './batch-slab.ts';
import { type BagRows, TableBatch, wrapKeys } from './table-batch.ts';

/** What a worker needs to look up: cloneable. */
export interface ResidentTables {
  readonly shards: readonly SharedVersion[];
  /** The worker's area of the memories. */
  readonly thread: number;
}

/** One table's keys of a batch, as they are looked up. */
interface TableLookup {
  /** Looked up one by one, straight into the tensor of the one input that takes them all. */
  readonly isDirect: boolean;
  /** When the table does not take a row's keys as they stand: those that it takes. */
  readonly picked: Uint32Array | undefined;
  readonly batch: TableBatch | undefined;
}

export class ResidentRows {
  /** For each embedding input its tensor, where the rows lie as the graph takes them. */
  readonly tensors: readonly (Float32Array | undefined)[];
  readonly #plan: GraphPlan;
  readonly #rowsMax: number;
  #tables: readonly TableRows[];
  readonly #lookups: readonly TableLookup[];
  readonly #lookup: ShardedLookup;
  readonly #attached: readonly AttachedVersion[];

  constructor(plan: GraphPlan, rowsMax: number, { shards, thread }: ResidentTables) {
    this.#plan = plan;
    this.#rowsMax = rowsMax;
    this.#attached = shards.map((shard) => attachShared(shard, thread));
    this.#lookup = new ShardedLookup(this.#attached);
    this.#tables = this.#makeTables(0);
    this.#lookups = plan.tables.map((table, t) => {
      const isDirect = takesAllInOrder(plan, t);
      const isWhole = table.wrapRows === 0 && isCounting(table.columns, plan.keyNum);
      const picked = isWhole ? undefined : new Uint32Array(2 * rowsMax * table.columns.length);
      return { isDirect, picked, batch: isDirect ? undefined : new TableBatch(table, rowsMax) };
    });
    this.tensors = plan.embeddings.map(({ table }) =>
      this.#lookups[table]!.isDirect ? this.#tables[table]!.rows : undefined,
    );
  }

  /** What `fill` found: void when it is called again. */
  get tables(): readonly TableRows[] {
    return this.#tables;
  }

  /** Fills `tables`, or `tensors`, and the slab's outcomes. @returns lookups of keys that are in no table */
  fill({ keys, ends, outcomes }: SlabViews, rowCount: number): number {
    const { keyNum, hasBags } = this.#plan;
    const keyRows: BagRows = { keys, ends, rowStart: 0, rowCount, rowKeys: keyNum };
    if (hasBags) this.#reserve(ends[rowCount * keyNum - 1]!);
    let unseen = 0;
    for (let t = 0; t < this.#lookups.length; t++) {
      const { isDirect, batch } = this.#lookups[t]!;
      const table = this.#tables[t]!;
      if (isDirect) {
        unseen += this.#fillDirect(t, keyRows, outcomes[t]!);
        continue;
      }
      unseen += this.#lookup.lookup(batch!.group(keyRows, table));
      batch!.spread(table, rowCount, outcomes[t]!);
    }
    return unseen;
  }

  #fillDirect(t: number, { keys, rowCount, rowKeys }: BagRows, outcomes: Uint8Array): number {
    const { name, columns, wrapRows } = this.#plan.tables[t]!;
    const { picked } = this.#lookups[t]!;
    const count = rowCount * columns.length;
    if (picked !== undefined) pickKeys(keys, rowKeys, columns, rowCount, picked);
    if (wrapRows > 0) wrapKeys(picked!, count, wrapRows);
    const { rows } = this.#tables[t]!;
    return this.#lookup.lookup({ table: name, keys: picked ?? keys, count, rows, outcomes });
  }

  #reserve(values: number): void {
    if (this.#tables.every(({ index }) => index.length >= values)) return;
    this.#tables = this.#makeTables(values);
  }

  /** @param values of bags, at least, in each table */
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
 * Whether one input of the graph takes a table's rows, each once and in order. A key that a batch has twice is then looked up twice,
 * which costs less than finding that out: its row is in the cache.
 */
function takesAllInOrder({ embeddings, tables, hasBags, batch }: GraphPlan, t: number): boolean {
  if (hasBags || batch > 0) return false;
  const takers = embeddings.filter(({ table }) => table === t);
  return takers.length === 1 && isCounting(takers[0]!.columns, tables[t]!.columns.length);
}

/** 0, 1, … count − 1. */
function isCounting(columns: Int32Array, count: number): boolean {
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
