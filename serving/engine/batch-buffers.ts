/**
 * The buffers of one batch in flight, reused for batch after batch: the slab that a model worker
 * shares, and, when the main thread looks rows up, its own keys, distinct keys and outcomes. The
 * rows of the requests follow each other.
 */

import type { KeyedRows } from '../../lib/core/feature-rows.ts';
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../../lib/core/lookup-group.ts';
import { copySlotIds, findBagEnd } from '../../lib/features/slot-ids.ts';
import { TableBatch } from '../../lib/features/table-batch.ts';
import { assignUsers } from '../../lib/features/user-rows.ts';
import { allocateSlab, type SlabShape, type SlabViews, viewSlab } from './batch-slab.ts';
import type { KeyMisses } from './engine-stats.ts';

/**
 * Buffers with room for this many times the values of a batch with one value per bag are not
 * reused.
 */
const OVERSIZED_FACTOR = 16;

export class BatchBuffers {
  readonly #shape: SlabShape;
  readonly #tables: readonly TableBatch[];
  #ownKeys: Uint32Array;
  readonly #ownEnds: Uint32Array;
  readonly #ownOutcomes: readonly Uint8Array[];
  #slab: SharedArrayBuffer;
  #views: SlabViews;

  constructor(shape: SlabShape) {
    const { plan, rowsMax, lookupThread } = shape;
    const tables = lookupThread === 'main' ? plan.tables : [];
    this.#shape = shape;
    this.#tables = tables.map((table) => new TableBatch(table, rowsMax));
    const isMain = lookupThread === 'main';
    this.#ownKeys = new Uint32Array(isMain ? 2 * rowsMax * plan.keyNum : 0);
    this.#ownEnds = new Uint32Array(isMain && plan.hasBags ? rowsMax * plan.keyNum : 0);
    this.#ownOutcomes = tables.map(({ columns }) => new Uint8Array(rowsMax * columns.length));
    this.#slab = allocateSlab(shape, rowsMax * plan.keyNum);
    this.#views = viewSlab(shape, this.#slab);
  }

  /**
   * Copies rows [start, start + count) of a request to the batch, from row `at` on, where the rows
   * added before end.
   */
  addRows(rows: KeyedRows, start: number, count: number, at: number): void {
    const { denseNum, keyNum, ids, hasBags } = this.#shape.plan;
    const end = start + count;
    const { dense, keys } = rows;
    this.#views.dense.set(takePart(dense, start * denseNum, end * denseNum), at * denseNum);
    if (hasBags) this.#addBags(rows, start, count, at);
    else this.#keys.set(takePart(keys, 2 * start * keyNum, 2 * end * keyNum), 2 * at * keyNum);
    for (let i = 0; i < ids.length; i++) {
      const { slots } = ids[i]!;
      copySlotIds(this.#views.ids[i]!.subarray(at * slots.length), slots, {
        rows,
        start,
        count,
        keyNum,
      });
    }
  }

  #addBags(rows: KeyedRows, start: number, count: number, at: number): void {
    const { keyNum } = this.#shape.plan;
    const from = findBagEnd(rows.ends, start * keyNum - 1);
    const to = findBagEnd(rows.ends, (start + count) * keyNum - 1);
    const base = at === 0 ? 0 : this.#ends[at * keyNum - 1]!;
    this.#reserve(base, base + to - from);
    this.#keys.set(rows.keys.subarray(2 * from, 2 * to), 2 * base);
    const ends = this.#ends;
    for (let i = 0; i < count * keyNum; i++) {
      ends[at * keyNum + i] = base + findBagEnd(rows.ends, start * keyNum + i) - from;
    }
  }

  /** Makes room for this many values of bags, and keeps the first `used`. */
  #reserve(used: number, values: number): void {
    const shape = this.#shape;
    const room = shape.lookupThread === 'main' ? this.#ownKeys.length / 2 : this.#keys.length / 2;
    if (values <= room) return;
    const old = this.#views;
    const oldKeys = this.#keys;
    this.#slab = allocateSlab(shape, Math.max(values, 2 * room));
    this.#views = viewSlab(shape, this.#slab);
    if (shape.lookupThread === 'main')
      this.#ownKeys = new Uint32Array(2 * Math.max(values, 2 * room));
    this.#keys.set(oldKeys.subarray(0, 2 * used));
    this.#views.ends.set(old.ends);
    this.#views.dense.set(old.dense);
    old.ids.forEach((ids, i) => {
      this.#views.ids[i]!.set(ids);
    });
  }

  /** Finds the users of the first `rowCount` rows, when the graph takes them. */
  assignUsers(rowCount: number): void {
    const { users, keyNum } = this.#shape.plan;
    if (users === undefined) return;
    const keyRows = { keys: this.#keys, ends: this.#ends, keyNum };
    assignUsers(keyRows, users.positions, rowCount, this.#views.rowUsers);
  }

  /** Whether a burst of long bags made it much larger than most batches need. */
  get isOversized(): boolean {
    const { rowsMax, plan } = this.#shape;
    return this.#keys.length > 2 * OVERSIZED_FACTOR * rowsMax * plan.keyNum;
  }

  /**
   * When the main thread looks rows up: the groups to look up, with the distinct keys; their rows
   * are in the slab.
   */
  prepareGroups(rowCount: number): LookupGroup[] {
    const keyRows = {
      keys: this.#keys,
      ends: this.#ends,
      rowStart: 0,
      rowCount,
      rowKeys: this.#shape.plan.keyNum,
    };
    return this.#tables.map((table, t) => table.prepareGroup(keyRows, this.#views.tables[t]!));
  }

  /** Fills `outcomes` after the lookup of the groups. */
  expandOutcomes(rowCount: number): void {
    this.#tables.forEach((table, t) => {
      table.expandOutcomes(this.#views.tables[t]!, rowCount, this.#ownOutcomes[t]!);
    });
  }

  /**
   * For each table, one byte per (row, column). Written by `expandOutcomes`, or by the worker that
   * looked up.
   */
  get outcomes(): readonly Uint8Array[] {
    return this.#shape.lookupThread === 'main' ? this.#ownOutcomes : this.#views.outcomes;
  }

  /** Passed to a worker, which owns it until it replies. */
  get slab(): SharedArrayBuffer {
    return this.#slab;
  }

  /** The graph's outputs, in the order of the shape. */
  get outputs(): readonly Float32Array[] {
    return this.#views.outputs;
  }

  get #ends(): Uint32Array {
    return this.#shape.lookupThread === 'main' ? this.#ownEnds : this.#views.ends;
  }

  get #keys(): Uint32Array {
    return this.#shape.lookupThread === 'main' ? this.#ownKeys : this.#views.keys;
  }
}

