/** Responses of the CTR protocol, shared by HTTP and gRPC. */
import type { CtrResponse } from '../../proto/ctr.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import type { Prediction } from '../engine/prediction.ts';

export function toCtrResponse(
  prediction: Prediction,
  { manifest, plan }: LoadedBundle,
  { timings }: { readonly timings: boolean },
): CtrResponse {
  const { version, unseen, unavailable, degraded } = prediction;
  return {
    model: manifest.bundle,
    version: manifest.version,
    tablesVersion: version,
    probabilities: getClickProbabilities(prediction, plan),
    unseen,
    unavailable,
    degraded,
    ...(prediction.slots === undefined ? {} : { slots: prediction.slots }),
    ...(timings ? { timings: roundTimings(prediction.timings) } : {}),
  };
}

/** The click probability of each row. */
export function getClickProbabilities(
  { clickOutput, clickWidth, rowCount }: Prediction,
  { clickColumn }: Pick<LoadedBundle['plan'], 'clickColumn'>,
): Float32Array {
  const probabilities = new Float32Array(rowCount);
  for (let row = 0; row < rowCount; row++) {
    probabilities[row] = clickOutput[row * clickWidth + clickColumn]!;
  }
  return probabilities;
}

function roundTimings(timings: Prediction['timings']): NonNullable<CtrResponse['timings']> {
  return {
    queueMicros: Math.round(timings.queueMicros),
    lookupMicros: Math.round(timings.lookupMicros),
    inferMicros: Math.round(timings.inferMicros),
  };
}

export function formatCtrJson(response: CtrResponse): object {
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
