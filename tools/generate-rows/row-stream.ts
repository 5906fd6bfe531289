/**
 * The endless stream of labelled rows of a seed. Row i depends only on (seed, i), so training and
 * test rows are two ranges of one stream, and the cost of a range does not depend on its start.
 * Pure: no I/O.
 *
 *     label \t I1 … I13 \t C1 … C26 \n        a missing value is empty
 */
import {
  CATEGORY_MISSING,
  createFeatures,
  DENSE_MISSING,
  drawFeatures,
  type Features,
  formatCategory,
} from './features.ts';
import { GroundTruth } from './ground-truth.ts';
import { RowRandom } from './random.ts';

export class RowStream {
  readonly #seed: number;
  readonly #groundTruth: GroundTruth;
  readonly #random = new RowRandom();
  readonly #features: Features = createFeatures();
  /** Label of the current row: 0 or 1. */
  label = 0;
  /** True click probability of the current row. */
  probability = 0;

  /** @param seed u32. @param drift 0..1, see GroundTruth; it changes labels, never features */
  constructor(seed: number, drift = 0) {
    this.#seed = seed;
    this.#groundTruth = new GroundTruth(seed, drift);
  }

  /** Makes any row the current one, for `label`, `probability` and `formatRow()`. */
  seek(row: number): void {
    this.#random.seek(this.#seed, row);
    drawFeatures(this.#random, this.#features);
    this.probability = this.#groundTruth.probability(this.#features);
    this.label = this.#random.nextUnit() < this.probability ? 1 : 0;
  }

  /** Formats the current row as a line, with its line end. */
  formatRow(): string {
    const { dense, categories } = this.#features;
    let line = this.label === 1 ? '1' : '0';
    for (const value of dense) line += value === DENSE_MISSING ? '\t' : `\t${value}`;
    for (let i = 0; i < categories.length; i++) {
      const rank = categories[i]!;
      line += rank === CATEGORY_MISSING ? '\t' : `\t${formatCategory(this.#seed, i, rank)}`;
    }
    return `${line}\n`;
  }
}
