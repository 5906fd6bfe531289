/**
 * The buffers of one batch in flight, made once and used for batch after batch: the slab that a model worker shares, and,
 * where the main thread looks up, what it does not (keys, distinct keys, outcomes). Rows of several requests stand one behind
 * another.
 */
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../../lib/client/lookup-group.ts';
import type { KeyedRows } from '../../lib/core/features.ts';
import { makeSlab, type SlabShape, type SlabViews, viewSlab } from './batch-slab.ts';
import { TableBatch } from './table-batch.ts';

/** Buffers for so many times the values of a batch with one in each bag are not kept. */
const GROWN_MAX = 16;

export class BatchBuffers {
  readonly #shape: SlabShape;
  readonly #tables: readonly TableBatch[];
  #ownKeys: Uint32Array;
  readonly #ownEnds: Uint32Array;
  readonly #ownOutcomes: readonly Uint8Array[];
  #slab: SharedArrayBuffer;
  #views: SlabViews;

  constructor(shape: SlabShape) {
    const { plan, rowsMax, looksUp } = shape;
    const tables = looksUp === 'main' ? plan.tables : [];
    this.#shape = shape;
    this.#tables = tables.map((table) => new TableBatch(table, rowsMax));
    const isMain = looksUp === 'main';
    this.#ownKeys = new Uint32Array(isMain ? 2 * rowsMax * plan.keyNum : 0);
    this.#ownEnds = new Uint32Array(isMain && plan.hasBags ? rowsMax * plan.keyNum : 0);
    this.#ownOutcomes = tables.map(({ columns }) => new Uint8Array(rowsMax * columns.length));
    this.#slab = makeSlab(shape, rowsMax * plan.keyNum);
    this.#views = viewSlab(shape, this.#slab);
  }

  /** Copies rows [start, start + count) of a request to the batch's rows from `at` on, where those added before end. */
  add(rows: KeyedRows, start: number, count: number, at: number): void {
    const { denseNum, keyNum, ids, hasBags } = this.#shape.plan;
    const end = start + count;
    this.#views.dense.set(rows.dense.subarray(start * denseNum, end * denseNum), at * denseNum);
    if (hasBags) this.#addBags(rows, start, count, at);
    else this.#keys.set(rows.keys.subarray(2 * start * keyNum, 2 * end * keyNum), 2 * at * keyNum);
    for (let i = 0; i < ids.length; i++) {
      const { slots } = ids[i]!;
      copyIds(this.#views.ids[i]!.subarray(at * slots.length), slots, {
        rows,
        start,
        count,
        keyNum,
      });
    }
  }

  #addBags(rows: KeyedRows, start: number, count: number, at: number): void {
    const { keyNum } = this.#shape.plan;
    const from = bagEnd(rows.ends, start * keyNum - 1);
    const to = bagEnd(rows.ends, (start + count) * keyNum - 1);
    const base = at === 0 ? 0 : this.#ends[at * keyNum - 1]!;
    this.#reserve(base, base + to - from);
    this.#keys.set(rows.keys.subarray(2 * from, 2 * to), 2 * base);
    const ends = this.#ends;
    for (let i = 0; i < count * keyNum; i++) {
      ends[at * keyNum + i] = base + bagEnd(rows.ends, start * keyNum + i) - from;
    }
  }

  /** Makes room for values of bags, of which `used` are there. */
  #reserve(used: number, values: number): void {
    const shape = this.#shape;
    const room = shape.looksUp === 'main' ? this.#ownKeys.length / 2 : this.#keys.length / 2;
    if (values <= room) return;
    const old = this.#views;
    const oldKeys = this.#keys;
    this.#slab = makeSlab(shape, Math.max(values, 2 * room));
    this.#views = viewSlab(shape, this.#slab);
    if (shape.looksUp === 'main') this.#ownKeys = new Uint32Array(2 * Math.max(values, 2 * room));
    this.#keys.set(oldKeys.subarray(0, 2 * used));
    this.#views.ends.set(old.ends);
    this.#views.dense.set(old.dense);
    old.ids.forEach((ids, i) => {
      this.#views.ids[i]!.set(ids);
    });
  }

  /** Much larger than most batches need: a burst of long bags has grown it. */
  get isGrown(): boolean {
    const { rowsMax, plan } = this.#shape;
    return this.#keys.length > 2 * GROWN_MAX * rowsMax * plan.keyNum;
  }

  /** Where the main thread looks up: the batch's distinct keys; the groups' rows are the slab's. */
  groups(rowCount: number): LookupGroup[] {
    const keyRows = {
      ...{ keys: this.#keys, ends: this.#ends, rowStart: 0, rowCount },
      rowKeys: this.#shape.plan.keyNum,
    };
    return this.#tables.map((table, t) => table.group(keyRows, this.#views.tables[t]!));
  }

  /** The same, once they were looked up: makes `outcomes`. */
  spreadOutcomes(rowCount: number): void {
    this.#tables.forEach((table, t) => {
      table.spread(this.#views.tables[t]!, rowCount, this.#ownOutcomes[t]!);
    });
  }

  /** For each table one byte a (row, column). Written by `spreadOutcomes`, or by the worker that looked up. */
  get outcomes(): readonly Uint8Array[] {
    return this.#shape.looksUp === 'main' ? this.#ownOutcomes : this.#views.outcomes;
  }

  /** For a hand-over: the worker's until it answers. */
  get slab(): SharedArrayBuffer {
    return this.#slab;
  }

  /** The graph's outputs, in the order of the shape. */
  get outputs(): readonly Float32Array[] {
    return this.#views.outputs;
  }

  get #ends(): Uint32Array {
    return this.#shape.looksUp === 'main' ? this.#ownEnds : this.#views.ends;
  }

  get #keys(): Uint32Array {
    return this.#shape.looksUp === 'main' ? this.#ownKeys : this.#views.keys;
  }
}

