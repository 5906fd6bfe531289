/**
 * Shadow traffic: a share of a model's requests is answered a second time by another version, after
 * the caller has its answer. Nobody waits for the second answer; the two are compared.
 */
import type { VariantTarget } from './experiment.ts';

export interface Shadow {
  readonly name: string;
  /** The model whose requests are copied. */
  readonly model: string;
  /** Share of the requests, from 0 to 1. */
  readonly share: number;
  readonly target: VariantTarget;
  readonly timeoutMs: number;
}

/** Scores are compared in this many equal intervals between 0 and 1. */
const BINS = 20;
/** Stands in for the share of an empty interval, whose logarithm is infinite. */
const SHARE_MIN = 1e-4;

/** How the scores of two versions are distributed. */
export class ScoreComparison {
  readonly #primary = new Float64Array(BINS);
  readonly #shadow = new Float64Array(BINS);
  #count = 0;

  add(primary: number, shadow: number): void {
    this.#count++;
    this.#primary[toBin(primary)]!++;
    this.#shadow[toBin(shadow)]!++;
  }

  /**
   * The population stability index of the shadow's scores against the primary's: 0 for equal
   * distributions; from 0.25 they are usually called different.
   */
  get psi(): number {
    if (this.#count === 0) return 0;
    let sum = 0;
    for (let bin = 0; bin < BINS; bin++) {
      const expected = Math.max(this.#primary[bin]! / this.#count, SHARE_MIN);
      const actual = Math.max(this.#shadow[bin]! / this.#count, SHARE_MIN);
      sum += (actual - expected) * Math.log(actual / expected);
    }
    return sum;
  }
}

function toBin(score: number): number {
  return Math.min(BINS - 1, Math.max(0, Math.floor(score * BINS)));
}
