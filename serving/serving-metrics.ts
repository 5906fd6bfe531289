/** What a serving process counts. Labels: model, version, door, code; never keys or users. */
import type { ErrorCode } from '../lib/core/errors.ts';
import { type Counter, type Histogram, MetricsRegistry } from '../lib/platform/metrics.ts';
import type { Admission } from './admission.ts';
import type { Prediction } from './engine/predictor.ts';
import { observeEngines } from './engine-metrics.ts';
import type { Models } from './models/models.ts';
import type { EmbeddingStore } from './stores/embedding-store.ts';

/** Where a request came in. */
export type Door = 'ctr' | 'kserve' | 'tfs' | 'paddle';

export class ServingMetrics {
  readonly #registry = new MetricsRegistry();
  readonly #requests: Counter<'door' | 'code'>;
  readonly #latency: Histogram<'door'>;
  readonly #switches: Counter<'model' | 'to'>;
  readonly #loadFailures: Counter<'model' | 'code'>;
  readonly #hotRows = new Map<string, EmbeddingStore>();
  #rows = 0;
  #unseen = 0;
  #unavailable = 0;
  #degraded = 0;

  constructor() {
    const registry = this.#registry;
    this.#requests = registry.counter({
      name: 'hypercube_serving_requests_total',
      help: 'Prediction requests by door and result: OK or an error code.',
      labels: ['door', 'code'],
    });
    this.#latency = registry.histogram({
      name: 'hypercube_serving_request_duration_seconds',
      help: 'From the whole body read to the answer made, by door.',
      labels: ['door'],
    });
    this.#switches = registry.counter({
      name: 'hypercube_serving_version_switches_total',
      help: 'Versions that began to be served.',
      labels: ['model', 'to'],
    });
    this.#loadFailures = registry.counter({
      name: 'hypercube_serving_load_failures_total',
      help: 'Attempts to load a version that failed, by error code.',
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
      'Lookups that no replica answered, in requests answered degraded.',
      () => this.#unavailable,
    );
    this.#count('degraded_total', 'Requests answered degraded.', () => this.#degraded);
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  text(): Promise<string> {
    return this.#registry.metricsText();
  }

  /** Metrics whose values others keep. */
  observe(admission: Admission, models: Models): void {
    observeEngines(this.#registry, models);
    this.#registry.collectedGauge({
      name: 'hypercube_serving_requests_in_flight',
      help: 'Requests that are let in and not answered yet.',
      collect: (set) => set({}, admission.inFlight),
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_version_active',
      help: '1 for the version that is served under a channel.',
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
      help: 'Model workers of the versions that are held: alive, and those that died since they were loaded.',
      labels: ['state'],
      collect: (set) => {
        const pools = models.held().map(({ pool }) => pool);
        set({ state: 'alive' }, sum(pools.map(({ alive }) => alive)));
        set({ state: 'died' }, sum(pools.map(({ deaths }) => deaths)));
      },
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_batches_queued',
      help: 'Batches that wait for a model worker.',
      collect: (set) => set({}, sum(models.held().map(({ pool }) => pool.queued))),
    });
  }

  /** Of the cache of rows in front of a model's store, when it has one; under the first model of those that share it. */
  observeStore(model: string, store: EmbeddingStore): void {
    if (store.hotRows === undefined || [...this.#hotRows.values()].includes(store)) return;
    if (this.#hotRows.size === 0) this.#addHotRows();
    this.#hotRows.set(model, store);
  }

  #addHotRows(): void {
    this.#registry.collectedCounter({
      name: 'hypercube_serving_hot_rows_lookups_total',
      help: 'Keys asked of the cache of rows before a store, by outcome: hit (found, or known to be in no table) or miss.',
      labels: ['model', 'outcome'],
      collect: (set) => {
        for (const [model, { hotRows }] of this.#hotRows) {
          set({ model, outcome: 'hit' }, hotRows!.hits);
          set({ model, outcome: 'miss' }, hotRows!.misses);
        }
      },
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_hot_rows_bytes',
      help: 'What the cache of rows before a store takes.',
      labels: ['model'],
      collect: (set) => {
        for (const [model, { hotRows }] of this.#hotRows) set({ model }, hotRows!.bytes);
      },
    });
  }

  /** Rows of live requests that go into a file. */
  observeRecording(recorders: { readonly stats: { rows: number; dropped: number } }): void {
    this.#count('recorded_rows_total', 'Rows of requests written down (--record).', () => {
      return recorders.stats.rows;
    });
    this.#count(
      'recorded_rows_dropped_total',
      'Rows that were to be written down, but the disk was too slow or refused.',
      () => recorders.stats.dropped,
    );
  }

  onPrediction(door: Door, { rowCount, unseen, unavailable, degraded }: Prediction): void {
    this.#requests.inc({ door, code: 'OK' });
    this.#rows += rowCount;
    this.#unseen += unseen;
    this.#unavailable += unavailable;
    if (degraded) this.#degraded++;
  }

  onFailure(door: Door, code: ErrorCode): void {
    this.#requests.inc({ door, code });
  }

  onAnswered(door: Door, seconds: number): void {
    this.#latency.observe({ door }, seconds);
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
