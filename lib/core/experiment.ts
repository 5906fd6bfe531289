/**
 * Experiments: a share of the requests of a model is answered by another version. A request is
 * assigned by its key, so that the same user gets the same variant in every process.
 */
import { xxh64 } from './hash.ts';

/** What answers the requests of a variant. Nothing: what answers without the experiment. */
export interface VariantTarget {
  /** Another served model with the same inputs. */
  readonly model?: string;
  readonly channel?: string;
  readonly version?: string;
}

export interface Variant {
  readonly name: string;
  /** Share of the requests, relative to the other variants; 0: only keys in `overrides`. */
  readonly weight: number;
  readonly target: VariantTarget;
}

export interface Experiment {
  readonly name: string;
  /** The model that requests name. */
  readonly model: string;
  /** Experiments with different salts assign the same key independently of each other. */
  readonly salt: string;
  /** The slot whose key in the first row is the key of a request that sends none. */
  readonly slot?: string;
  readonly variants: readonly Variant[];
  /** Variants by name of single keys, whatever the weights. */
  readonly overrides: ReadonlyMap<string, string>;
}

/** Why experiments cannot run together, and the place in the list of the one to change. */
export interface ExperimentConflict {
  readonly index: number;
  readonly reason: string;
}

const hasTarget = ({ target }: Variant): boolean => Object.keys(target).length > 0;

const encoder = new TextEncoder();
const UNIT = 2 ** -53;

/**
 * The variant of a key. Weighted rendezvous hashing: each variant draws a number from the hash of
 * its name and the key, and the largest wins. After one variant's weight changes, keys move only to
 * or from that variant.
 */
export function assignVariant({ salt, variants, overrides }: Experiment, key: string): Variant {
  const named = overrides.get(key);
  if (named !== undefined) {
    const variant = variants.find(({ name }) => name === named);
    if (variant !== undefined) return variant;
  }
  return drawVariant(variants, ({ name }) => {
    const hash = xxh64(encoder.encode(`${salt}\0${name}\0${key}`));
    return (Number(hash >> 11n) + 0.5) * UNIT;
  });
}

/**
 * A variant by its weight. @param draw independent numbers between 0 and 1, for each variant
 */
export function drawVariant(
  variants: readonly Variant[],
  draw: (variant: Variant) => number,
): Variant {
  let best: Variant | undefined;
  let bestScore = Number.NEGATIVE_INFINITY;
  for (const variant of variants) {
    if (variant.weight === 0) continue;
    // Exponentially distributed with rate `weight`; the smallest wins with probability weight/sum.
    const score = Math.log(draw(variant)) / variant.weight;
    if (score > bestScore) {
      best = variant;
      bestScore = score;
    }
  }
  if (best === undefined) throw new Error('an experiment needs a variant with a weight');
  return best;
}

/**
 * Names are unique, only one experiment decides which version answers a model's requests, and a
 * request has one key. @returns the first conflict; undefined: they can run together
 */
export function findConflict(experiments: readonly Experiment[]): ExperimentConflict | undefined {
  const names = new Set<string>();
  const slots = new Map<string, string>();
  const deciding = new Map<string, string>();
  for (const [index, { name, model, slot, variants }] of experiments.entries()) {
    if (names.has(name)) return { index, reason: `the name ${name} is used twice` };
    names.add(name);
    const otherSlot = slots.get(model) ?? slot;
    if (slot !== undefined && otherSlot !== slot) {
      const taken = `another experiment takes the keys of ${model} from slot ${otherSlot}`;
      return { index, reason: `${taken}: use the same slot` };
    }
    if (slot !== undefined) slots.set(model, slot);
    if (!variants.some(hasTarget)) continue;
    const other = deciding.get(model);
    if (other !== undefined) {
      const chosen = `${other} chooses the version of ${model} already`;
      const rule = 'of other experiments of this model may have no model, channel or version';
      return { index, reason: `${chosen}: variants ${rule}` };
    }
    deciding.set(model, name);
  }
  return undefined;
}
