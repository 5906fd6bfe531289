/**
 * Prometheus metrics of a process; the only import of prom-client. Hot paths count in plain fields,
 * which a metric with a `collect` function reads at each scrape.
 */
import {
  AggregatorRegistry,
  Counter,
  collectDefaultMetrics,
  Gauge,
  Histogram,
  Registry,
  Summary,
} from 'prom-client';

export type { Counter, Gauge, Histogram, Summary } from 'prom-client';

export interface MetricDefinition<Label extends string> {
  /** snake_case with the unit last; a counter ends in _total. */
  readonly name: string;
  readonly help: string;
  readonly labels?: readonly Label[];
}

export interface CollectedMetric<Label extends string> extends MetricDefinition<Label> {
  /** Called at each scrape with a function that sets the value of a label combination. */
  readonly collect: (set: (labels: Partial<Record<Label, string>>, value: number) => void) => void;
}

export interface SummaryDefinition<Label extends string> extends MetricDefinition<Label> {
  /** Called before each scrape, such as to remove label combinations. */
  readonly beforeScrape: () => void;
}

const SUMMARY_QUANTILES: readonly number[] = [0.5, 0.9, 0.95, 0.99, 0.999];

/** From a small lookup (10 µs) to a load (10 s). */
const DURATION_BUCKETS_SECONDS: readonly number[] = [
  0.00001, 0.000025, 0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1,
  0.25, 0.5, 1, 2.5, 5, 10,
];

export class MetricsRegistry {
  readonly #registry: Registry = new Registry();

  /**
   * @param ofProcess includes metrics of the process itself: CPU, memory, event loop lag, garbage
   *   collection
   */
  constructor(ofProcess = true) {
    if (ofProcess) collectDefaultMetrics({ register: this.#registry });
  }

  counter<Label extends string = never>(definition: MetricDefinition<Label>): Counter<Label> {
    const { name, help, labels = [] } = definition;
    return new Counter({ name, help, labelNames: labels, registers: [this.#registry] });
  }

  gauge<Label extends string = never>(definition: MetricDefinition<Label>): Gauge<Label> {
    const { name, help, labels = [] } = definition;
    return new Gauge({ name, help, labelNames: labels, registers: [this.#registry] });
  }

  /** A histogram; without `buckets` of durations in seconds. */
  histogram<Label extends string = never>(
    definition: MetricDefinition<Label> & { readonly buckets?: readonly number[] },
  ): Histogram<Label> {
    const { name, help, labels = [], buckets = DURATION_BUCKETS_SECONDS } = definition;
    return new Histogram({
      name,
      help,
      labelNames: labels,
      buckets: [...buckets],
      registers: [this.#registry],
    });
  }

  /** Sum, count, and quantiles over the last minute. */
  summary<Label extends string = never>(definition: SummaryDefinition<Label>): Summary<Label> {
    const { name, help, labels = [], beforeScrape } = definition;
    return new Summary({
      name,
      help,
      labelNames: labels,
      percentiles: [...SUMMARY_QUANTILES],
      maxAgeSeconds: 60,
      ageBuckets: 5,
      registers: [this.#registry],
      collect: beforeScrape,
    });
  }

  /** A counter whose value is kept elsewhere and never decreases. */
  collectedCounter<Label extends string = never>(definition: CollectedMetric<Label>): void {
    const { name, help, labels = [], collect } = definition;
    const counter: Counter<Label> = new Counter({
      name,
      help,
      labelNames: labels,
      registers: [this.#registry],
      collect() {
        counter.reset();
        collect((values, value) => counter.inc(values as Record<Label, string>, value));
      },
    });
  }

  /** A gauge whose value is kept elsewhere. */
  collectedGauge<Label extends string = never>(definition: CollectedMetric<Label>): void {
    const { name, help, labels = [], collect } = definition;
    const gauge: Gauge<Label> = new Gauge({
      name,
      help,
      labelNames: labels,
      registers: [this.#registry],
      collect() {
        gauge.reset();
        collect((values, value) => gauge.set(values as Record<Label, string>, value));
      },
    });
  }

  get contentType(): string {
    return this.#registry.contentType;
  }

  metricsText(): Promise<string> {
    return this.#registry.metrics();
  }

  /** Current values, in a form that can be posted to another thread. */
  async values(): Promise<object> {
    return this.#registry.getMetricsAsJSON();
  }

  /** Metrics text with the values of other threads added by name and labels. */
  async mergedText(others: readonly object[]): Promise<string> {
    const own = await this.values();
    return AggregatorRegistry.aggregate([own, ...others]).metrics();
  }
}

/** A metric in the form of `MetricsRegistry.values`. */
export interface MetricValues {
  readonly name: string;
  readonly help: string;
  readonly type: string;
  readonly aggregator: string;
  readonly values: readonly { readonly labels: object; readonly value: number }[];
}

/** Metrics text of several processes, each with a value of the label. */
export async function mergeLabelled(
  label: string,
  parts: readonly { readonly label: string; readonly values: object | undefined }[],
  more: readonly MetricValues[],
): Promise<string> {
  const labelled = parts.flatMap(({ label: text, values }) => {
    if (values === undefined) return [];
    return [
      (values as readonly MetricValues[]).map((metric) => ({
        ...metric,
        // The label keeps the values of processes apart.
        aggregator: 'sum',
        values: metric.values.map((one) => ({ ...one, labels: { ...one.labels, [label]: text } })),
      })),
    ];
  });
  return AggregatorRegistry.aggregate([...labelled, [...more]]).metrics();
}
