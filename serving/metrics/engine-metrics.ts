/** Metrics of the engine per loaded version. Series exist while their version is loaded. */
import type { MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { EngineStats } from '../engine/engine-stats.ts';
import type { LoadedVersion } from '../engine/loaded-version.ts';
import type { Models } from '../models/model-registry.ts';

interface EngineMetric {
  readonly name: string;
  readonly help: string;
  readonly kind?: 'gauge';
  value(stats: EngineStats): number;
}

const METRICS: readonly EngineMetric[] = [
  {
    name: 'hypercube_engine_requests_total',
    help: 'Answered requests, including those from the request cache.',
    value: ({ requests }) => requests,
  },
  {
    name: 'hypercube_engine_rows_total',
    help: 'Rows of answered requests.',
    value: ({ rows }) => rows,
  },
  {
    name: 'hypercube_engine_cache_hits_total',
    help: 'Requests answered from the request cache.',
    value: ({ cacheHits }) => cacheHits,
  },
  {
    name: 'hypercube_engine_cache_misses_total',
    help: 'Requests not found in the request cache.',
    value: ({ cacheMisses }) => cacheMisses,
  },
  {
    name: 'hypercube_engine_queue_seconds_total',
    help: 'Time from the arrival of a request to its first batch, summed over requests.',
    value: ({ queueMicros }) => queueMicros / 1e6,
  },
  {
    name: 'hypercube_engine_lookup_seconds_total',
    help: 'Time of lookups, summed over batches.',
    value: ({ lookupMicros }) => lookupMicros / 1e6,
  },
  {
    name: 'hypercube_engine_infer_seconds_total',
    help: 'Time of graph runs, summed over batches.',
    value: ({ inferMicros }) => inferMicros / 1e6,
  },
  {
    name: 'hypercube_engine_scored_rows_total',
    help: 'Rows scored by the graph; rows from the request cache are not included.',
    value: ({ scoredRows }) => scoredRows,
  },
  {
    name: 'hypercube_engine_scores_total',
    help: 'Sum of the scores; divided by the scored rows it is the mean prediction.',
    value: ({ scoreSum }) => scoreSum,
  },
  {
    name: 'hypercube_engine_lookups_total',
    help: 'Lookups for scored rows; a lookup is a slot of a row in a table.',
    value: ({ lookups }) => lookups,
  },
  {
    name: 'hypercube_engine_lookups_unseen_total',
    help: 'Lookups whose key is not in the table.',
    value: ({ unseen }) => unseen,
  },
  {
    name: 'hypercube_engine_lookups_unavailable_total',
    help: 'Lookups that no replica answered, in degraded responses.',
    value: ({ unavailable }) => unavailable,
  },
  {
    name: 'hypercube_engine_pending_requests',
    help: 'Requests without a response yet.',
    kind: 'gauge',
    value: ({ pendingRequests }) => pendingRequests,
  },
  {
    name: 'hypercube_engine_pending_rows',
    help: 'Rows waiting for a batch.',
    kind: 'gauge',
    value: ({ pendingRows }) => pendingRows,
  },
];

export function registerEngineMetrics(registry: MetricsRegistry, models: Models): void {
  for (const { name, help, kind, value } of METRICS) {
    const definition = {
      name,
      help,
      labels: ['model', 'version'] as const,
      collect: (set: (labels: Record<'model' | 'version', string>, value: number) => void) => {
        for (const bundle of models.loadedVersions()) set(getLabels(bundle), value(bundle.stats));
      },
    };
    if (kind === 'gauge') registry.collectedGauge(definition);
    else registry.collectedCounter(definition);
  }
  observeWait(registry, models);
  observeBatchSizes(registry, models);
  observeDurations(registry, models);
  observeFailures(registry, models);
}

function getLabels({ name, version }: LoadedVersion): Record<'model' | 'version', string> {
  return { model: name, version };
}

function observeWait(registry: MetricsRegistry, models: Models): void {
  registry.collectedGauge({
    name: 'hypercube_engine_expected_wait_seconds',
    help: 'Expected wait for a batch; over half of their timeout requests are refused (429).',
    labels: ['model', 'version'],
    collect: (set) => {
      for (const bundle of models.loadedVersions()) {
        set(getLabels(bundle), bundle.batcher.estimateWaitMs() / 1_000);
      }
    },
  });
}

function observeBatchSizes(registry: MetricsRegistry, models: Models): void {
  registry.collectedCounter({
    name: 'hypercube_engine_batches_total',
    help: 'Graph runs by batch size, rounded up to a power of two.',
    labels: ['model', 'version', 'rows'],
    collect: (set) => {
      for (const bundle of models.loadedVersions()) {
        for (const { rows, executions } of bundle.stats.batchSizes()) {
          set({ ...getLabels(bundle), rows: String(2 ** Math.ceil(Math.log2(rows))) }, executions);
        }
      }
    },
  });
}

function observeDurations(registry: MetricsRegistry, models: Models): void {
  registry.collectedCounter({
    name: 'hypercube_engine_requests_by_duration_total',
    help: 'Requests by duration in milliseconds, rounded up to a power of two.',
    labels: ['model', 'version', 'millis'],
    collect: (set) => {
      for (const bundle of models.loadedVersions()) {
        for (const { millis, requests } of bundle.stats.durationHistogram()) {
          if (requests > 0) set({ ...getLabels(bundle), millis: String(millis) }, requests);
        }
      }
    },
  });
}

function observeFailures(registry: MetricsRegistry, models: Models): void {
  registry.collectedCounter({
    name: 'hypercube_engine_failures_total',
    help: 'Requests that failed in the engine, by error code.',
    labels: ['model', 'version', 'code'],
    collect: (set) => {
      for (const bundle of models.loadedVersions()) {
        for (const [code, count] of bundle.stats.failures)
          set({ ...getLabels(bundle), code }, count);
      }
    },
  });
}
