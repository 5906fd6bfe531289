/**
 * Lookups of a model worker, in memories that it shares with the store. Distinct keys, index and
 * rows never leave the worker.
 */

import type { TableRows } from '../../lib/features/gather-rows.ts';
import type { GraphPlan } from '../../lib/features/graph-plan.ts';
import { type BagRows, TableBatch, wrapNegativeKeys } from '../../lib/features/table-batch.ts';
import type { UserRows } from '../../lib/features/user-rows.ts';
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

/** The keys of one graph input, which are looked up directly into its tensor. */
interface DirectInput {
  /** Position of the input in the plan. */
  readonly input: number;
  /** Whether it has a row for each user. */
  readonly isUser: boolean;
  /** Positions of its keys in a row, and in the columns of the table. */
  readonly positions: Int32Array;
  readonly columns: Int32Array;
  /** Scratch for its keys, when it does not take all keys of a row unchanged. */
  readonly picked: Uint32Array | undefined;
  /** Scratch for its outcomes, when it does not take all columns of the table in each row. */
  readonly outcomes: Uint8Array | undefined;
  readonly tensor: Float32Array;
}

/** How one table's keys of a batch are looked up. */
type TableLookup = { readonly direct: readonly DirectInput[] } | { readonly batch: TableBatch };

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
    this.#lookups = plan.tables.map((table, t): TableLookup => {
      const direct = planDirectInputs(plan, t, rowsMax);
      return direct === undefined ? { batch: new TableBatch(table, rowsMax) } : { direct };
    });
    const direct = this.#lookups.flatMap((lookup) => ('direct' in lookup ? lookup.direct : []));
    this.tensors = plan.embeddings.map((_, i) => direct.find(({ input }) => input === i)?.tensor);
  }

  /** The rows of the last `lookUp`; the next call overwrites them. */
  get tables(): readonly TableRows[] {
    return this.#tables;
  }

  /**
   * Fills `tables` or `tensors`, and the slab's outcomes.
   * @param users given when the plan has users
   * @returns the number of unseen keys
   */
  lookUp({ keys, ends, outcomes }: SlabViews, rowCount: number, users?: UserRows): number {
    const { keyNum, hasBags } = this.#plan;
    const keyRows: BagRows = { keys, ends, rowStart: 0, rowCount, rowKeys: keyNum };
    if (hasBags) this.#reserve(ends[rowCount * keyNum - 1]!);
    let unseen = 0;
    for (let t = 0; t < this.#lookups.length; t++) {
      const lookup = this.#lookups[t]!;
      const table = this.#tables[t]!;
      if ('direct' in lookup) {
        for (const input of lookup.direct) {
          unseen += this.#lookUpDirect(t, input, { keyRows, users, outcomes: outcomes[t]! });
        }
        continue;
      }
      const { batch } = lookup;
      unseen += this.#lookup.lookup(batch.prepareGroup(keyRows, table));
      batch.expandOutcomes(table, rowCount, outcomes[t]!);
    }
    return unseen;
  }

  #lookUpDirect(
    t: number,
    input: DirectInput,
    batch: { keyRows: BagRows; users: UserRows | undefined; outcomes: Uint8Array },
  ): number {
    const { keyRows, outcomes } = batch;
    const { name, columns, wrapRows } = this.#plan.tables[t]!;
    const { positions, picked, tensor } = input;
    const users = input.isUser ? batch.users : undefined;
    const rowCount = users?.userCount ?? keyRows.rowCount;
    const count = rowCount * positions.length;
    if (picked !== undefined) {
      pickKeys(keyRows, positions, { rowCount, selected: users?.firstRows }, picked);
      if (wrapRows > 0) wrapNegativeKeys(picked, count, wrapRows);
    }
    const found = input.outcomes ?? outcomes;
    const keys = picked ?? keyRows.keys;
    const unseen = this.#lookup.lookup({
      table: name,
      keys,
      count,
      rows: tensor,
      outcomes: found,
    });
    if (input.outcomes !== undefined) {
      const target = { outcomes, width: columns.length, rowCount: keyRows.rowCount };
      spreadOutcomes(input.outcomes, input.columns, users?.rowUsers, target);
    }
    return unseen;
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
 * Plans direct lookups of a table, when its inputs share no column. Then keys that a batch has
 * twice are looked up twice, which costs less than finding duplicates: the row is in the
 * processor's cache.
 * @returns undefined when the rows must be gathered
 */
function planDirectInputs(
  { embeddings, tables, keyNum, hasBags, fixedBatch, users }: GraphPlan,
  t: number,
  rowsMax: number,
): DirectInput[] | undefined {
  if (hasBags || fixedBatch > 0) return undefined;
  const inputs = embeddings.flatMap((embedding, input) =>
    embedding.table === t ? [{ ...embedding, input }] : [],
  );
  const { columns: tableColumns, dim, wrapRows } = tables[t]!;
  const taken = inputs.flatMap(({ columns }) => [...columns]);
  const isDisjoint = new Set(taken).size === taken.length;
  if (inputs.length === 0 || !isDisjoint || taken.length !== tableColumns.length) return undefined;
  // Without users, several inputs of one table gather their rows from the distinct ones.
  if (inputs.length > 1 && users === undefined) return undefined;
  return inputs.map(({ input, columns, isUser = false }): DirectInput => {
    const size = rowsMax * columns.length;
    const positions = columns.map((column) => tableColumns[column]!);
    const isAll = !isUser && wrapRows === 0 && isIdentity(positions, keyNum);
    const isWholeTable = !isUser && isIdentity(columns, tableColumns.length);
    return {
      input,
      isUser,
      positions,
      columns,
      picked: isAll ? undefined : new Uint32Array(2 * size),
      outcomes: isWholeTable ? undefined : new Uint8Array(size),
      tensor: new Float32Array(size * dim),
    };
  });
}

/** Whether the columns are 0, 1, … count − 1. */
function isIdentity(columns: Int32Array, count: number): boolean {
  return columns.length === count && columns.every((column, i) => column === i);
}

/** Copies the keys at some positions of each row, or of the selected rows. */
function pickKeys(
  { keys, rowKeys }: BagRows,
  positions: Int32Array,
  { rowCount, selected }: { rowCount: number; selected: Int32Array | undefined },
  picked: Uint32Array,
): void {
  let to = 0;
  for (let i = 0; i < rowCount; i++) {
    const row = selected === undefined ? i : selected[i]!;
    for (let c = 0; c < positions.length; c++) {
      const from = 2 * (row * rowKeys + positions[c]!);
      picked[to++] = keys[from]!;
      picked[to++] = keys[from + 1]!;
    }
  }
}

/** Writes the outcomes of one input's keys to those of each (row, column) of the table. */
function spreadOutcomes(
  found: Uint8Array,
  columns: Int32Array,
  rowUsers: Int32Array | undefined,
  { outcomes, width, rowCount }: { outcomes: Uint8Array; width: number; rowCount: number },
): void {
  for (let row = 0; row < rowCount; row++) {
    const from = (rowUsers === undefined ? row : rowUsers[row]!) * columns.length;
    for (let c = 0; c < columns.length; c++) {
      outcomes[row * width + columns[c]!] = found[from + c]!;
    }
  }
}
