/**
 * The tracer: each interval, where the time of requests went. Its text has the layout of Paddle
 * Serving's `pipeline.tracer`, so that existing readers of that file understand it.
 */
import type { OpStats, PipelineStats } from './pipeline-stats.ts';

/** The state of an op at the end of an interval. */
export interface OpGauge {
  readonly name: string;
  readonly concurrency: number;
  readonly queueLength: number;
  readonly queueCapacity: number;
}

export interface TracerSource {
  readonly stats: PipelineStats;
  readonly opGauges: readonly OpGauge[];
  readonly maxRequests: number;
}

const PERCENTILES = [0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.99];
const NO_STATS: OpStats = { count: 0, inMs: 0, prepMs: 0, midpMs: 0, postpMs: 0, outMs: 0 };

/** Formats what happened since the last call. */
export class Tracer {
  readonly #source: TracerSource;
  #lastMs: number;
  #ops: ReadonlyMap<string, OpStats> = new Map();
  #requests = 0;
  #failures = 0;
  #requestMs = 0;

  /** @param nowMs on the scale of `performance.now()` */
  constructor(source: TracerSource, nowMs: number) {
    this.#source = source;
    this.#lastMs = nowMs;
  }

  /** The lines of the interval that ends now. */
  format(nowMs: number): string {
    const intervalMs = Math.max(1, nowMs - this.#lastMs);
    this.#lastMs = nowMs;
    const { opGauges, stats } = this.#source;
    const lines = ['==================== TRACER ======================'];
    for (const gauge of opGauges) lines.push(...this.#formatOp(gauge, intervalMs));
    this.#ops = new Map([...stats.ops].map(([name, op]) => [name, { ...op }]));
    lines.push(...this.#formatRequests(intervalMs));
    return `${lines.join('\n')}\n`;
  }

  #formatOp({ name, concurrency }: OpGauge, intervalMs: number): string[] {
    const now = this.#source.stats.ops.get(name) ?? NO_STATS;
    const before = this.#ops.get(name) ?? NO_STATS;
    const count = now.count - before.count;
    const mean = (stage: 'inMs' | 'prepMs' | 'midpMs' | 'postpMs' | 'outMs'): number =>
      count === 0 ? 0 : (now[stage] - before[stage]) / count;
    const [prep, midp, postp] = [mean('prepMs'), mean('midpMs'), mean('postpMs')];
    const busyShare = (count * (prep + midp + postp)) / (intervalMs * concurrency);
    return [
      `Op(${name}):`,
      `\tin[${format(mean('inMs'))} ms]`,
      `\tprep[${format(prep)} ms]`,
      `\tmidp[${format(midp)} ms]`,
      `\tpostp[${format(postp)} ms]`,
      `\tout[${format(mean('outMs'))} ms]`,
      `\tidle[${format(Math.max(0, 1 - busyShare))}]`,
      `\tconcurrency[${concurrency}]`,
    ];
  }

  #formatRequests(intervalMs: number): string[] {
    const { stats, opGauges, maxRequests } = this.#source;
    const count = stats.requests - this.#requests;
    const failures = stats.failures - this.#failures;
    const meanMs = count === 0 ? 0 : (stats.requestMs - this.#requestMs) / count;
    this.#requests = stats.requests;
    this.#failures = stats.failures;
    this.#requestMs = stats.requestMs;
    const latencies = stats.latencies(count);
    return [
      'DAGExecutor:',
      `\tQuery count[${count}]`,
      `\tQPS[${format((1_000 * count) / intervalMs)} q/s]`,
      `\tSucc[${format(count === 0 ? 1 : 1 - failures / count)}]`,
      `\tLatency:`,
      `\t\tave[${format(meanMs)} ms]`,
      ...PERCENTILES.map(
        (share) => `\t\t.${Math.round(100 * share)}[${format(find(latencies, share))} ms]`,
      ),
      `Channel (server worker num[${maxRequests}]):`,
      ...opGauges.map(
        ({ name, queueLength, queueCapacity }) =>
          `\t${name}(In) size[${queueLength}/${queueCapacity}]`,
      ),
    ];
  }
}

function find(sorted: readonly number[], share: number): number {
  return sorted[Math.min(sorted.length - 1, Math.floor(share * sorted.length))] ?? 0;
}

function format(value: number): string {
  return String(Math.round(1_000 * value) / 1_000);
}
