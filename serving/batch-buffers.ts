/**
 * The buffers of one batch in flight, made once and used for batch after batch: the slab that travels to a model worker, and
 * beside it what stays here (distinct keys, outcomes). `fill` writes a batch's inputs and gives the groups to look up.
 */
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../lib/client/lookup-group.ts';
import { UniqueKeys } from '../lib/core/unique-keys.ts';
import { type SlabViews, slabBytes, viewSlab } from './batch-slab.ts';
import type { KeyedRows } from './computed-keys.ts';
import { BATCH_ROWS_MAX, type GraphPlan } from './graph-plan.ts';

/** How the lookups of some rows went: one is one slot of one row in one table. */
export interface OutcomeCounts {
  unseen: number;
  unavailable: number;
}

interface TableBuffers {
  readonly keys: Uint32Array;
  readonly outcomes: Uint8Array;
  readonly distinct: UniqueKeys;
}

export class BatchBuffers {
  readonly #plan: GraphPlan;
  readonly #outputNum: number;
  readonly #tables: readonly TableBuffers[];
  #slab: ArrayBuffer;
  #views: SlabViews;

  constructor(plan: GraphPlan, outputNum: number) {
    this.#plan = plan;
    this.#outputNum = outputNum;
    this.#tables = plan.tables.map(({ columns }) => {
      const capacity = BATCH_ROWS_MAX * columns.length;
      return {
        keys: new Uint32Array(2 * capacity),
        outcomes: new Uint8Array(capacity),
        distinct: new UniqueKeys(capacity),
      };
    });
    this.#slab = new ArrayBuffer(slabBytes(plan, outputNum));
    this.#views = viewSlab(plan, outputNum, this.#slab);
  }

  /** Writes dense values and index of rows [start, start + count); the groups' rows are the slab's. */
  fill(rows: KeyedRows, start: number, count: number): LookupGroup[] {
    const { denseNum, keyNum, ids } = this.#plan;
    this.#views.dense.set(rows.dense.subarray(start * denseNum, (start + count) * denseNum));
    ids.forEach(({ slots }, i) => {
      fillIds(this.#views.ids[i]!, slots, rows.keys.subarray(2 * start * keyNum), count, keyNum);
    });
    const keyRows = { keys: rows.keys, rowStart: start, rowCount: count, rowKeys: keyNum };
    return this.#plan.tables.map((table, t) => {
      const { keys, outcomes, distinct } = this.#tables[t]!;
      const { index, rows: tableRows } = this.#views.tables[t]!;
      const uniqueCount = distinct.find(keyRows, table.columns, keys, index);
      if (table.wrapRows > 0) wrapKeys(keys, uniqueCount, table.wrapRows);
      return { table: table.name, keys, count: uniqueCount, rows: tableRows, outcomes };
    });
  }

  /** Adds the outcomes of the batch's (row, slot) pairs, each as often as it occurs. */
  countOutcomes(rowCount: number, counts: OutcomeCounts): void {
    this.#plan.tables.forEach(({ columns }, t) => {
      const { outcomes } = this.#tables[t]!;
      const { index } = this.#views.tables[t]!;
      for (let i = 0; i < rowCount * columns.length; i++) {
        const outcome = outcomes[index[i]!]!;
        if (outcome === OUTCOME_HIT) continue;
        if (outcome === OUTCOME_UNSEEN) counts.unseen++;
        else counts.unavailable++;
      }
    });
  }

  /** The slab, for a hand-over by transfer: the views are void until `takeBack`. */
  get slab(): ArrayBuffer {
    return this.#slab;
  }

  takeBack(slab: ArrayBuffer): void {
    this.#slab = slab;
    this.#views = viewSlab(this.#plan, this.#outputNum, slab);
  }

  /** The click output of the batch's rows. */
  output(rowCount: number): Float32Array {
    return this.#views.output.subarray(0, rowCount * this.#outputNum);
  }
}

/** From below zero to the end of a table of `rows` rows; what is further below is left, and in no table. */
function wrapKeys(keys: Uint32Array, count: number, rows: number): void {
  for (let word = 0; word < 2 * count; word += 2) {
    if (keys[word + 1]! < 0x8000_0000) continue;
    const key = (keys[word + 1]! | 0) * 2 ** 32 + keys[word]! + rows;
    if (key < 0) continue;
    keys[word] = key % 2 ** 32;
    keys[word + 1] = key / 2 ** 32;
  }
}

/** The ids that the graph itself takes: the keys of these slots. */
function fillIds(
  target: BigInt64Array,
  slots: Int32Array,
  keys: Uint32Array,
  rowCount: number,
  keyNum: number,
): void {
  const words = new Uint32Array(target.buffer, target.byteOffset, 2 * target.length);
  let to = 0;
  for (let row = 0; row < rowCount; row++) {
    for (let column = 0; column < slots.length; column++) {
      const from = 2 * (row * keyNum + slots[column]!);
      words[to++] = keys[from]!;
      words[to++] = keys[from + 1]!;
    }
  }
}

/** Buffers that wait for the next batch; a burst's surplus goes to the collector. */
export class BatchBufferPool {
  static readonly #KEPT_MAX = 64;
  readonly #free: BatchBuffers[] = [];
  readonly #make: () => BatchBuffers;

  constructor(plan: GraphPlan, outputNum: number) {
    this.#make = () => new BatchBuffers(plan, outputNum);
  }

  take(): BatchBuffers {
    return this.#free.pop() ?? this.#make();
  }

  give(buffers: BatchBuffers): void {
    if (this.#free.length < BatchBufferPool.#KEPT_MAX) this.#free.push(buffers);
  }
}
