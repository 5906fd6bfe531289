/** What the CTR door answers, over HTTP and gRPC alike. */
import type { CtrResponse } from '../../proto/ctr.ts';
import type { Prediction } from '../engine/predictor.ts';
import type { LoadedBundle } from '../models/bundle.ts';

export function ctrAnswer(
  prediction: Prediction,
  { manifest, plan }: LoadedBundle,
  { timings }: { readonly timings: boolean },
): CtrResponse {
  const { output, outputNum, rowCount, version, unseen, unavailable, degraded } = prediction;
  const probabilities = new Float32Array(rowCount);
  for (let row = 0; row < rowCount; row++) {
    probabilities[row] = output[row * outputNum + plan.clickColumn]!;
  }
  return {
    model: manifest.bundle,
    version: manifest.version,
    tablesVersion: version,
    ...{ probabilities, unseen, unavailable, degraded },
    ...(prediction.slots === undefined ? {} : { slots: prediction.slots }),
    ...(timings ? { timings: wholeMicros(prediction.timings) } : {}),
  };
}

function wholeMicros(timings: Prediction['timings']): NonNullable<CtrResponse['timings']> {
  return {
    queueMicros: Math.round(timings.queueMicros),
    lookupMicros: Math.round(timings.lookupMicros),
    inferMicros: Math.round(timings.inferMicros),
  };
}

export function ctrJson(response: CtrResponse): object {
  const { slots, timings } = response;
  const json = {
    model: response.model,
    version: response.version,
    tables_version: response.tablesVersion,
    probabilities: Array.from(response.probabilities),
    unseen: response.unseen,
    unavailable: response.unavailable,
    degraded: response.degraded,
  };
  if (slots === undefined && timings === undefined) return json;
  return {
    ...json,
    ...(slots === undefined ? {} : { slots }),
    ...(timings === undefined
      ? {}
      : {
          timings: {
            queue_micros: timings.queueMicros,
            lookup_micros: timings.lookupMicros,
            infer_micros: timings.inferMicros,
          },
        }),
  };
}
