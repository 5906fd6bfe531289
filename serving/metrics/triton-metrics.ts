/**
 * Metrics under Triton's names, for its dashboards (`--metric-names triton`); times are in
 * microseconds. Series exist while their version is loaded.
 */
import type { MetricsRegistry, Summary } from '../../lib/platform/metrics.ts';
import type { EngineStats } from '../engine/engine-stats.ts';
import type { PredictionSummary } from '../engine/prediction.ts';
import type { Models } from '../models/model-registry.ts';

type VersionLabel = 'model' | 'version';

interface TritonMetric {
  readonly name: string;
  readonly help: string;
  readonly kind?: 'gauge';
  value(stats: EngineStats): number;
}

const METRICS: readonly TritonMetric[] = [
  {
    name: 'nv_inference_request_success',
    help: 'Answered requests.',
    value: ({ requests }) => requests,
  },
  { name: 'nv_inference_count', help: 'Predicted rows.', value: ({ rows }) => rows },
  {
    name: 'nv_inference_exec_count',
    help: 'Batches run on the graph.',
    value: ({ executions }) => executions,
  },
  {
    name: 'nv_inference_pending_request_count',
    help: 'Requests without a response yet.',
    kind: 'gauge',
    value: ({ pendingRequests }) => pendingRequests,
  },
  {
    name: 'nv_inference_request_duration_us',
    help: 'Time of waiting, lookups, graph runs and copying outputs.',
    value: (stats) =>
      stats.queueMicros + stats.lookupMicros + stats.inferMicros + stats.outputMicros,
  },
  {
    name: 'nv_inference_queue_duration_us',
    help: 'Time waiting for the first batch, summed over requests.',
    value: ({ queueMicros }) => queueMicros,
  },
  {
    name: 'nv_inference_compute_input_duration_us',
    help: 'Time of lookups, summed over batches.',
    value: ({ lookupMicros }) => lookupMicros,
  },
  {
    name: 'nv_inference_compute_infer_duration_us',
    help: 'Time of graph runs, summed over batches.',
    value: ({ inferMicros }) => inferMicros,
  },
  {
    name: 'nv_inference_compute_output_duration_us',
    help: 'Time of copying outputs to requests.',
    value: ({ outputMicros }) => outputMicros,
  },
  {
    name: 'nv_cache_num_hits_per_model',
    help: 'Requests answered from the request cache.',
    value: ({ cacheHits }) => cacheHits,
  },
  {
    name: 'nv_cache_num_misses_per_model',
    help: 'Requests not found in the request cache.',
    value: ({ cacheMisses }) => cacheMisses,
  },
  {
    name: 'nv_cache_hit_duration_per_model',
    help: 'Time of request cache lookups that found a response.',
    value: ({ cacheHitMicros }) => cacheHitMicros,
  },
  {
    name: 'nv_cache_miss_duration_per_model',
    help: 'Time of request cache lookups that found no response.',
    value: ({ cacheMissMicros }) => cacheMissMicros,
  },
];

/** Every reason of Triton is exported, so that a rate exists before the first failure. */
const REASONS = ['REJECTED', 'CANCELED', 'BACKEND', 'OTHER'] as const;
const REASONS_BY_CODE: Readonly<Record<string, (typeof REASONS)[number]>> = {
  OVERLOADED: 'REJECTED',
  DEADLINE_EXCEEDED: 'CANCELED',
};

/** Parts of the names of summaries. Quantiles are those of the last minute. */
const STAGES = [
  'inference_request',
  'inference_queue',
  'inference_compute_input',
  'inference_compute_infer',
  'inference_compute_output',
  'cache_hit',
  'cache_miss',
] as const;
type Stage = (typeof STAGES)[number];

export class TritonMetrics {
  readonly #models: Models;
  readonly #summaries = new Map<Stage, Summary<VersionLabel>>();
  /** Versions with summaries, by model and version. */
  readonly #summarized = new Map<string, Record<VersionLabel, string>>();

  constructor(registry: MetricsRegistry, models: Models) {
    this.#models = models;
    for (const { kind, value, ...definition } of METRICS) {
      const metric = {
        ...definition,
        labels: ['model', 'version'] as const,
        collect: (set: (labels: Record<VersionLabel, string>, value: number) => void) => {
          for (const { name: model, version, stats } of models.loadedVersions()) {
            set({ model, version }, value(stats));
          }
        },
      };
      if (kind === 'gauge') registry.collectedGauge(metric);
      else registry.collectedCounter(metric);
    }
    registry.collectedCounter({
      name: 'nv_inference_request_failure',
      help: 'Failed requests: REJECTED by the queue, CANCELED by deadline or client, else BACKEND.',
      labels: ['model', 'version', 'reason'],
      collect: (set) => {
        for (const { name: model, version, stats } of models.loadedVersions()) {
          for (const reason of REASONS) set({ model, version, reason }, 0);
          for (const [code, count] of stats.failures) {
            set({ model, version, reason: REASONS_BY_CODE[code] ?? 'BACKEND' }, count);
          }
        }
      },
    });
    for (const stage of STAGES) {
      const summary = registry.summary({
        name: `nv_${stage}_summary_us`,
        help: SUMMARY_HELP[stage],
        labels: ['model', 'version'],
        beforeScrape: () => this.#dropUnloaded(),
      });
      this.#summaries.set(stage, summary);
    }
  }

  /** @param durationMs from the complete body to the response */
  recordAnswer(model: string, { version, timings }: PredictionSummary, durationMs: number): void {
    const labels = { model, version };
    this.#summarized.set(JSON.stringify([model, version]), labels);
    const observe = (stage: Stage, micros: number): void =>
      this.#summaries.get(stage)?.observe(labels, micros);
    observe('inference_request', 1_000 * durationMs);
    observe('inference_queue', timings.queueMicros);
    // A response from the request cache ran no graph.
    const isCached = timings.inferMicros === 0;
    const { cacheMicros } = timings;
    if (cacheMicros !== undefined) observe(isCached ? 'cache_hit' : 'cache_miss', cacheMicros);
    if (isCached) return;
    observe('inference_compute_input', timings.lookupMicros);
    observe('inference_compute_infer', timings.inferMicros);
    observe('inference_compute_output', timings.outputMicros);
  }

  #dropUnloaded(): void {
    const loaded = new Set(
      this.#models.loadedVersions().map(({ name, version }) => JSON.stringify([name, version])),
    );
    for (const [id, labels] of this.#summarized) {
      if (loaded.has(id)) continue;
      for (const summary of this.#summaries.values()) summary.remove(labels);
      this.#summarized.delete(id);
    }
  }
}

const SUMMARY_HELP: Readonly<Record<Stage, string>> = {
  inference_request:
    'Time from the complete body to the response, including responses from the cache.',
  inference_queue: 'Time waiting for the first batch, including responses from the cache.',
  inference_compute_input: 'Time of lookups of the batches of a request.',
  inference_compute_infer: 'Time of graph runs of the batches of a request.',
  inference_compute_output: 'Time of copying the outputs of a request.',
  cache_hit: 'Time of request cache lookups that found a response.',
  cache_miss: 'Time of request cache lookups that found no response.',
};
