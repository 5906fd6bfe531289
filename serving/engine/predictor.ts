/**
 * A prediction, from top to bottom: rows → keys → batches → distinct keys → one pinned lookup → graph → scores.
 *
 * Invariants
 * - One request is answered by one version: graph and rows. An answer of another version fails the request.
 * - A score is never invented: keys whose shard is down fail the request, or (when the policy allows it) the answer says
 *   `degraded` and how many. A graph that gives no number fails the request.
 * - Work whose deadline has passed is not started.
 */
import type { FeatureRows, KeyedRows } from '../../lib/core/features.ts';
import type { LoadedBundle } from '../models/bundle.ts';
import type { EngineRequest, PredictCall } from './engine-request.ts';
import type { Prediction, SlotOutcomes } from './prediction.ts';
import { contentOf } from './request-cache.ts';

export type { DegradationPolicy } from './batching.ts';
export type { PredictCall } from './engine-request.ts';
export type { Prediction, PredictionOutput, SlotOutcomes } from './prediction.ts';

export class Predictor {
  /**
   * Predicts the rows of one request. The bundle is held until the last batch is done.
   * @param request rows of features, or of keys that the caller has hashed
   */
  async predict(
    bundle: LoadedBundle,
    request: FeatureRows | KeyedRows,
    call: PredictCall,
  ): Promise<Prediction> {
    const rows = bundle.keys.extend(bundle.rowKeys.of(request));
    const { cache } = bundle;
    if (cache === undefined || call.detail) return this.#run(bundle, rows, call);
    const content = contentOf(rows);
    const known = cache.get(content);
    bundle.stats.onCache(known);
    if (known !== undefined) return { ...known, timings: NO_TIME };
    const prediction = await this.#run(bundle, rows, call);
    cache.put(content, prediction);
    return prediction;
  }

  async #run(bundle: LoadedBundle, rows: KeyedRows, call: PredictCall): Promise<Prediction> {
    bundle.enter();
    const request = await bundle.batcher.submit(rows, call, () => bundle.leave());
    return toPrediction(bundle, request);
  }
}

/** Of an answer from the cache. */
const NO_TIME = { queueMicros: 0, lookupMicros: 0, inferMicros: 0 } as const;

function toPrediction(bundle: LoadedBundle, request: EngineRequest): Prediction {
  const { rows, counts, byKey, queueMicros, lookupMicros, inferMicros } = request;
  const outputs = bundle.pool.outputs.map(({ name, width }, i) => {
    return { name, width, data: request.outputs[i]! };
  });
  return {
    rowCount: rows.rowCount,
    output: outputs[0]!.data,
    outputNum: outputs[0]!.width,
    outputs,
    version: bundle.version,
    ...counts,
    degraded: counts.unavailable > 0,
    ...(byKey === undefined ? {} : { slots: slotOutcomes(bundle, byKey) }),
    timings: { queueMicros, lookupMicros, inferMicros },
  };
}

/** Slots by their names; keys that are computed from several by what of the graph takes them. */
function slotOutcomes({ plan, features }: LoadedBundle, byKey: Uint32Array): SlotOutcomes[] {
  const looked = new Set(plan.tables.flatMap(({ columns }) => [...columns]));
  return [...looked]
    .sort((a, b) => a - b)
    .map((position) => ({
      slot: features.slots[position]?.name ?? computedName(plan, position),
      hit: byKey[3 * position]!,
      unseen: byKey[3 * position + 1]!,
      unavailable: byKey[3 * position + 2]!,
    }));
}

function computedName({ embeddings, tables }: LoadedBundle['plan'], position: number): string {
  const { input } = embeddings.find(({ table, columns }) =>
    columns.some((column) => tables[table]!.columns[column] === position),
  )!;
  return `${input} (computed)`;
}
