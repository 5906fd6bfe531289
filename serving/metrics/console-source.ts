/**
 * What a serving process shows in its console: rates, latencies and lookups from the counters that
 * Prometheus reads too, and the state of models, stores and problems.
 */
import type { ConsoleSource, ConsoleView } from '../../lib/console/console-feed.ts';
import { listRecentWarnings } from '../../lib/platform/recent-warnings.ts';
import type { EngineStats } from '../engine/engine-stats.ts';
import type { LoadedBundle } from '../engine/loaded-bundle.ts';
import { isTensorModel, type LoadedVersion } from '../engine/loaded-version.ts';
import type { Models } from '../models/model-registry.ts';
import type { ServingMetrics } from './serving-metrics.ts';

const PERCENTILES = [0.5, 0.9, 0.99] as const;
const EXAMPLES_MAX = 20;
const SYNTHETIC_EXAMPLES = 5;

/** Counters; their differences between two samples are shown. */
interface Totals {
  readonly requests: number;
  readonly failures: number;
  readonly rows: number;
  readonly batches: number;
  readonly scoredRows: number;
  readonly scores: number;
  readonly answered: number;
  readonly queueMicros: number;
  readonly lookupMicros: number;
  readonly inferMicros: number;
  readonly lookups: number;
  readonly unseen: number;
  readonly unavailable: number;
  readonly cacheHits: number;
  readonly cacheMisses: number;
  readonly hotHits: number;
  readonly hotMisses: number;
}

type Delta = (name: keyof Totals) => number;

const SERIES: readonly string[] = [
  'requestRate',
  'failureRate',
  'rowRate',
  'p50Ms',
  'p90Ms',
  'p99Ms',
  'batchRows',
  'queuedRows',
  'inFlight',
  'queueMs',
  'lookupMs',
  'inferMs',
  'unseenPercent',
  'unavailablePercent',
  'cacheHitPercent',
  'hotHitPercent',
  'meanScore',
];

const ZERO_WHEN_IDLE = new Set(['requestRate', 'failureRate', 'rowRate', 'queuedRows', 'inFlight']);

export interface ServingConsoleOptions {
  readonly models: Models;
  readonly metrics: ServingMetrics;
  readonly admission: { readonly inFlight: number };
  /** The running experiments. */
  readonly listExperiments: () => object;
  /** Undefined while the process is ready. */
  readonly findNotReadyReason: () => string | undefined;
  /** Absent without a pipeline; undefined before it is started. */
  readonly describePipeline?: (() => Promise<object | undefined>) | undefined;
}

export class ServingConsoleSource implements ConsoleSource {
  readonly role = 'serving';
  readonly views: readonly ConsoleView[];
  readonly series: readonly string[] = SERIES;
  readonly idleValues: readonly number[] = SERIES.map((name) =>
    ZERO_WHEN_IDLE.has(name) ? 0 : Number.NaN,
  );
  readonly #options: ServingConsoleOptions;
  #last: Totals;

  constructor(options: ServingConsoleOptions) {
    this.#options = options;
    const pipeline = options.describePipeline === undefined ? [] : (['pipeline'] as const);
    this.views = ['live', 'predict', ...pipeline, 'tables', 'problems'];
    this.#last = this.#sum();
  }

