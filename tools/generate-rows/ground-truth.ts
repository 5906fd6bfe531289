/**
 * The known click probability of a row, so that the best reachable AUC and logloss of a model are
 * known too. The logit adds an effect for each category, each integer and a few pairs of
 * categories. Effects are hashes of (seed, field, category): nothing is stored. Rare categories
 * have weak effects, so that most of what can be learnt is learnt from frequent ones, in a modest
 * number of rows.
 */
import { createFeatures, DENSE_MISSING, drawFeatures, type Features } from './features.ts';
import { bitsToNormal, hashWords, mix32, RowRandom } from './random.ts';
import { DENSE_FIELDS, type DenseField, INTERACTIONS, SLOT_FIELDS } from './schema.ts';

/** Share of clicks in all rows. */
const CLICK_RATE = 0.25;
/** Standard deviation of the logit; 1.4 puts the best reachable AUC near 0.80. */
const LOGIT_SPREAD = 1.4;
const PILOT_ROWS = 20_000;
/** A category of this rank has half the effect of the most frequent one. */
const FADING_RANK = 60;
const DENSE_WEIGHT = 0.35;

/** Namespaces of the effect hashes, one for each kind of effect. */
const SLOT_EFFECTS = 0x100;
const DENSE_EFFECTS = 0x200;
const PAIR_EFFECTS = 0x300;

export class GroundTruth {
  readonly #seed: number;
  readonly #drift: number;
  readonly #kept: number;
  #scale = 1;
  #bias = 0;

  /**
   * @param seed u32
   * @param drift 0..1: how far each effect has moved to an unrelated one; the logit keeps its
   *   spread
   */
  constructor(seed: number, drift = 0) {
    this.#seed = mix32(seed ^ 0x7472_7574);
    this.#drift = drift;
    this.#kept = Math.sqrt(1 - drift * drift);
    this.#calibrate(seed);
  }

  /** Click probability of a row. */
  probability(features: Features): number {
    return sigmoid(this.#bias + this.#scale * this.#sum(features));
  }

  /** Scales and shifts the logit: every seed gives the same click rate and difficulty. */
  #calibrate(seed: number): void {
    const sums = new Float64Array(PILOT_ROWS);
    const random = new RowRandom();
    const features = createFeatures();
    for (let row = 0; row < PILOT_ROWS; row++) {
      random.seek(mix32(seed ^ 0x7069_6c6f), row);
      drawFeatures(random, features);
      sums[row] = this.#sum(features);
    }
    const mean = sums.reduce((sum, value) => sum + value, 0) / PILOT_ROWS;
    const variance = sums.reduce((sum, value) => sum + (value - mean) ** 2, 0) / PILOT_ROWS;
    this.#scale = LOGIT_SPREAD / Math.sqrt(variance);
    this.#bias = findBias(
      sums.map((value) => value * this.#scale),
      CLICK_RATE,
    );
  }

  #sum(features: Features): number {
    const { dense, categories } = features;
    let sum = 0;
    for (let i = 0; i < dense.length; i++) sum += this.#denseEffect(i, dense[i]!);
    for (let i = 0; i < categories.length; i++) {
      const rank = categories[i]!;
      sum += SLOT_FIELDS[i]!.weight * computeFading(rank) * this.#effect(SLOT_EFFECTS + i, rank);
    }
    for (let i = 0; i < INTERACTIONS.length; i++) {
      const { slots, weight } = INTERACTIONS[i]!;
      const first = categories[slots[0]]!;
      const second = categories[slots[1]]!;
      const pair = Math.imul(first, 0x1_0001) ^ second;
      sum +=
        weight *
        computeFading(first) *
        computeFading(second) *
        this.#effect(PAIR_EFFECTS + i, pair);
    }
    return sum;
  }

  /** A parabola over the standardised logarithm; a missing value has its own effect. */
  #denseEffect(index: number, value: number): number {
    const field = DENSE_FIELDS[index]!;
    const effects = DENSE_EFFECTS + index;
    if (value === DENSE_MISSING) return DENSE_WEIGHT * this.#effect(effects, 0);
    const x = standardize(field, value);
    const line = this.#effect(effects, 1) * x;
    const bend = 0.3 * this.#effect(effects, 2) * (x * x - 1);
    return DENSE_WEIGHT * (line + bend);
  }

  /** About standard normal; drift mixes in an independent effect and keeps the variance. */
  #effect(kind: number, item: number): number {
    const effect = bitsToNormal(hashWords(this.#seed, kind, item));
    if (this.#drift === 0) return effect;
    const other = bitsToNormal(hashWords(this.#seed ^ 0x6472_6966, kind, item));
    return this.#kept * effect + this.#drift * other;
  }
}

function computeFading(rank: number): number {
  return 1 / (1 + Math.max(rank, 0) / FADING_RANK);
}

function standardize(field: DenseField, value: number): number {
  const x = (Math.log(1 + Math.max(value, 0)) - field.location) / field.spread;
  return Math.min(Math.max(x, -2), 3);
}

function sigmoid(logit: number): number {
  return 1 / (1 + Math.exp(-logit));
}

/** The bias for which the mean probability is `rate`, found by bisection. */
function findBias(logits: Float64Array, rate: number): number {
  let low = -50;
  let high = 50;
  for (let step = 0; step < 60; step++) {
    const middle = (low + high) / 2;
    let sum = 0;
    for (const logit of logits) sum += sigmoid(middle + logit);
    if (sum / logits.length < rate) low = middle;
    else high = middle;
  }
  return low;
}