/** How the lookups of some rows went: one is one slot of one row in one table. */
export interface OutcomeCounts {
  unseen: number;
  unavailable: number;
}

/**
 * Adds the outcomes of some rows.
 * @param byKey when given: three counts (hit, unseen, unavailable) for each position of a row's keys
 */
export function countOutcomes(
  { tables }: SlabShape['plan'],
  outcomes: readonly Uint8Array[],
  rows: { readonly at: number; readonly count: number },
  counts: OutcomeCounts,
  byKey: Uint32Array | undefined,
): void {
  for (let t = 0; t < tables.length; t++) {
    const { columns } = tables[t]!;
    const width = columns.length;
    const own = outcomes[t]!;
    const end = (rows.at + rows.count) * width;
    for (let i = rows.at * width; i < end; i++) {
      const outcome = own[i]!;
      if (byKey !== undefined) byKey[3 * columns[i % width]! + outcome]!++;
      if (outcome === OUTCOME_HIT) continue;
      if (outcome === OUTCOME_UNSEEN) counts.unseen++;
      else counts.unavailable++;
    }
  }
}

/** Where bag i of a request ends; the one before the first ends at 0. */
function bagEnd(ends: Uint32Array | undefined, i: number): number {
  if (ends === undefined) return i + 1;
  return i < 0 ? 0 : ends[i]!;
}

/** The ids that the graph itself takes: the keys of these slots, which have one each. */
function copyIds(
  target: BigInt64Array,
  slots: Int32Array,
  from: { rows: KeyedRows; start: number; count: number; keyNum: number },
): void {
  const { rows, start, count, keyNum } = from;
  const { keys, ends } = rows;
  const words = new Uint32Array(target.buffer, target.byteOffset, 2 * target.length);
  let to = 0;
  for (let row = start; row < start + count; row++) {
    for (let column = 0; column < slots.length; column++) {
      const at = 2 * bagEnd(ends, row * keyNum + slots[column]! - 1);
      words[to++] = keys[at]!;
      words[to++] = keys[at + 1]!;
    }
  }
}

/** Buffers that wait for the next batch; a burst's surplus goes to the collector. */
export class BatchBufferPool {
  static readonly #KEPT_MAX = 64;
  readonly #free: BatchBuffers[] = [];
  readonly #shape: SlabShape;

  constructor(shape: SlabShape) {
    this.#shape = shape;
  }

  take(): BatchBuffers {
    return this.#free.pop() ?? new BatchBuffers(this.#shape);
  }

  give(buffers: BatchBuffers): void {
    if (this.#free.length < BatchBufferPool.#KEPT_MAX && !buffers.isGrown) this.#free.push(buffers);
  }
}
