/**
 * The entry of the engine: turns the features of a request into keys, answers from the request
 * cache, or submits the keys to the batcher. run-batch.ts describes the way of a prediction.
 *
 * Invariants
 * - One version answers a request: its graph and its rows.
 * - A score is never invented. Keys whose shard is down fail the request, or, when the policy
 *   tolerates them, the prediction is marked degraded and counts them.
 */
import { requireDefined } from '../../lib/core/errors.ts';
import type { FeatureRows, KeyedRows } from '../../lib/core/feature-rows.ts';
import { systemClock } from '../../lib/platform/clock.ts';
import type { EngineRequest } from './engine-request.ts';
import type { LoadedBundle } from './loaded-bundle.ts';
import type { Prediction, PredictOptions, SlotOutcomes } from './prediction.ts';
import { countPredictionBytes, toCacheKey } from './request-cache.ts';

export class Predictor {
  /**
   * Predicts the rows of one request. The bundle is not unloaded before the last batch has ended.
   * @param request rows of features, or of keys that the caller hashed
   */
  async predict(
    bundle: LoadedBundle,
    request: FeatureRows | KeyedRows,
    options: PredictOptions,
  ): Promise<Prediction> {
    const rows = bundle.keys.addComputedKeys(bundle.rowKeys.toKeyedRows(request));
    const { cache } = bundle;
    if (cache === undefined || options.slotOutcomes) return this.#run(bundle, rows, options);
    const startMs = systemClock.nowMs();
    const key = toCacheKey(rows);
    const cached = cache.get(key);
    const cacheMicros = 1_000 * (systemClock.nowMs() - startMs);
    bundle.stats.recordCacheLookup(cached, cacheMicros);
    if (cached !== undefined) return { ...cached, timings: { cacheMicros, ...NO_TIMINGS } };
    const prediction = await this.#run(bundle, rows, options);
    // A degraded prediction is never cached.
    if (!prediction.degraded) cache.put(key, prediction, countPredictionBytes(prediction));
    return { ...prediction, timings: { cacheMicros, ...prediction.timings } };
  }

  async #run(bundle: LoadedBundle, rows: KeyedRows, options: PredictOptions): Promise<Prediction> {
    bundle.acquire();
    const request = await bundle.batcher.submit(rows, options, () => bundle.release());
    return toPrediction(bundle, request);
  }
}

/** Timings of a prediction from the cache. */
const NO_TIMINGS = { queueMicros: 0, lookupMicros: 0, inferMicros: 0, outputMicros: 0 } as const;

function toPrediction(bundle: LoadedBundle, request: EngineRequest): Prediction {
  const { rows, counts, outcomesByKey } = request;
  const { queueMicros, lookupMicros, inferMicros, outputMicros } = request;
  const outputs = bundle.pool.outputs.map(({ name, width }, i) => {
    return { name, width, data: request.outputs[i]! };
  });
  const click = requireDefined(outputs[0], 'the click output');
  return {
    rowCount: rows.rowCount,
    clickOutput: click.data,
    clickWidth: click.width,
    outputs,
    version: bundle.version,
    ...counts,
    degraded: counts.unavailable > 0,
    ...(outcomesByKey === undefined ? {} : { slots: summarizeSlots(bundle, outcomesByKey) }),
    timings: { queueMicros, lookupMicros, inferMicros, outputMicros },
  };
}

function summarizeSlots({ lookupSlots }: LoadedBundle, byKey: Uint32Array): SlotOutcomes[] {
  return lookupSlots.map(({ position, name }) => ({
    slot: name,
    hit: byKey[3 * position] ?? 0,
    unseen: byKey[3 * position + 1] ?? 0,
    unavailable: byKey[3 * position + 2] ?? 0,
  }));
}
