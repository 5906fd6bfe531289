/** Metrics of shadow traffic, by shadow, and comparisons of versions for reports. */
import { ShadowTally } from '../../lib/core/shadow.ts';
import type { Counter, Histogram, MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { ShadowResult } from '../models/shadows.ts';

const DIFFERENCE_BUCKETS = [1e-6, 1e-5, 1e-4, 1e-3, 0.01, 0.05, 0.1, 0.2, 0.5, 1];

const PAIRS_MAX = 100;

/** The answers of `version` to copies of requests that `against` answered. */
export interface ComparedVersions {
  readonly shadow: string;
  /** The model that the requests name. */
  readonly model: string;
  readonly bundle: string;
  /** Empty: no copy was answered yet. */
  readonly version: string;
  readonly against: string;
  readonly tally: ShadowTally;
}

export class ShadowMetrics {
  readonly #requests: Counter<'shadow' | 'outcome'>;
  readonly #durations: Histogram<'shadow' | 'side'>;
  readonly #differences: Histogram<'shadow'>;
  /** By shadow, for the metrics. */
  readonly #tallies = new Map<string, ShadowTally>();
  /** By shadow and versions; the newest pairs of versions only. */
  readonly #pairs = new Map<string, ComparedVersions>();
  /** The version that a shadow's copies were last answered by. */
  readonly #lastVersions = new Map<string, string>();

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
        for (const [shadow, { psi }] of this.#tallies) set({ shadow }, psi);
      },
    });
  }

  /** How the answers of two versions compare, by shadow. */
  get comparisons(): readonly ComparedVersions[] {
    return [...this.#pairs.values()];
  }

  record(result: ShadowResult): void {
    const { shadow, outcome, answers } = result;
    this.#requests.inc({ shadow, outcome });
    const { tally } = this.#findPair(result);
    if (outcome === 'dropped') tally.dropped++;
    else if (answers === undefined) tally.addFailure(outcome);
    if (answers === undefined) return;
    tally.addAnswer(answers);
    const { primary, shadow: second } = answers;
    this.#durations.observe({ shadow, side: 'primary' }, primary.durationMs / 1_000);
    this.#durations.observe({ shadow, side: 'shadow' }, second.durationMs / 1_000);
    const total = this.#tallies.get(shadow) ?? new ShadowTally();
    this.#tallies.set(shadow, total);
    total.addAnswer(answers);
    for (let row = 0; row < primary.scores.length; row++) {
      const difference = (second.scores[row] ?? Number.NaN) - (primary.scores[row] ?? Number.NaN);
      if (!Number.isNaN(difference)) this.#differences.observe({ shadow }, Math.abs(difference));
    }
  }

  /** A copy that failed before its version was known counts for the last known one. */
  #findPair({ shadow, model, bundle, against, version: known }: ShadowResult): ComparedVersions {
    const version = known ?? this.#lastVersions.get(shadow) ?? '';
    this.#lastVersions.set(shadow, version);
    const key = JSON.stringify([shadow, model, against, version]);
    let pair = this.#pairs.get(key);
    if (pair === undefined) {
      pair = { shadow, model, bundle, version, against, tally: new ShadowTally() };
      this.#pairs.set(key, pair);
      const [oldest] = this.#pairs.keys();
      if (this.#pairs.size > PAIRS_MAX && oldest !== undefined) this.#pairs.delete(oldest);
    }
    return pair;
  }
}
