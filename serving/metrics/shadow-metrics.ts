/** Metrics of shadow traffic, by shadow. */
import { ScoreComparison } from '../../lib/core/shadow.ts';
import type { Counter, Histogram, MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { ShadowResult } from '../models/shadows.ts';

const DIFFERENCE_BUCKETS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.5, 1];

export class ShadowMetrics {
  readonly #requests: Counter<'shadow' | 'outcome'>;
  readonly #durations: Histogram<'shadow' | 'side'>;
  readonly #differences: Histogram<'shadow'>;
  readonly #comparisons = new Map<string, ScoreComparison>();

  constructor(registry: MetricsRegistry) {
    this.#requests = registry.counter({
      name: 'hypercube_serving_shadow_requests_total',
      help: 'Copied requests by shadow and outcome: OK, dropped, or an error code.',
      labels: ['shadow', 'outcome'],
    });
    this.#durations = registry.histogram({
      name: 'hypercube_serving_shadow_request_duration_seconds',
      help: 'Time of copied requests (side shadow) and of the requests themselves (side primary).',
      labels: ['shadow', 'side'],
    });
    this.#differences = registry.histogram({
      name: 'hypercube_serving_shadow_score_difference',
      help: "Absolute difference of the shadow's click probability from the primary's, by row.",
      labels: ['shadow'],
      buckets: DIFFERENCE_BUCKETS,
    });
    registry.collectedGauge({
      name: 'hypercube_serving_shadow_score_psi',
      help: "Population stability index of the shadow's click probabilities since the start.",
      labels: ['shadow'],
      collect: (set) => {
        for (const [shadow, { psi }] of this.#comparisons) set({ shadow }, psi);
      },
    });
  }

  record({ shadow, outcome, answers }: ShadowResult): void {
    this.#requests.inc({ shadow, outcome });
    if (answers === undefined) return;
    const { primary, shadow: second } = answers;
    this.#durations.observe({ shadow, side: 'primary' }, primary.durationMs / 1_000);
    this.#durations.observe({ shadow, side: 'shadow' }, second.durationMs / 1_000);
    const comparison = this.#comparisons.get(shadow) ?? new ScoreComparison();
    this.#comparisons.set(shadow, comparison);
    primary.scores.forEach((score, row) => {
      const other = second.scores[row] ?? Number.NaN;
      comparison.add(score, other);
      this.#differences.observe({ shadow }, Math.abs(other - score));
    });
  }
}
