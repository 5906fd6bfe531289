/**
 * Metrics under Paddle Serving's names, for its dashboards (`--metric-names paddle`): of the
 * process, over all protocols and models; times are in microseconds.
 */
import type { MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { PredictionSummary } from '../engine/prediction.ts';

export class PaddleMetrics {
  #successes = 0;
  #failures = 0;
  #durationMicros = 0;
  #inferences = 0;
  #inferMicros = 0;

  constructor(registry: MetricsRegistry) {
    const count = (name: string, help: string, value: () => number): void =>
      registry.collectedCounter({ name, help, collect: (set) => set({}, value()) });
    count('pd_query_request_success_total', 'Answered requests.', () => this.#successes);
    count('pd_query_request_failure_total', 'Failed requests.', () => this.#failures);
    count(
      'pd_query_request_duration_us_total',
      'Time from the complete body to the response, summed over requests.',
      () => this.#durationMicros,
    );
    count(
      'pd_inference_count_total',
      'Requests that the graph answered; responses from the request cache are not included.',
      () => this.#inferences,
    );
    count(
      'pd_inference_duration_us_total',
      'Time of the graph runs of requests, summed over requests.',
      () => this.#inferMicros,
    );
  }

  recordAnswer({ timings }: PredictionSummary): void {
    this.#successes++;
    this.#inferMicros += timings.inferMicros;
    if (timings.inferMicros > 0) this.#inferences++;
  }

  recordFailure(): void {
    this.#failures++;
  }

  recordDuration(durationMs: number): void {
    this.#durationMicros += 1_000 * durationMs;
  }
}