/** Counts of lookups; one lookup is one slot of one row in one table. */
export interface OutcomeCounts {
  unseen: number;
  unavailable: number;
}

/**
 * Adds the outcomes of some rows to `counts`.
 * @param byKey when given: three counts (hit, unseen, unavailable) for each position of a row's
 *   keys
 * @param misses when given: the counts of the version
 */
export function countOutcomes(
  { tables }: SlabShape['plan'],
  outcomes: readonly Uint8Array[],
  rows: { readonly batchRow: number; readonly rowCount: number },
  counts: OutcomeCounts,
  byKey: Uint32Array | undefined,
  misses?: KeyMisses,
): void {
  for (let t = 0; t < tables.length; t++) {
    const { columns } = tables[t]!;
    const width = columns.length;
    const tableOutcomes = outcomes[t]!;
    const end = (rows.batchRow + rows.rowCount) * width;
    for (let i = rows.batchRow * width; i < end; i++) {
      const outcome = tableOutcomes[i]!;
      if (byKey !== undefined) byKey[3 * columns[i % width]! + outcome]!++;
      if (outcome === OUTCOME_HIT) continue;
      const isUnseen = outcome === OUTCOME_UNSEEN;
      if (isUnseen) counts.unseen++;
      else counts.unavailable++;
      if (misses === undefined) continue;
      (isUnseen ? misses.unseen : misses.unavailable)[columns[i % width]!]!++;
    }
  }
}

const FREE_BUFFERS_MAX = 64;

/** Buffers that are free for the next batch. The surplus of a burst is garbage-collected. */
export class BatchBufferPool {
  readonly #free: BatchBuffers[] = [];
  readonly #shape: SlabShape;

  constructor(shape: SlabShape) {
    this.#shape = shape;
  }

  acquire(): BatchBuffers {
    return this.#free.pop() ?? new BatchBuffers(this.#shape);
  }

  release(buffers: BatchBuffers): void {
    if (this.#free.length < FREE_BUFFERS_MAX && !buffers.isOversized) this.#free.push(buffers);
  }
}

/** A view of a short array costs more than copying it: V8 gives the array a buffer then. */
function takePart<T extends Float32Array | Uint32Array>(values: T, start: number, end: number): T {
  if (start === 0 && end === values.length) return values;
  return values.subarray(start, end) as T;
}
