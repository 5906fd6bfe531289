/**
 * Draws the 13 integers and 26 categories of a row. Categories are ranks here (0 is the most
 * frequent) until they are written.
 */
import { mix32, type RowRandom } from './random.ts';
import {
  DENSE_FIELDS,
  type DenseField,
  MISSING_GROUPS,
  SLOT_FIELDS,
  type SlotField,
} from './schema.ts';

export const DENSE_MISSING = -0x8000_0000;
export const CATEGORY_MISSING = -1;

/** One row before its label; reused from row to row. */
export interface Features {
  /** [13], DENSE_MISSING where empty */
  readonly dense: Int32Array;
  /** [26] ranks, CATEGORY_MISSING where empty */
  readonly categories: Int32Array;
}

export function createFeatures(): Features {
  return {
    dense: new Int32Array(DENSE_FIELDS.length),
    categories: new Int32Array(SLOT_FIELDS.length),
  };
}

/** Draws from a bounded power law: inverts its continuous distribution and rounds down. */
export class PowerLaw {
  readonly #categories: number;
  readonly #offset: number;
  readonly #inverse: number;
  readonly #low: number;
  readonly #span: number;

  /** @param exponent must not be 1 */
  constructor({
    categories,
    exponent,
    offset,
  }: Pick<SlotField, 'categories' | 'exponent' | 'offset'>) {
    const power = 1 - exponent;
    const at = (rank: number): number => Math.exp(power * Math.log(rank + 1 + offset));
    this.#categories = categories;
    this.#offset = offset;
    this.#inverse = 1 / power;
    this.#low = at(0);
    this.#span = at(categories) - this.#low;
  }

  /** @param unit uniform in (0, 1) @returns a rank in 0..categories − 1 */
  toRank(unit: number): number {
    const position = Math.exp(this.#inverse * Math.log(this.#low + unit * this.#span));
    const rank = Math.floor(position - this.#offset - 1);
    return Math.min(Math.max(rank, 0), this.#categories - 1);
  }
}

const powerLaws = SLOT_FIELDS.map((field) => new PowerLaw(field));
const denseGroups = DENSE_FIELDS.map((field) => MISSING_GROUPS.indexOf(field.group));
const slotGroups = SLOT_FIELDS.map((field) => MISSING_GROUPS.indexOf(field.group));
const groupUnits = new Float64Array(MISSING_GROUPS.length);

/** Fills `features` with the row that `random` was sought to. */
export function drawFeatures(random: RowRandom, features: Features): void {
  for (let group = 0; group < groupUnits.length; group++) groupUnits[group] = random.nextUnit();
  for (let i = 0; i < DENSE_FIELDS.length; i++) {
    const field = DENSE_FIELDS[i]!;
    const absent = (groupUnits[denseGroups[i]!] ?? random.nextUnit()) < field.missing;
    features.dense[i] = absent ? DENSE_MISSING : drawDense(random, field);
  }
  for (let i = 0; i < SLOT_FIELDS.length; i++) {
    const absent = (groupUnits[slotGroups[i]!] ?? random.nextUnit()) < SLOT_FIELDS[i]!.missing;
    features.categories[i] = absent ? CATEGORY_MISSING : powerLaws[i]!.toRank(random.nextUnit());
  }
}

function drawDense(random: RowRandom, field: DenseField): number {
  const unit = random.nextUnit();
  if (unit < field.zero) {
    if (field.hasNegatives !== true || unit > field.zero / 2) return 0;
    return unit < field.zero / 200 ? -3 : unit < field.zero / 20 ? -2 : -1;
  }
  // Six spreads above the location are far below 2^31.
  const tail = Math.min(random.nextNormal(), 6);
  return Math.floor(Math.exp(field.location + field.spread * tail));
}

/** The eight hex digits of a category; distinct categories of a slot have distinct digits. */
export function formatCategory(seed: number, slotIndex: number, rank: number): string {
  const key = mix32(mix32(seed) + slotIndex);
  return mix32(rank ^ key)
    .toString(16)
    .padStart(8, '0');
}
