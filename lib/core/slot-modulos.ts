/**
 * Reduces hashed keys by the modulo of their slot, for models in which slots have different ones.
 * Keys are words (low, high); up to MODULO_FAST_MAX no BigInt is made.
 */

/** Below it, a remainder and 16 more bits are exact as a double. */
const MODULO_FAST_MAX: bigint = 1n << 36n;

export class SlotModulos {
  /** For each slot its modulo when it is at most MODULO_FAST_MAX, else 0; 0 also for none. */
  readonly #fast: Float64Array;
  readonly #exact: readonly bigint[];

  /** @param modulos of each slot; 0: none */
  constructor(modulos: readonly bigint[]) {
    this.#exact = modulos;
    this.#fast = Float64Array.from(modulos, (m) => (m <= MODULO_FAST_MAX ? Number(m) : 0));
  }

  /**
   * Reduces keys in place.
   * @param at word of the first key, which is the value number `first` of a request
   * @param slotOf slot of each value of the request; absent: value i has slot i mod slots
   */
  reduce(
    keys: Uint32Array,
    { at, first, count }: { at: number; first: number; count: number },
    slotOf: Uint16Array | undefined,
  ): void {
    const slotNum = this.#fast.length;
    let slot = first % slotNum;
    for (let i = 0; i < count; i++) {
      if (slotOf !== undefined) slot = slotOf[first + i]!;
      const modulo = this.#fast[slot]!;
      if (modulo > 0) reduceFast(keys, at + 2 * i, modulo);
      else if (this.#exact[slot] !== 0n) reduceExact(keys, at + 2 * i, this.#exact[slot]!);
      slot = slot + 1 === slotNum ? 0 : slot + 1;
    }
  }
}

function reduceFast(keys: Uint32Array, at: number, modulo: number): void {
  const low = keys[at]!;
  let rest = computeRemainder(keys[at + 1]!, modulo);
  rest = computeRemainder(rest * 0x1_0000 + (low >>> 16), modulo);
  rest = computeRemainder(rest * 0x1_0000 + (low & 0xffff), modulo);
  keys[at] = rest;
  keys[at + 1] = rest / 2 ** 32;
}

/** Faster than `%` of doubles. @param value an integer below 2^53 − modulo */
function computeRemainder(value: number, modulo: number): number {
  const rest = value - Math.floor(value / modulo) * modulo;
  // The quotient may have been rounded up.
  return rest < 0 ? rest + modulo : rest;
}

function reduceExact(keys: Uint32Array, at: number, modulo: bigint): void {
  const key = ((BigInt(keys[at + 1]!) << 32n) | BigInt(keys[at]!)) % modulo;
  keys[at] = Number(key & 0xffff_ffffn);
  keys[at + 1] = Number(key >> 32n);
}
