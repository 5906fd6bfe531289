/**
 * The one buffer of a batch, which the main thread and a model worker share: everything the graph needs, so that a hand-over is a
 * word and copies nothing. Only one of them uses it at a time: the main thread fills it, the worker has it until it answers.
 * Shared, not transferred: a transfer costs both sides a message of objects and new views, and where a buffer was ever
 * detached the engine checks each access to any array for it, which takes a quarter more time.
 *
 *     ┌───────────┬─────────────────┬─ worker looks up: ──────────────────────┬─ per output ─────────┬─ worker looks up: per table ─┐
 *     │ ids       │ dense           │ keys (low, high)                        │ output               │ outcomes                     │
 *     │ i64 batch │ f32 batch·dense │ u32 2·batch·keyNum                      │ f32 batch·width      │ u8 batch·columns             │
 *     │           │                 ├─ else, per table: ──────────────────────┤                      │                              │
 *     │           │                 │ index               rows                │                      │                              │
 *     │           │                 │ i32 batch·columns   f32 unique·dim      │                      │                              │
 *     └───────────┴─────────────────┴─────────────────────────────────────────┴──────────────────────┴──────────────────────────────┘
 *
 * `rows` holds each distinct row of the batch once; `index` says which one each (row, column) takes.
 *
 * Where slots have bags, there are as many keys (and of each table as much index and as many rows) as the slab has room for values,
 * which is what its length says; before keys, and before each index, stand the ends: u32 batch·keyNum, and batch·columns.
 */
import type { TableRows } from '../features/gather.ts';
import type { GraphPlan } from '../features/graph-plan.ts';

/** A float output of the graph, and how many values of it a row has. */
export interface OutputShape {
  readonly name: string;
  readonly width: number;
}

/** What decides where things lie in a slab; equal on both sides. */
export interface SlabShape {
  readonly plan: GraphPlan;
  /** Of the largest batch. */
  readonly rowsMax: number;
  readonly outputs: readonly OutputShape[];
  /** Who looks up: a worker takes keys and gives outcomes, else rows are there when it gets the slab. */
  readonly looksUp: 'worker' | 'main';
}

export interface SlabViews {
  /** Of each input that takes the ids themselves; most graphs have none. */
  readonly ids: readonly BigInt64Array[];
  readonly dense: Float32Array;
  /** Empty unless a worker looks up. */
  readonly keys: Uint32Array;
  /** Where the keys of each (row, key column) end; empty unless a worker looks up bags. */
  readonly ends: Uint32Array;
  /** Empty when a worker looks up: it has its own. */
  readonly tables: readonly TableRows[];
  /** One for each output of the shape. */
  readonly outputs: readonly Float32Array[];
  /** One byte for each (row, column) of each table; empty unless a worker looks up. */
  readonly outcomes: readonly Uint8Array[];
}

/** @param values how many it has room for, where slots have bags */
export function makeSlab(shape: SlabShape, values: number): SharedArrayBuffer {
  const { rowBytes, valueBytes } = slabBytes(shape);
  return new SharedArrayBuffer(shape.rowsMax * rowBytes + values * valueBytes);
}

/** Bytes for each row of the largest batch, and for each value of a bag. */
function slabBytes({ plan, outputs, looksUp }: SlabShape): {
  rowBytes: number;
  valueBytes: number;
} {
  const { denseNum, keyNum, tables, hasBags } = plan;
  let rowBytes = 4 * denseNum;
  for (const { width } of outputs) rowBytes += 4 * width;
  for (const { slots } of plan.ids) rowBytes += 8 * slots.length;
  const columnNum = tables.reduce((sum, { columns }) => sum + columns.length, 0);
  const ofTables = (count: (table: (typeof tables)[number]) => number): number =>
    tables.reduce((sum, table) => sum + count(table) * 4 * (1 + table.dim), 0);
  if (looksUp === 'worker') {
    rowBytes += columnNum;
    const valueBytes = 8;
    if (hasBags) return { rowBytes: rowBytes + 4 * keyNum, valueBytes };
    return { rowBytes: rowBytes + keyNum * valueBytes, valueBytes: 0 };
  }
  if (hasBags) return { rowBytes: rowBytes + 4 * columnNum, valueBytes: ofTables(() => 1) };
  return { rowBytes: rowBytes + ofTables(({ columns }) => columns.length), valueBytes: 0 };
}

/** Typed views of a slab. */
export function viewSlab(shape: SlabShape, slab: SharedArrayBuffer): SlabViews {
  const { plan, rowsMax, looksUp } = shape;
  const { rowBytes, valueBytes } = slabBytes(shape);
  const room =
    valueBytes === 0 ? 0 : Math.floor((slab.byteLength - rowsMax * rowBytes) / valueBytes);
  const valuesOf = (perRow: number): number => (plan.hasBags ? room : rowsMax * perRow);
  const endsOf = (perRow: number): number => (plan.hasBags ? rowsMax * perRow : 0);
  let at = 0;
  const floats = (count: number): Float32Array => {
    const view = new Float32Array(slab, at, count);
    at += view.byteLength;
    return view;
  };
  const words = (count: number): Uint32Array => {
    const view = new Uint32Array(slab, at, count);
    at += view.byteLength;
    return view;
  };
  const ids = plan.ids.map(({ slots }) => {
    const view = new BigInt64Array(slab, at, rowsMax * slots.length);
    at += view.byteLength;
    return view;
  });
  const dense = floats(rowsMax * plan.denseNum);
  const ends = words(looksUp === 'worker' ? endsOf(plan.keyNum) : 0);
  const keys = words(looksUp === 'worker' ? 2 * valuesOf(plan.keyNum) : 0);
  const lookedUp = looksUp === 'main' ? plan.tables : [];
  const tables = lookedUp.map(({ columns, dim }) => {
    const ends = words(endsOf(columns.length));
    const index = new Int32Array(slab, at, valuesOf(columns.length));
    at += index.byteLength;
    return { ends, index, rows: floats(index.length * dim) };
  });
  const outputs = shape.outputs.map(({ width }) => floats(rowsMax * width));
  const toLookUp = looksUp === 'worker' ? plan.tables : [];
  const outcomes = toLookUp.map(({ columns }) => {
    const view = new Uint8Array(slab, at, rowsMax * columns.length);
    at += view.byteLength;
    return view;
  });
  return { ids, dense, ends, keys, tables, outputs, outcomes };
}
