/** Metrics of the stores: the hot-rows cache, and the servers that a store asks. */
import { getShare, SHARE_HELP } from '../../lib/client/client-metrics.ts';
import type { ReplicaStats } from '../../lib/client/replica.ts';
import type { MetricsRegistry } from '../../lib/platform/metrics.ts';
import type { EmbeddingStore, RowCacheStats, ServerStats } from '../stores/embedding-store.ts';

export class StoreMetrics {
  readonly #registry: MetricsRegistry;
  /** By the first model that uses the store. */
  readonly #stores = new Map<string, EmbeddingStore>();
  #hasHotRows = false;
  #hasServers = false;

  constructor(registry: MetricsRegistry) {
    this.#registry = registry;
  }

  /** Registers the metrics that the store has, under the first model that uses the store. */
  observe(model: string, store: EmbeddingStore): void {
    if ([...this.#stores.values()].includes(store)) return;
    this.#stores.set(model, store);
    if (store.hotRows !== undefined && !this.#hasHotRows) {
      this.#hasHotRows = true;
      this.#addHotRows();
    }
    if (store.servers !== undefined && !this.#hasServers) {
      this.#hasServers = true;
      this.#addServers();
    }
  }

  list(): [string, EmbeddingStore][] {
    return [...this.#stores];
  }

  #addHotRows(): void {
    this.#registry.collectedCounter({
      name: 'hypercube_serving_hot_rows_lookups_total',
      help: 'Keys looked up in the hot-rows cache: hit (found, or known to be absent) or miss.',
      labels: ['model', 'outcome'],
      collect: (set) => {
        for (const [model, { hits, misses }] of this.#collect(({ hotRows }) => hotRows)) {
          set({ model, outcome: 'hit' }, hits);
          set({ model, outcome: 'miss' }, misses);
        }
      },
    });
    this.#registry.collectedGauge({
      name: 'hypercube_serving_hot_rows_bytes',
      help: 'Size of the hot-rows cache.',
      labels: ['model'],
      collect: (set) => {
        const caches: [string, RowCacheStats][] = this.#collect(({ hotRows }) => hotRows);
        for (const [model, { bytes }] of caches) set({ model }, bytes);
      },
    });
  }

  #addServers(): void {
    this.#addLimits();
    const collectServers = (): [string, ServerStats][] => this.#collect(({ servers }) => servers);
    this.#registry.collectedGauge({
      name: 'hypercube_serving_store_circuits_open',
      help: 'Cube-servers or Redis nodes that answer nothing and are only probed.',
      labels: ['model'],
      collect: (set) => {
        for (const [model, { circuitsOpen }] of collectServers()) set({ model }, circuitsOpen);
      },
    });
    this.#registry.collectedCounter({
      name: 'hypercube_serving_store_repeated_requests_total',
      help:
        'Requests to cube-servers that were repeated: retry, backup, or refused (the budget of ' +
        'retries or backups was spent).',
      labels: ['model', 'kind'],
      collect: (set) => {
        for (const [model, { retries, backups, refusals }] of collectServers()) {
          set({ model, kind: 'retry' }, retries);
          set({ model, kind: 'backup' }, backups);
          set({ model, kind: 'refused' }, refusals);
        }
      },
    });
  }

  /** The limits that the client keeps for each server. */
  #addLimits(): void {
    const addGauge = (name: string, help: string, read: (server: ReplicaStats) => number): void => {
      this.#registry.collectedGauge({
        name,
        help,
        labels: ['model', 'server'],
        collect: (set) => {
          for (const [model, { replicas = [] }] of this.#collect(({ servers }) => servers)) {
            for (const one of replicas) set({ model, server: one.endpoint }, read(one));
          }
        },
      });
    };
    addGauge(
      'hypercube_serving_store_concurrency_limit',
      'Requests in flight that a cube-server answers without queueing, as serving estimates it.',
      ({ concurrencyLimit }) => concurrencyLimit,
    );
    addGauge(
      'hypercube_serving_store_in_flight',
      'Requests in flight to a cube-server.',
      ({ inFlight }) => inFlight,
    );
    addGauge('hypercube_serving_store_server_share', SHARE_HELP, getShare);
  }

  /** Returns the statistics of the stores that have them, with the model's name. */
  #collect<T>(getStats: (store: EmbeddingStore) => T | undefined): [string, T][] {
    const found: [string, T][] = [];
    for (const [model, store] of this.#stores) {
      const stats = getStats(store);
      if (stats !== undefined) found.push([model, stats]);
    }
    return found;
  }
}
