/**
 * The endless stream of labelled rows of a seed. Row i depends on (seed, i) alone, so training and held-out rows are
 * two ranges of one stream, and a range costs the same wherever it starts. Pure: strings out, no I/O.
 *
 *     label \t I1 … I13 \t C1 … C26 \n        a missing value is empty
 */
import {
  CATEGORY_MISSING,
  categoryText,
  createFeatures,
  DENSE_MISSING,
  drawFeatures,
  type Features,
} from './features.ts';
import { RowRandom } from './random.ts';
import { Truth } from './truth.ts';

export class RowStream {
  readonly #seed: number;
  readonly #truth: Truth;
  readonly #random = new RowRandom();
  readonly #features: Features = createFeatures();
  /** Of the row sought last: 0 or 1. */
  label = 0;
  /** Of the row sought last: the true click probability. */
  probability = 0;

  /** @param seed u32 @param drift 0..1, see Truth; it changes labels, never features */
  constructor(seed: number, drift = 0) {
    this.#seed = seed;
    this.#truth = new Truth(seed, drift);
  }

  /** Moves to a row, any row: `label`, `probability` and `text()` are then about it. */
  seek(row: number): void {
    this.#random.seek(this.#seed, row);
    drawFeatures(this.#random, this.#features);
    this.probability = this.#truth.probability(this.#features);
    this.label = this.#random.unit() < this.probability ? 1 : 0;
  }

  /** The current row as a line with its line end. */
  text(): string {
    const { dense, categories } = this.#features;
    let line = this.label === 1 ? '1' : '0';
    for (const value of dense) line += value === DENSE_MISSING ? '\t' : `\t${value}`;
    for (let i = 0; i < categories.length; i++) {
      const rank = categories[i]!;
      line += rank === CATEGORY_MISSING ? '\t' : `\t${categoryText(this.#seed, i, rank)}`;
    }
    return `${line}\n`;
  }
}
