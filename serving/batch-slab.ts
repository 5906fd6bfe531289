/**
 * The one buffer of a batch, as it travels to a model worker and back: everything the graph needs in a single plain
 * ArrayBuffer, so that a hand-over moves a pointer and copies nothing.
 *
 *     ┌───────────┬─────────────────┬───────────────────┬──────────────────┬─ per table ─┬──────────────────────┐
 *     │ ids       │ dense           │ index             │ rows             │ …           │ output               │
 *     │ i64 batch │ f32 batch·dense │ i32 batch·columns │ f32 unique · dim │             │ f32 batch·outputNum  │
 *     └───────────┴─────────────────┴───────────────────┴──────────────────┴─────────────┴──────────────────────┘
 *
 * `rows` holds each distinct row of the batch once; `index` says which one each (row, column) takes.
 */
import { BATCH_ROWS_MAX, type GraphPlan } from './graph-plan.ts';

export interface SlabTable {
  readonly index: Int32Array;
  readonly rows: Float32Array;
}

export interface SlabViews {
  /** Of each input that takes the ids themselves; most graphs have none. */
  readonly ids: readonly BigInt64Array[];
  readonly dense: Float32Array;
  readonly tables: readonly SlabTable[];
  readonly output: Float32Array;
}

/** @param outputNum values of the click output in a row */
export function slabBytes(plan: GraphPlan, outputNum: number): number {
  let values = plan.denseNum + outputNum;
  for (const { slots } of plan.ids) values += 2 * slots.length;
  for (const { columns, dim } of plan.tables) values += columns.length * (1 + dim);
  return 4 * BATCH_ROWS_MAX * values;
}

/** Typed views of a slab. They are void once the slab was transferred. */
export function viewSlab(plan: GraphPlan, outputNum: number, slab: ArrayBuffer): SlabViews {
  let at = 0;
  const floats = (count: number): Float32Array => {
    const view = new Float32Array(slab, at, count);
    at += view.byteLength;
    return view;
  };
  const ids = plan.ids.map(({ slots }) => {
    const view = new BigInt64Array(slab, at, BATCH_ROWS_MAX * slots.length);
    at += view.byteLength;
    return view;
  });
  const dense = floats(BATCH_ROWS_MAX * plan.denseNum);
  const tables = plan.tables.map(({ columns, dim }) => {
    const index = new Int32Array(slab, at, BATCH_ROWS_MAX * columns.length);
    at += index.byteLength;
    return { index, rows: floats(index.length * dim) };
  });
  return { ids, dense, tables, output: floats(BATCH_ROWS_MAX * outputNum) };
}
