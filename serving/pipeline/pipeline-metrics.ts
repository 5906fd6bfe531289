/** The figures of a pipeline as Prometheus metrics. */
import type { MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { OpStats, PipelineStats } from './pipeline-stats.ts';
import type { PipelineServer } from './server.ts';

/** Where the figures come from: one pipeline, or several. */
export interface PipelineSource {
  readonly stats: Pick<PipelineStats, 'ops' | 'requests' | 'failures' | 'requestMs'>;
  describe(): ReturnType<PipelineServer['describe']>;
}

/** The stages of an op, by the names of the tracer. */
const STAGES: readonly (readonly [name: string, value: (stats: OpStats) => number])[] = [
  ['in', ({ inMs }) => inMs],
  ['prep', ({ prepMs }) => prepMs],
  ['midp', ({ midpMs }) => midpMs],
  ['postp', ({ postpMs }) => postpMs],
  ['out', ({ outMs }) => outMs],
];

/** Call once for each registry. */
export function registerPipelineMetrics(registry: MetricsRegistry, source: PipelineSource): void {
  registry.collectedCounter({
    name: 'hypercube_pipeline_requests_total',
    help: 'Requests that the pipeline has answered, with their failures.',
    collect: (set) => set({}, source.stats.requests),
  });
  registry.collectedCounter({
    name: 'hypercube_pipeline_failures_total',
    help: 'Requests that the pipeline has answered with an error code.',
    collect: (set) => set({}, source.stats.failures),
  });
  registry.collectedCounter({
    name: 'hypercube_pipeline_request_seconds_total',
    help: 'Time from the start of a request to its answer, summed over requests.',
    collect: (set) => set({}, source.stats.requestMs / 1_000),
  });
  registry.collectedCounter({
    name: 'hypercube_pipeline_op_requests_total',
    help: 'Requests that have passed an op.',
    labels: ['op'],
    collect: (set) => {
      for (const [op, { count }] of source.stats.ops) set({ op }, count);
    },
  });
  registry.collectedCounter({
    name: 'hypercube_pipeline_op_stage_seconds_total',
    help:
      'Time in the stages of an op: in (waiting), prep, midp, postp and out (waiting for room in ' +
      'the queues of the next ops), summed over requests.',
    labels: ['op', 'stage'],
    collect: (set) => {
      for (const [op, stats] of source.stats.ops) {
        for (const [stage, value] of STAGES) set({ op, stage }, value(stats) / 1_000);
      }
    },
  });
  registerState(registry, source);
}

function registerState(registry: MetricsRegistry, source: PipelineSource): void {
  registry.collectedGauge({
    name: 'hypercube_pipeline_requests_in_progress',
    help: 'Requests that the pipeline has not answered yet.',
    collect: (set) => set({}, source.describe().running),
  });
  registry.collectedGauge({
    name: 'hypercube_pipeline_queue_length',
    help: 'Requests that wait at an op with all its inputs.',
    labels: ['op'],
    collect: (set) => {
      for (const { name: op, queued } of source.describe().ops) set({ op }, queued);
    },
  });
  registry.collectedGauge({
    name: 'hypercube_pipeline_queue_capacity',
    help: 'Requests that may wait at an op before its predecessors wait.',
    labels: ['op'],
    collect: (set) => {
      for (const { name: op, queueCapacity } of source.describe().ops) set({ op }, queueCapacity);
    },
  });
  registry.collectedGauge({
    name: 'hypercube_pipeline_op_concurrency',
    help: 'Maximum concurrent executions of an op.',
    labels: ['op'],
    collect: (set) => {
      for (const { name: op, concurrency } of source.describe().ops) set({ op }, concurrency);
    },
  });
  registry.collectedCounter({
    name: 'hypercube_pipeline_op_thread_restarts_total',
    help: 'Worker threads of an op that ended and were replaced.',
    labels: ['op'],
    collect: (set) => {
      for (const { name: op, restarts } of source.describe().ops) set({ op }, restarts);
    },
  });
}
