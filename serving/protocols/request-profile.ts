/** The profile of a prediction: which requests ask for one, and its steps beside the engine's. */
import { CubeError } from '../../lib/core/errors.ts';
import type { ProfileStages } from '../../lib/core/request-profile.ts';
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { ProfileRecorder } from '../../lib/platform/profile-recorder.ts';
import type { PredictionSummary } from '../engine/prediction.ts';

/** @throws CubeError INVALID_ARGUMENT when the header `profile` is neither true nor false */
export function readProfileFlag(value: string | string[] | undefined): boolean {
  if (value === undefined || value === '' || value === '0' || value === 'false') return false;
  if (value === '1' || value === 'true') return true;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `header profile: expected true or false, got ${JSON.stringify(value)}`,
  );
}

export class PredictionProfile {
  readonly #clock: Clock;
  readonly #recorder: ProfileRecorder;
  readonly #parsedMs: number;

  /**
   * Starts when the request is parsed. @param arrivedMs when its head arrived
   * @param startMs when its body had arrived
   */
  constructor(
    clock: Clock,
    { arrivedMs, startMs }: { readonly arrivedMs: number; readonly startMs: number },
  ) {
    this.#clock = clock;
    this.#recorder = new ProfileRecorder(clock, arrivedMs);
    this.#parsedMs = clock.nowMs();
    if (arrivedMs < startMs) this.#recorder.addStep('body', arrivedMs, startMs);
    this.#recorder.addStep('parse', startMs, this.#parsedMs);
  }

  /** What the engine records its steps with. */
  get span(): TraceSpan {
    return this.#recorder.span;
  }

  /** Formats the response. @returns it with the profile as JSON */
  format<T>(
    formatResponse: () => T,
    { timings }: PredictionSummary,
  ): { readonly response: T; readonly text: string } {
    const { queueMicros, cacheMicros } = timings;
    const isCached = cacheMicros !== undefined && timings.inferMicros === 0;
    const queuedMs = this.#parsedMs + queueMicros / 1_000;
    if (!isCached) this.#recorder.addStep('queue', this.#parsedMs, queuedMs);
    const startMs = this.#clock.nowMs();
    const response = formatResponse();
    this.#recorder.addStep('format', startMs, this.#clock.nowMs());
    const stages: ProfileStages = {
      queueUs: Math.round(queueMicros),
      lookupUs: Math.round(timings.lookupMicros),
      inferUs: Math.round(timings.inferMicros),
      outputUs: Math.round(timings.outputMicros),
      ...(cacheMicros !== undefined && { cacheUs: Math.round(cacheMicros) }),
    };
    return { response, text: JSON.stringify(this.#recorder.finish(stages)) };
  }
}
