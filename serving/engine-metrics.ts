/**
 * What the engine of each loaded version has done, as metrics: under our names, and under those that Triton's dashboards ask for
 * (`nv_inference_*`, microseconds). Series begin and end with their version.
 */
import type { MetricsRegistry } from '../lib/platform/metrics.ts';
import type { EngineStats } from './engine/engine-stats.ts';
import type { LoadedBundle } from './models/bundle.ts';
import type { Models } from './models/models.ts';

interface EngineMetric {
  readonly name: string;
  readonly help: string;
  readonly kind?: 'gauge';
  value(stats: EngineStats): number;
}

const METRICS: readonly EngineMetric[] = [
  {
    name: 'hypercube_engine_requests_total',
    help: 'Requests answered, from the request cache too.',
    value: ({ requests }) => requests,
  },
  {
    name: 'hypercube_engine_rows_total',
    help: 'Rows of requests answered.',
    value: ({ rows }) => rows,
  },
  {
    name: 'hypercube_engine_cache_hits_total',
    help: 'Requests answered from the request cache.',
    value: ({ cacheHits }) => cacheHits,
  },
  {
    name: 'hypercube_engine_cache_misses_total',
    help: 'Requests that the request cache did not have.',
    value: ({ cacheMisses }) => cacheMisses,
  },
  {
    name: 'hypercube_engine_queue_seconds_total',
    help: 'From the arrival of a request to its first batch, summed over requests.',
    value: ({ queueMicros }) => queueMicros / 1e6,
  },
  {
    name: 'hypercube_engine_lookup_seconds_total',
    help: 'Lookups, summed over batches.',
    value: ({ lookupMicros }) => lookupMicros / 1e6,
  },
  {
    name: 'hypercube_engine_infer_seconds_total',
    help: 'Runs of the graph, summed over batches.',
    value: ({ inferMicros }) => inferMicros / 1e6,
  },
  {
    name: 'hypercube_engine_scored_rows_total',
    help: 'Rows that went through the graph: those of the request cache did not.',
    value: ({ scoredRows }) => scoredRows,
  },
  {
    name: 'hypercube_engine_score_sum',
    help: 'Sum of their scores: over the rows it is the mean prediction.',
    value: ({ scoreSum }) => scoreSum,
  },
  {
    name: 'hypercube_engine_lookups_total',
    help: 'Lookups of these rows: a slot of a row in a table.',
    value: ({ lookups }) => lookups,
  },
  {
    name: 'hypercube_engine_lookups_unseen_total',
    help: 'Lookups whose key is not in the table.',
    value: ({ unseen }) => unseen,
  },
  {
    name: 'hypercube_engine_lookups_unavailable_total',
    help: 'Lookups that no replica answered, in requests answered degraded.',
    value: ({ unavailable }) => unavailable,
  },
  {
    name: 'hypercube_engine_pending_requests',
    help: 'Requests that are not answered yet.',
    kind: 'gauge',
    value: ({ pendingRequests }) => pendingRequests,
  },
  {
    name: 'hypercube_engine_pending_rows',
    help: 'Rows that wait for a batch.',
    kind: 'gauge',
    value: ({ pendingRows }) => pendingRows,
  },
];

