/** Row numbers of a dense layer whose rows stay on disk: no kernel sees its keys. */
import type { LayerHeader } from '../core/layer-format.ts';

export class DenseRows {
  readonly #header: LayerHeader;
  readonly #firstLow: number;
  readonly #firstHigh: number;
  readonly #step: number;

  constructor(header: LayerHeader) {
    this.#header = header;
    this.#firstLow = Number(header.firstKey & 0xffff_ffffn);
    this.#firstHigh = Number(header.firstKey >> 32n);
    this.#step = Number(header.keyStep);
  }

  /** The row of a key, or -1 when it has none. */
  rowOf(low: number, high: number): number {
    const distance = (high - this.#firstHigh) * 0x1_0000_0000 + (low - this.#firstLow);
    if (distance < 0) return -1;
    // Beyond 2^53 a double is not exact.
    const row =
      distance <= Number.MAX_SAFE_INTEGER ? distance / this.#step : this.#exactRow(low, high);
    return Number.isInteger(row) && row < this.#header.rowCount ? row : -1;
  }

  #exactRow(low: number, high: number): number {
    const { firstKey, keyStep } = this.#header;
    const distance = ((BigInt(high) << 32n) | BigInt(low)) - firstKey;
    return distance % keyStep === 0n ? Number(distance / keyStep) : -1;
  }
}
