/**
 * Computes the scores of rows as serving does, without a server: raw row → keys → rows of the
 * tables → graph. Builders verify a version with it before they publish it.
 */
import { CubeError } from '../core/errors.ts';
import type { FeatureRows, KeyedRows } from '../core/feature-rows.ts';
import type { LookupGroup } from '../core/lookup-group.ts';
import type { Manifest } from '../core/manifest.ts';
import type { FeatureSpec, SlotSpec } from '../core/slots.ts';
import { ComputedKeys } from './computed-keys.ts';
import type { TableRows } from './gather-rows.ts';
import { type GraphPlan, planGraph } from './graph-plan.ts';
import { GraphRunner } from './graph-runner.ts';
import { addImpliedFeatures } from './implied-features.ts';
import { RowKeys } from './row-keys.ts';
import { copySlotIds, findBagEnd } from './slot-ids.ts';
import { TableBatch } from './table-batch.ts';

/** Rows of one call of `score`. */
export const SCORED_ROWS_MAX = 64;

/** Fills the rows and outcomes of a group; an unseen key gets the default row of its table. */
export type FillRows = (group: LookupGroup) => void;

export interface ScoredVersion {
  readonly spec: SlotSpec;
  /** Names, dims and default rows of the tables. */
  readonly manifest: Manifest;
  readonly graph: { readonly model: Uint8Array; readonly data: ReadonlyMap<string, Uint8Array> };
  readonly fillRows: FillRows;
}

export class RowScorer {
  readonly features: FeatureSpec;
  readonly #plan: GraphPlan;
  readonly #rowKeys: RowKeys;
  readonly #computedKeys: ComputedKeys;
  readonly #batches: readonly TableBatch[];
  readonly #runner: GraphRunner;
  readonly #fillRows: FillRows;

  private constructor(
    features: FeatureSpec,
    keys: ComputedKeys,
    parts: { plan: GraphPlan; runner: GraphRunner; fillRows: FillRows },
  ) {
    this.features = features;
    this.#plan = parts.plan;
    this.#rowKeys = new RowKeys(features);
    this.#computedKeys = keys;
    this.#batches = parts.plan.tables.map((table) => new TableBatch(table, SCORED_ROWS_MAX));
    this.#runner = parts.runner;
    this.#fillRows = parts.fillRows;
  }

  /** @throws CubeError when the version cannot be served */
  static async load({ spec, manifest, graph, fillRows }: ScoredVersion): Promise<RowScorer> {
    const complete = addImpliedFeatures(spec, `${manifest.bundle} ${manifest.version}`);
    const keys = new ComputedKeys(complete);
    const plan = planGraph(complete, manifest, keys);
    const runner = await GraphRunner.load(graph, plan, SCORED_ROWS_MAX);
    return new RowScorer(complete.features, keys, { plan, runner, fillRows });
  }

  /** The keys of rows, slot by slot, then the computed ones. */
  toKeyedRows(rows: FeatureRows | KeyedRows): KeyedRows {
    return this.#computedKeys.addComputedKeys(this.#rowKeys.toKeyedRows(rows));
  }

  /**
   * @param rows at most SCORED_ROWS_MAX. @returns a score per row
   * @throws CubeError naming the row that does not fit the model
   */
  async score(rows: FeatureRows | KeyedRows): Promise<Float64Array> {
    const { rowCount } = rows;
    if (rowCount > SCORED_ROWS_MAX) throw new CubeError('TOO_LARGE', `${rowCount} rows at once`);
    const keyed = this.toKeyedRows(rows);
    const { keyNum, ids, clickColumn } = this.#plan;
    const idColumns = ids.map(({ slots }) => {
      const columns = new BigInt64Array(rowCount * slots.length);
      copySlotIds(columns, slots, { rows: keyed, start: 0, count: rowCount, keyNum });
      return columns;
    });
    const tables = this.#batches.map((_, t) => this.#lookUp(t, keyed));
    const targets = this.#runner.outputs.map(({ width }) => new Float32Array(rowCount * width));
    const inputs = { ids: idColumns, dense: keyed.dense, tables, readyTensors: [] };
    await this.#runner.run(inputs, rowCount, targets);
    const clicks = targets[0]!;
    const width = clicks.length / rowCount;
    return Float64Array.from({ length: rowCount }, (_, row) => clicks[row * width + clickColumn]!);
  }

  release(): Promise<void> {
    return this.#runner.release();
  }

  #lookUp(t: number, { keys, ends, rowCount }: KeyedRows): TableRows {
    const { keyNum, tables, hasBags } = this.#plan;
    const { columns, dim } = tables[t]!;
    const bagEnds = hasBags ? (ends ?? countUp(rowCount * keyNum)) : new Uint32Array(0);
    const values = findBagEnd(ends, rowCount * keyNum - 1);
    const room = Math.max(values, rowCount * columns.length);
    const target = {
      index: new Int32Array(room),
      ends: new Uint32Array(hasBags ? rowCount * columns.length : 0),
      rows: new Float32Array(room * dim),
    };
    const range = { keys, ends: bagEnds, rowStart: 0, rowCount, rowKeys: keyNum };
    this.#fillRows(this.#batches[t]!.prepareGroup(range, target));
    return target;
  }
}

/** The ends of bags of one value each. */
function countUp(count: number): Uint32Array {
  return Uint32Array.from({ length: count }, (_, i) => i + 1);
}