  sample(elapsedSeconds: number): number[] {
    const { models, metrics, admission } = this.#options;
    const [last, now] = [this.#last, this.#sum()];
    this.#last = now;
    // Totals shrink when a version is unloaded.
    const delta: Delta = (name) => Math.max(0, now[name] - last[name]);
    const [p50 = 0, p90 = 0, p99 = 0] = metrics.latencies.takePercentiles(PERCENTILES);
    const queuedRows = models.loadedVersions().map(({ stats }) => stats.pendingRows);
    return [
      delta('requests') / elapsedSeconds,
      delta('failures') / elapsedSeconds,
      delta('rows') / elapsedSeconds,
      p50,
      p90,
      p99,
      delta('scoredRows') / delta('batches'),
      queuedRows.reduce((sum, rows) => sum + rows, 0),
      admission.inFlight,
      delta('queueMicros') / 1_000 / delta('answered'),
      delta('lookupMicros') / 1_000 / delta('batches'),
      delta('inferMicros') / 1_000 / delta('batches'),
      percent(delta('unseen'), delta('lookups')),
      percent(delta('unavailable'), delta('lookups')),
      percent(delta('cacheHits'), delta('cacheHits') + delta('cacheMisses')),
      percent(delta('hotHits'), delta('hotHits') + delta('hotMisses')),
      delta('scores') / delta('scoredRows'),
    ];
  }

  async getState(): Promise<object> {
    const { models, metrics, findNotReadyReason, describePipeline, listExperiments } =
      this.#options;
    const loaded = models.loadedVersions();
    return {
      notReady: findNotReadyReason() ?? null,
      models: models.status(),
      ...listExperiments(),
      stores: metrics.listStores().map(([model, { kind, servers, hotRows }]) => ({
        model,
        kind,
        servers: servers?.replicas ?? [],
        circuitsOpen: servers?.circuitsOpen ?? 0,
        hotRows: hotRows === undefined ? null : { rows: hotRows.rows, bytes: hotRows.bytes },
      })),
      versions: loaded.map(describeVersion),
      misses: loaded.flatMap((bundle) => (isTensorModel(bundle) ? [] : [countMisses(bundle)])),
      failures: metrics.listFailures(),
      pipeline: await describePipeline?.(),
      warnings: listRecentWarnings(),
    };
  }

  #sum(): Totals {
    const { models, metrics } = this.#options;
    const stats = models.loadedVersions().map((bundle) => bundle.stats);
    const sum = (value: (of: EngineStats) => number): number =>
      stats.reduce((total, of) => total + value(of), 0);
    const hotRows = metrics.listStores().map(([, store]) => store.hotRows);
    return {
      ...metrics.totals,
      batches: sum(({ executions }) => executions),
      scoredRows: sum(({ scoredRows }) => scoredRows),
      scores: sum(({ scoreSum }) => scoreSum),
      answered: sum(({ requests }) => requests),
      queueMicros: sum(({ queueMicros }) => queueMicros),
      lookupMicros: sum(({ lookupMicros }) => lookupMicros),
      inferMicros: sum(({ inferMicros }) => inferMicros),
      lookups: sum(({ lookups }) => lookups),
      unseen: sum(({ unseen }) => unseen),
      unavailable: sum(({ unavailable }) => unavailable),
      cacheHits: sum(({ cacheHits }) => cacheHits),
      cacheMisses: sum(({ cacheMisses }) => cacheMisses),
      hotHits: hotRows.reduce((total, cache) => total + (cache?.hits ?? 0), 0),
      hotMisses: hotRows.reduce((total, cache) => total + (cache?.misses ?? 0), 0),
    };
  }
}

/** NaN without anything. */
function percent(part: number, whole: number): number {
  return (100 * part) / whole;
}

function describeVersion(loaded: LoadedVersion): object {
  const { name: model, version } = loaded;
  const isPlain = isTensorModel(loaded);
  const tables = isPlain ? [] : loaded.manifest.tables;
  return {
    model,
    version,
    isPlain,
    tables: tables.map(({ name, dim, dtype, rows, shardNum, shards }) => ({
      name,
      dim,
      dtype,
      rows,
      shardNum,
      bytes: shards.flat().reduce((sum, layer) => sum + layer.bytes, 0),
      layers: Math.max(...shards.map((chain) => chain.length)),
    })),
  };
}

/** Lookups without a row by slot since the version was loaded. */
function countMisses({ name: model, version, stats, lookupSlots }: LoadedBundle): object {
  const { scoredRows, misses } = stats;
  return {
    model,
    version,
    rows: scoredRows,
    slots: lookupSlots.map(({ position, name, tables }) => {
      const [unseen, unavailable] = [misses.unseen[position], misses.unavailable[position]];
      return { slot: name, lookups: scoredRows * tables.length, unseen, unavailable };
    }),
  };
}

/** Rows for the form of the page: golden rows of the version, else synthetic ones. */
export function listExampleRows({ golden, synthetic }: LoadedBundle): object {
  if (golden === undefined) {
    return { source: 'synthetic', rows: synthetic.create('random', SYNTHETIC_EXAMPLES) };
  }
  return { source: 'golden', rows: golden.values.slice(0, EXAMPLES_MAX) };
}