/** Triton's; its times are cumulative microseconds. */
const TRITON_METRICS: readonly EngineMetric[] = [
  {
    name: 'nv_inference_request_success',
    help: 'Requests answered.',
    value: ({ requests }) => requests,
  },
  { name: 'nv_inference_count', help: 'Rows predicted.', value: ({ rows }) => rows },
  {
    name: 'nv_inference_exec_count',
    help: 'Batches run on the graph.',
    value: ({ executions }) => executions,
  },
  {
    name: 'nv_inference_pending_request_count',
    help: 'Requests that are not answered yet.',
    kind: 'gauge',
    value: ({ pendingRequests }) => pendingRequests,
  },
  {
    name: 'nv_inference_request_duration_us',
    help: 'Waiting, lookups and runs.',
    value: (stats) => stats.queueMicros + stats.lookupMicros + stats.inferMicros,
  },
  {
    name: 'nv_inference_queue_duration_us',
    help: 'Waiting for the first batch, summed over requests.',
    value: ({ queueMicros }) => queueMicros,
  },
  {
    name: 'nv_inference_compute_input_duration_us',
    help: 'Lookups, summed over batches.',
    value: ({ lookupMicros }) => lookupMicros,
  },
  {
    name: 'nv_inference_compute_infer_duration_us',
    help: 'Runs of the graph, summed over batches.',
    value: ({ inferMicros }) => inferMicros,
  },
  {
    name: 'nv_cache_num_hits_per_model',
    help: 'Requests answered from the request cache.',
    value: ({ cacheHits }) => cacheHits,
  },
  {
    name: 'nv_cache_num_misses_per_model',
    help: 'Requests that the request cache did not have.',
    value: ({ cacheMisses }) => cacheMisses,
  },
];

export function observeEngines(registry: MetricsRegistry, models: Models): void {
  for (const { name, help, kind, value } of [...METRICS, ...TRITON_METRICS]) {
    const definition = {
      ...{ name, help, labels: ['model', 'version'] as const },
      collect: (set: (labels: Record<'model' | 'version', string>, value: number) => void) => {
        for (const bundle of models.held()) set(labelsOf(bundle), value(bundle.stats));
      },
    };
    if (kind === 'gauge') registry.collectedGauge(definition);
    else registry.collectedCounter(definition);
  }
  observeBatchSizes(registry, models);
  observeDurations(registry, models);
  observeFailures(registry, models);
}

function labelsOf({ manifest }: LoadedBundle): Record<'model' | 'version', string> {
  return { model: manifest.bundle, version: manifest.version };
}

function observeBatchSizes(registry: MetricsRegistry, models: Models): void {
  registry.collectedCounter({
    name: 'hypercube_engine_batches_total',
    help: 'Batches run on the graph, by size: up to so many rows, a power of two.',
    labels: ['model', 'version', 'rows'],
    collect: (set) => {
      for (const bundle of models.held()) {
        for (const { rows, executions } of bundle.stats.batchSizes()) {
          set({ ...labelsOf(bundle), rows: String(2 ** Math.ceil(Math.log2(rows))) }, executions);
        }
      }
    },
  });
}

function observeDurations(registry: MetricsRegistry, models: Models): void {
  registry.collectedCounter({
    name: 'hypercube_engine_requests_by_duration_total',
    help: 'Requests from arrival to answer, by duration: up to so many milliseconds, a power of two.',
    labels: ['model', 'version', 'millis'],
    collect: (set) => {
      for (const bundle of models.held()) {
        for (const { millis, requests } of bundle.stats.durations()) {
          if (requests > 0) set({ ...labelsOf(bundle), millis: String(millis) }, requests);
        }
      }
    },
  });
}

function observeFailures(registry: MetricsRegistry, models: Models): void {
  registry.collectedCounter({
    name: 'hypercube_engine_failures_total',
    help: 'Requests that the engine did not answer, by error code.',
    labels: ['model', 'version', 'code'],
    collect: (set) => {
      for (const bundle of models.held()) {
        for (const [code, count] of bundle.stats.failures)
          set({ ...labelsOf(bundle), code }, count);
      }
    },
  });
  registry.collectedCounter({
    name: 'nv_inference_request_failure',
    help: 'Requests that failed: REJECTED by the queue, CANCELED by deadline or caller, BACKEND otherwise.',
    labels: ['model', 'version', 'reason'],
    collect: (set) => {
      for (const bundle of models.held()) {
        for (const [code, count] of bundle.stats.failures) {
          const reason = TRITON_REASONS[code] ?? 'BACKEND';
          set({ ...labelsOf(bundle), reason }, count);
        }
      }
    },
  });
}

const TRITON_REASONS: Readonly<Record<string, string>> = {
  OVERLOADED: 'REJECTED',
  DEADLINE_EXCEEDED: 'CANCELED',
};
