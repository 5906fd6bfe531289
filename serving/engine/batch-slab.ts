/**
 * The slab: one buffer with everything that the graph needs for a batch. The main thread fills it,
 * and the model worker owns it from the request to the reply, so passing a batch copies nothing.
 * The buffer is shared, not transferred: a transfer needs new views on both sides, and once any
 * buffer was detached, V8 checks every array access for it, which costs a quarter more time.
 *
 *   ┌───────────┬─────────────────┬─ worker looks up: ─────┬─ per output ────┬─ worker: per table ┐
 *   │ ids       │ dense           │ keys (low, high)       │ output          │ outcomes           │
 *   │ i64 batch │ f32 batch·dense │ u32 2·batch·keyNum     │ f32 batch·width │ u8 batch·columns   │
 *   │           │                 ├─ main, per table: ─────┤                 │                    │
 *   │           │                 │ index i32 batch·columns│                 │                    │
 *   │           │                 │ rows  f32 unique·dim   │                 │                    │
 *   └───────────┴─────────────────┴────────────────────────┴─────────────────┴────────────────────┘
 *
 * Before all this comes the worker's result. `rows` has each distinct row of the batch once;
 * `index` says which row each (row, column) takes.
 *
 * When slots have bags, the length of the slab decides how many values it has room for: keys, or
 * index entries and rows of each table. The ends of the bags come before the keys (u32
 * batch·keyNum), and before each index (u32 batch·columns).
 */
import type { TableRows } from '../../lib/features/gather-rows.ts';
import type { GraphPlan, OutputShape } from '../../lib/features/graph-plan.ts';

/** Decides the layout of a slab; equal on both threads. */
export interface SlabShape {
  readonly plan: GraphPlan;
  /** Rows of the largest batch. */
  readonly rowsMax: number;
  readonly outputs: readonly OutputShape[];
  /**
   * `worker`: the slab has keys, and the worker adds outcomes. `main`: the slab has rows when the
   * worker gets it.
   */
  readonly lookupThread: 'worker' | 'main';
}

/** Unseen keys, microseconds of the lookup, microseconds of the run. */
const RESULT_VALUES = 3;
const RESULT_BYTES = 8 * RESULT_VALUES;

export interface SlabViews {
  /** Written by the worker after the batch. */
  readonly result: Float64Array;
  /** For each graph input that takes the ids themselves; most graphs have none. */
  readonly ids: readonly BigInt64Array[];
  /** The user of each row; empty unless the plan has users. */
  readonly rowUsers: Int32Array;
  readonly dense: Float32Array;
  /** Empty unless a worker looks up. */
  readonly keys: Uint32Array;
  /** Where the keys of each (row, key column) end; empty unless a worker looks up bags. */
  readonly ends: Uint32Array;
  /** Empty when a worker looks up, because it has its own rows. */
  readonly tables: readonly TableRows[];
  /** One for each output of the shape. */
  readonly outputs: readonly Float32Array[];
  /** For each table, one byte per (row, column); empty unless a worker looks up. */
  readonly outcomes: readonly Uint8Array[];
}

/** @param values room for values, when slots have bags */
export function allocateSlab(shape: SlabShape, values: number): SharedArrayBuffer {
  const { rowBytes, valueBytes } = computeSlabBytes(shape);
  return new SharedArrayBuffer(RESULT_BYTES + shape.rowsMax * rowBytes + values * valueBytes);
}

/** Bytes for each row of the largest batch, and for each value of a bag. */
function computeSlabBytes({ plan, outputs, lookupThread }: SlabShape): {
  rowBytes: number;
  valueBytes: number;
} {
  const { denseNum, keyNum, tables, hasBags } = plan;
  let rowBytes = 4 * denseNum;
  for (const { width } of outputs) rowBytes += 4 * width;
  for (const { slots } of plan.ids) rowBytes += 8 * slots.length;
  if (plan.users !== undefined) rowBytes += 4;
  const columnNum = tables.reduce((sum, { columns }) => sum + columns.length, 0);
  const sumTables = (count: (table: (typeof tables)[number]) => number): number =>
    tables.reduce((sum, table) => sum + count(table) * 4 * (1 + table.dim), 0);
  if (lookupThread === 'worker') {
    rowBytes += columnNum;
    const valueBytes = 8;
    if (hasBags) return { rowBytes: rowBytes + 4 * keyNum, valueBytes };
    return { rowBytes: rowBytes + keyNum * valueBytes, valueBytes: 0 };
  }
  if (hasBags) return { rowBytes: rowBytes + 4 * columnNum, valueBytes: sumTables(() => 1) };
  return { rowBytes: rowBytes + sumTables(({ columns }) => columns.length), valueBytes: 0 };
}

/** Makes the typed views of a slab. */
export function viewSlab(shape: SlabShape, slab: SharedArrayBuffer): SlabViews {
  const { plan, rowsMax, lookupThread } = shape;
  const { rowBytes, valueBytes } = computeSlabBytes(shape);
  const valuesBytes = slab.byteLength - RESULT_BYTES - rowsMax * rowBytes;
  const room = valueBytes === 0 ? 0 : Math.floor(valuesBytes / valueBytes);
  const countValues = (perRow: number): number => (plan.hasBags ? room : rowsMax * perRow);
  const countEnds = (perRow: number): number => (plan.hasBags ? rowsMax * perRow : 0);
  let offset = RESULT_BYTES;
  const nextFloats = (count: number): Float32Array => {
    const view = new Float32Array(slab, offset, count);
    offset += view.byteLength;
    return view;
  };
  const nextWords = (count: number): Uint32Array => {
    const view = new Uint32Array(slab, offset, count);
    offset += view.byteLength;
    return view;
  };
  const ids = plan.ids.map(({ slots }) => {
    const view = new BigInt64Array(slab, offset, rowsMax * slots.length);
    offset += view.byteLength;
    return view;
  });
  const rowUsers = new Int32Array(slab, offset, plan.users === undefined ? 0 : rowsMax);
  offset += rowUsers.byteLength;
  const dense = nextFloats(rowsMax * plan.denseNum);
  const ends = nextWords(lookupThread === 'worker' ? countEnds(plan.keyNum) : 0);
  const keys = nextWords(lookupThread === 'worker' ? 2 * countValues(plan.keyNum) : 0);
  const mainTables = lookupThread === 'main' ? plan.tables : [];
  const tables = mainTables.map(({ columns, dim }) => {
    const ends = nextWords(countEnds(columns.length));
    const index = new Int32Array(slab, offset, countValues(columns.length));
    offset += index.byteLength;
    return { ends, index, rows: nextFloats(index.length * dim) };
  });
  const outputs = shape.outputs.map(({ width }) => nextFloats(rowsMax * width));
  const workerTables = lookupThread === 'worker' ? plan.tables : [];
  const outcomes = workerTables.map(({ columns }) => {
    const view = new Uint8Array(slab, offset, rowsMax * columns.length);
    offset += view.byteLength;
    return view;
  });
  const result = viewResult(slab);
  return { result, ids, rowUsers, dense, ends, keys, tables, outputs, outcomes };
}

/** The part of a slab that does not depend on its shape. */
export function viewResult(slab: SharedArrayBuffer): Float64Array {
  return new Float64Array(slab, 0, RESULT_VALUES);
}
