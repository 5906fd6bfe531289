/**
 * The samples of the last fifteen minutes, one a second, in memory of a fixed size. A value that is
 * not known (a latency without requests) is NaN, and `null` in JSON.
 */

/** Fifteen minutes. */
export const HISTORY_SAMPLES = 900;

export interface HistoryJson {
  /** Milliseconds since 1970, ascending. */
  readonly times: readonly number[];
  /** For each series its values, one for each time. */
  readonly values: readonly (readonly (number | null)[])[];
}

export class SampleHistory {
  readonly #times = new Float64Array(HISTORY_SAMPLES);
  readonly #columns: readonly Float32Array[];
  /** Number of samples ever added. */
  #added = 0;

  constructor(seriesCount: number) {
    this.#columns = Array.from({ length: seriesCount }, () => new Float32Array(HISTORY_SAMPLES));
  }

  add(timeMs: number, values: Float64Array): void {
    const at = this.#added++ % HISTORY_SAMPLES;
    this.#times[at] = timeMs;
    this.#columns.forEach((column, i) => {
      column[at] = values[i] ?? Number.NaN;
    });
  }

  toJson(): HistoryJson {
    const count = Math.min(this.#added, HISTORY_SAMPLES);
    const oldest = this.#added - count;
    const order = Array.from({ length: count }, (_, i) => (oldest + i) % HISTORY_SAMPLES);
    return {
      times: order.map((at) => Math.round(this.#times[at] ?? 0)),
      values: this.#columns.map((column) =>
        order.map((at) => roundValue(column[at] ?? Number.NaN)),
      ),
    };
  }
}

/** Four digits are more than a chart shows. */
export function roundValue(value: number): number | null {
  if (!Number.isFinite(value)) return null;
  return value === 0 ? 0 : Number(value.toPrecision(4));
}
