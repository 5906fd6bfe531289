/**
 * Metrics of a serving process. Labels: model, version, protocol, code; never keys or
 * users.
 */
import { LatencyHistogram } from '../../lib/console/latency-histogram.ts';
import type { ErrorCode } from '../../lib/core/errors.ts';
import { type Counter, type Histogram, MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { PredictionSummary } from '../engine/prediction.ts';
import type { Models } from '../models/model-registry.ts';
import type { EmbeddingStore } from '../stores/embedding-store.ts';
import { registerEngineMetrics } from './engine-metrics.ts';
import { ExperimentMetrics } from './experiment-metrics.ts';
import { PaddleMetrics } from './paddle-metrics.ts';
import { ShadowMetrics } from './shadow-metrics.ts';
import { StoreMetrics } from './store-metrics.ts';
import { TritonMetrics } from './triton-metrics.ts';

/** The protocol of a request: values of the metric label `protocol`. */
export type ProtocolName = 'ctr' | 'kserve' | 'tfs' | 'paddle' | 'pipeline';

/** An answered request. */
export interface AnsweredRequest {
  readonly model: string;
  readonly summary: PredictionSummary;
}

export class ServingMetrics {
  #scrape: (() => Promise<string>) | undefined;
  /** Durations of requests over all protocols. */
  readonly latencies: LatencyHistogram = new LatencyHistogram();
  /** Called after each request. */
  onRequest: () => void = () => undefined;
  readonly #registry = new MetricsRegistry();
  readonly experiments: ExperimentMetrics = new ExperimentMetrics(this.#registry);
  readonly shadows: ShadowMetrics = new ShadowMetrics(this.#registry);
  /** Requests by result, for each protocol; counted in plain fields, because refusals are many. */
  readonly #requests = new Map<ProtocolName, Map<ErrorCode | 'OK', number>>();
  readonly #latency: Histogram<'protocol'>;
  readonly #switches: Counter<'model' | 'to'>;
  readonly #loadFailures: Counter<'model' | 'code'>;
  readonly #stores: StoreMetrics;
  #triton: TritonMetrics | undefined;
  #paddle: PaddleMetrics | undefined;
  #rows = 0;
  #unseen = 0;
  #unavailable = 0;
  #degraded = 0;

  constructor() {
    const registry = this.#registry;
    this.#stores = new StoreMetrics(registry);
    registry.collectedCounter({
      name: 'hypercube_serving_requests_total',
      help: 'Prediction requests by protocol and result: OK or an error code.',
      labels: ['protocol', 'code'],
      collect: (set) => {
        for (const [protocol, counts] of this.#requests) {
          for (const [code, count] of counts) set({ protocol, code }, count);
        }
      },
    });
    this.#latency = registry.histogram({
      name: 'hypercube_serving_request_duration_seconds',
      help: 'Time from the complete body to the response, by protocol.',
      labels: ['protocol'],
    });
    this.#switches = registry.counter({
      name: 'hypercube_serving_version_switches_total',
      help: 'Switches to a version.',
      labels: ['model', 'to'],
    });
    this.#loadFailures = registry.counter({
      name: 'hypercube_serving_load_failures_total',
      help: 'Failed attempts to load a version, by error code.',
      labels: ['model', 'code'],
    });
    this.#count('rows_total', 'Rows predicted.', () => this.#rows);
    this.#count(
      'lookups_unseen_total',
      'Lookups (a slot of a row in a table) whose key is not in the table.',
      () => this.#unseen,
    );
    this.#count(
      'lookups_unavailable_total',
      'Lookups that no replica answered, in degraded responses.',
      () => this.#unavailable,
    );
    this.#count('degraded_total', 'Degraded responses.', () => this.#degraded);
  }

  /** Requests over all protocols: all, those that failed, and predicted rows. */
  get totals(): { readonly requests: number; readonly failures: number; readonly rows: number } {
    let [requests, failures] = [0, 0];
    for (const counts of this.#requests.values()) {
      for (const [code, count] of counts) {
        requests += count;
        if (code !== 'OK') failures += count;
      }
    }
    return { requests, failures, rows: this.#rows };
  }

  /** Failed requests by protocol and error code since the start. */
  listFailures(): { readonly protocol: string; readonly code: string; readonly count: number }[] {
    return [...this.#requests].flatMap(([protocol, counts]) =>
      [...counts].flatMap(([code, count]) => (code === 'OK' ? [] : [{ protocol, code, count }])),
    );
  }

  /** The open stores, each with the first model that uses it. */
  listStores(): readonly (readonly [string, EmbeddingStore])[] {
    return this.#stores.list();
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  /** The metrics of this process, or of all processes that share its ports. */
  formatMetrics(): Promise<string> {
    return this.#scrape?.() ?? this.#registry.metricsText();
  }

  /** @param scrape formats the metrics of all processes that share the ports */
  setScrape(scrape: () => Promise<string>): void {
    this.#scrape = scrape;
  }

  /** Current values, in a form that can be sent to another process. */
  values(): Promise<object> {
    return this.#registry.values();
  }

  /** Adds the metrics of a part that this folder does not know. */
  extend(register: (registry: MetricsRegistry) => void): void {
    register(this.#registry);
  }

  /** Registers metrics whose values are kept elsewhere. */
  observe(admission: { readonly inFlight: number }, models: Models): void {
    registerEngineMetrics(this.#registry, models);
    this.#registry.collectedGauge({
      name: 'hypercube_serving_requests_in_flight',
      help: 'Admitted requests without a response yet.',
      collect: (set) => set({}, admission.inFlight),
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_version_active',
      help: '1 for the active version of a channel.',
      labels: ['model', 'version', 'channel'],
      collect: (set) => {
        for (const { model, channels } of models.status()) {
          for (const { channel, active } of channels) {
            if (active !== undefined) set({ model, version: active, channel }, 1);
          }
        }
      },
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_model_instances',
      help: 'Model workers of loaded versions: alive, and died since the version was loaded.',
      labels: ['state'],
      collect: (set) => {
        const pools = models.loadedVersions().map(({ pool }) => pool);
        set({ state: 'alive' }, sum(pools.map(({ aliveInstances }) => aliveInstances)));
        set({ state: 'died' }, sum(pools.map(({ workerDeaths }) => workerDeaths)));
      },
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_batches_queued',
      help: 'Batches waiting for a model worker.',
      collect: (set) => set({}, sum(models.loadedVersions().map(({ pool }) => pool.queuedBatches))),
    });
  }

  /** Adds metrics under the names of other servers. */
  addNames(names: readonly ('triton' | 'paddle')[], models: Models): void {
    if (names.includes('triton')) this.#triton = new TritonMetrics(this.#registry, models);
    if (names.includes('paddle')) this.#paddle = new PaddleMetrics(this.#registry);
  }

  /** Registers the metrics of a store under the first model that uses it. */
  observeStore(model: string, store: EmbeddingStore): void {
    this.#stores.observe(model, store);
  }

  /** Registers the counts of recorded rows. */
  observeRecording(recorders: { readonly stats: { rows: number; dropped: number } }): void {
    this.#count('recorded_rows_total', 'Request rows recorded (--record).', () => {
      return recorders.stats.rows;
    });
    this.#count(
      'recorded_rows_dropped_total',
      'Request rows not recorded because they were too large, or the disk too slow or full.',
      () => recorders.stats.dropped,
    );
  }

  recordPrediction(
    protocol: ProtocolName,
    { rowCount, unseen, unavailable, degraded }: PredictionSummary,
  ): void {
    this.#countRequest(protocol, 'OK');
    this.#rows += rowCount;
    this.#unseen += unseen;
    this.#unavailable += unavailable;
    if (degraded) this.#degraded++;
  }

  /** An answer of a pipeline; the predictions of its ops are not counted here. */
  recordAnswer(protocol: ProtocolName): void {
    this.#countRequest(protocol, 'OK');
  }

  recordFailure(protocol: ProtocolName, code: ErrorCode): void {
    this.#countRequest(protocol, code);
  }

  #countRequest(protocol: ProtocolName, code: ErrorCode | 'OK'): void {
    let counts = this.#requests.get(protocol);
    if (counts === undefined) {
      counts = new Map();
      this.#requests.set(protocol, counts);
    }
    counts.set(code, (counts.get(code) ?? 0) + 1);
    if (code !== 'OK') this.#paddle?.recordFailure();
  }

  /** @param answered undefined when the request failed */
  recordDuration(protocol: ProtocolName, seconds: number, answered?: AnsweredRequest): void {
    this.#paddle?.recordDuration(1_000 * seconds);
    if (answered !== undefined) {
      this.#paddle?.recordAnswer(answered.summary);
      this.#triton?.recordAnswer(answered.model, answered.summary, 1_000 * seconds);
    }
    this.#latency.observe({ protocol }, seconds);
    this.latencies.record(1_000 * seconds);
    this.onRequest();
  }

  onSwitch(model: string, to: string): void {
    this.#switches.inc({ model, to });
  }

  onLoadFailed(model: string, code: ErrorCode): void {
    this.#loadFailures.inc({ model, code });
  }

  #count(name: string, help: string, value: () => number): void {
    this.#registry.collectedCounter({
      name: `hypercube_serving_${name}`,
      help,
      collect: (set) => set({}, value()),
    });
  }
}

function sum(values: readonly number[]): number {
  return values.reduce((total, value) => total + value, 0);
}
