/**
 * Shadow traffic: a share of a model's requests is answered a second time by another version, after
 * the caller has its answer. Nobody waits for the second answer; the two are compared.
 */
import type { VariantTarget } from './experiment.ts';
import type { JsonReader } from './json.ts';
import { LogHistogram } from './log-histogram.ts';

export interface Shadow {
  readonly name: string;
  /** The model whose requests are copied. */
  readonly model: string;
  /** Share of the requests, from 0 to 1. */
  readonly share: number;
  readonly target: ShadowTarget;
  readonly timeoutMs: number;
}

export interface ShadowTarget extends VariantTarget {
  /** Another serving process, as a URL; model, channel and version are those served there. */
  readonly endpoint?: string;
  /** File with the API key for the endpoint, and the authorities of its certificate (PEM). */
  readonly apiKeyFile?: string;
  readonly tlsCa?: string;
}

/** Scores are compared in this many equal intervals between 0 and 1. */
const BINS = 20;
/** Stands in for the share of an empty interval, whose logarithm is infinite. */
const SHARE_MIN = 1e-4;
/** Differences of scores from 1e-9 to 1, in steps of 15 %. */
const DIFFERENCES = { first: 1e-9, perDoubling: 5, buckets: 151 } as const;
/** Durations from 10 µs to 3 min, in steps of 15 %. */
const DURATIONS_MS = { first: 0.01, perDoubling: 5, buckets: 121 } as const;
const CODES_MAX = 100;

export interface AnsweredCopy {
  readonly primary: { readonly durationMs: number; readonly scores: ArrayLike<number> };
  readonly shadow: { readonly durationMs: number; readonly scores: ArrayLike<number> };
}

/**
 * Compares the answers of one version to copied requests with the answers that callers got. Memory
 * does not grow with requests; tallies of several processes can be added.
 */
export class ShadowTally {
  /** Answered copies. */
  requests = 0;
  /** Copies that were not sent. */
  dropped = 0;
  /** Failed copies by error code. */
  readonly failures: Map<string, number> = new Map();
  rows = 0;
  #differenceSum = 0;
  readonly #differences = new LogHistogram(DIFFERENCES);
  readonly #primaryMs = new LogHistogram(DURATIONS_MS);
  readonly #shadowMs = new LogHistogram(DURATIONS_MS);
  readonly #primaryScores = new Float64Array(BINS);
  readonly #shadowScores = new Float64Array(BINS);

  addFailure(code: string, count = 1): void {
    this.failures.set(code, (this.failures.get(code) ?? 0) + count);
  }

  addAnswer({ primary, shadow }: AnsweredCopy): void {
    this.requests++;
    this.#primaryMs.record(primary.durationMs);
    this.#shadowMs.record(shadow.durationMs);
    const rows = Math.min(primary.scores.length, shadow.scores.length);
    for (let row = 0; row < rows; row++) {
      const [first, second] = [primary.scores[row]!, shadow.scores[row]!];
      const difference = Math.abs(first - second);
      if (Number.isNaN(difference)) continue;
      this.rows++;
      this.#differenceSum += difference;
      this.#differences.record(difference);
      this.#primaryScores[toBin(first)]!++;
      this.#shadowScores[toBin(second)]!++;
    }
  }

  get failed(): number {
    return [...this.failures.values()].reduce((sum, count) => sum + count, 0);
  }

  /**
   * The population stability index of the shadow's scores against the primary's: 0 for equal
   * distributions; from 0.25 they are usually called different.
   */
  get psi(): number {
    if (this.rows === 0) return 0;
    let sum = 0;
    for (let bin = 0; bin < BINS; bin++) {
      const expected = Math.max(this.#primaryScores[bin]! / this.rows, SHARE_MIN);
      const actual = Math.max(this.#shadowScores[bin]! / this.rows, SHARE_MIN);
      sum += (actual - expected) * Math.log(actual / expected);
    }
    return sum;
  }

  /** The figures of the gate's report. Percentiles are at most 15 % too high. */
  summarize(): ShadowSummary {
    const { requests, dropped, rows, psi } = this;
    const latency = (histogram: LogHistogram): ShadowLatency => ({
      p50Ms: histogram.percentile(0.5),
      p99Ms: histogram.percentile(0.99),
    });
    return {
      requests,
      dropped,
      failed: this.failed,
      failures: Object.fromEntries(this.failures),
      rows,
      drift: {
        mean: rows === 0 ? 0 : this.#differenceSum / rows,
        p50: this.#differences.percentile(0.5),
        p99: this.#differences.percentile(0.99),
        largest: this.#differences.percentile(1),
        psi,
      },
      latency: { primary: latency(this.#primaryMs), shadow: latency(this.#shadowMs) },
    };
  }

  /** What `addJson` of another process reads. */
  toJson(): object {
    return {
      ...this.summarize(),
      counts: {
        differenceSum: this.#differenceSum,
        differences: this.#differences.toJson(),
        primaryMs: this.#primaryMs.toJson(),
        shadowMs: this.#shadowMs.toJson(),
        primaryScores: [...this.#primaryScores],
        shadowScores: [...this.#shadowScores],
      },
    };
  }

  /** Adds the tally of another process. @throws CubeError INVALID_ARGUMENT naming the field */
  addJson(json: JsonReader): void {
    this.requests += json.field('requests').number();
    this.dropped += json.field('dropped').number();
    this.rows += json.field('rows').number();
    const failures = json.field('failures').entries();
    if (failures.length > CODES_MAX) json.field('failures').fail(`at most ${CODES_MAX} codes`);
    for (const [code, count] of failures) this.addFailure(code, count.number());
    const counts = json.field('counts');
    this.#differenceSum += counts.field('differenceSum').number();
    this.#differences.addJson(counts.field('differences'));
    this.#primaryMs.addJson(counts.field('primaryMs'));
    this.#shadowMs.addJson(counts.field('shadowMs'));
    addBins(this.#primaryScores, counts.field('primaryScores'));
    addBins(this.#shadowScores, counts.field('shadowScores'));
  }
}

export interface ShadowLatency {
  /** NaN without an answered copy. */
  readonly p50Ms: number;
  readonly p99Ms: number;
}

export interface ShadowSummary {
  readonly requests: number;
  readonly dropped: number;
  readonly failed: number;
  readonly failures: Readonly<Record<string, number>>;
  readonly rows: number;
  /** Absolute differences of the click probabilities, by row. */
  readonly drift: {
    readonly mean: number;
    readonly p50: number;
    readonly p99: number;
    readonly largest: number;
    readonly psi: number;
  };
  readonly latency: { readonly primary: ShadowLatency; readonly shadow: ShadowLatency };
}

function addBins(bins: Float64Array, json: JsonReader): void {
  json.items({ min: BINS, max: BINS }).forEach((item, bin) => {
    bins[bin]! += item.number();
  });
}

function toBin(score: number): number {
  return Math.min(BINS - 1, Math.max(0, Math.floor(score * BINS)));
}
