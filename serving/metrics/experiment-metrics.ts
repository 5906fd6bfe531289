/** Metrics of experiments, by experiment and variant. */
import type { ErrorCode } from '../../lib/core/errors.ts';
import type { Counter, Histogram, MetricsRegistry } from '../../lib/platform/metrics.ts';

type VariantLabels = 'experiment' | 'variant';

/** What is recorded of a request in an experiment. */
export interface ExperimentedAnswer {
  readonly assignments: readonly { readonly experiment: string; readonly variant: string }[];
  readonly code: ErrorCode | 'OK';
  readonly durationMs: number;
  /** Click probabilities; none for failed requests and plain models. */
  readonly scores: Iterable<number>;
  readonly unseen: number;
}

const SCORE_BUCKETS = [0.001, 0.003, 0.01, 0.02, 0.05, 0.1, 0.2, 0.3, 0.5, 0.7, 0.9, 1];

export class ExperimentMetrics {
  readonly #requests: Counter<VariantLabels | 'code'>;
  readonly #durations: Histogram<VariantLabels>;
  readonly #scores: Histogram<VariantLabels>;
  readonly #unseen: Counter<VariantLabels>;
  readonly #missing: Counter<VariantLabels>;

  constructor(registry: MetricsRegistry) {
    const labels = ['experiment', 'variant'] as const;
    this.#requests = registry.counter({
      name: 'hypercube_serving_experiment_requests_total',
      help: 'Requests by experiment, variant and result: OK or an error code.',
      labels: [...labels, 'code'],
    });
    this.#durations = registry.histogram({
      name: 'hypercube_serving_experiment_request_duration_seconds',
      help: 'Time from the complete body to the response, by experiment and variant.',
      labels,
    });
    this.#scores = registry.histogram({
      name: 'hypercube_serving_experiment_score',
      help: 'Click probabilities by experiment and variant.',
      labels,
      buckets: SCORE_BUCKETS,
    });
    this.#unseen = registry.counter({
      name: 'hypercube_serving_experiment_lookups_unseen_total',
      help: 'Lookups whose key is not in the table, by experiment and variant.',
      labels,
    });
    this.#missing = registry.counter({
      name: 'hypercube_serving_experiment_variant_missing_total',
      help: 'Requests left out of an experiment because their variant has no loaded version.',
      labels,
    });
  }

  record({ assignments, code, durationMs, scores, unseen }: ExperimentedAnswer): void {
    for (const { experiment, variant } of assignments) {
      const labels = { experiment, variant };
      this.#requests.inc({ ...labels, code });
      this.#durations.observe(labels, durationMs / 1_000);
      if (unseen > 0) this.#unseen.inc(labels, unseen);
      for (const score of scores) this.#scores.observe(labels, score);
    }
  }

  recordMissing({ experiment, variant }: Record<VariantLabels, string>): void {
    this.#missing.inc({ experiment, variant });
  }
}
