/** What a serving process counts. Labels: model, version, door, code; never keys or users. */
import type { ErrorCode } from '../lib/core/errors.ts';
import { type Counter, type Histogram, MetricsRegistry } from '../lib/platform/metrics.ts';
import type { Admission } from './admission.ts';
import type { BundleWatcher } from './bundle-watcher.ts';
import type { Prediction } from './predictor.ts';

/** Where a request came in. */
export type Door = 'ctr' | 'infer';

export class ServingMetrics {
  readonly #registry = new MetricsRegistry();
  readonly #requests: Counter<'door' | 'code'>;
  readonly #latency: Histogram<'door'>;
  readonly #switches: Counter<'to'>;
  readonly #loadFailures: Counter<'code'>;
  #rows = 0;
  #batches = 0;
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
      labels: ['to'],
    });
    this.#loadFailures = registry.counter({
      name: 'hypercube_serving_load_failures_total',
      help: 'Attempts to load a version that failed, by error code.',
      labels: ['code'],
    });
    this.#count('rows_total', 'Rows predicted.', () => this.#rows);
    this.#count('batches_total', 'Batches run on the graph.', () => this.#batches);
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
  observe(admission: Admission, watcher: BundleWatcher): void {
    this.#registry.collectedGauge({
      name: 'hypercube_serving_requests_in_flight',
      help: 'Requests that are let in and not answered yet.',
      collect: (set) => set({}, admission.inFlight),
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_version_active',
      help: '1 for the version that is served.',
      labels: ['model', 'version'],
      collect: (set) => {
        const { bundle, active } = watcher.status;
        if (active !== undefined) set({ model: bundle, version: active }, 1);
      },
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_model_instances',
      help: 'Model workers of the version that is served: alive, and those that died since it was loaded.',
      labels: ['state'],
      collect: (set) => {
        if (watcher.status.active === undefined) return;
        const { alive, deaths } = watcher.current.pool;
        set({ state: 'alive' }, alive);
        set({ state: 'died' }, deaths);
      },
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_batches_queued',
      help: 'Batches that wait for a model worker.',
      collect: (set) => {
        if (watcher.status.active !== undefined) set({}, watcher.current.pool.queued);
      },
    });
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

  onBatch(): void {
    this.#batches++;
  }

  onSwitch(to: string): void {
    this.#switches.inc({ to });
  }

  onLoadFailed(code: ErrorCode): void {
    this.#loadFailures.inc({ code });
  }

  #count(name: string, help: string, value: () => number): void {
    this.#registry.collectedCounter({
      name: `hypercube_serving_${name}`,
      help,
      collect: (set) => set({}, value()),
    });
  }
}
