/** Keys as users have them, as the two words each that lookups take. */
import { CubeError } from '../core/errors.ts';
import { setKey } from '../core/keys.ts';

const KEY_MAX = (1n << 64n) - 1n;

/**
 * @returns 2 words a key: low, high
 * @throws CubeError INVALID_ARGUMENT for what is no unsigned 64-bit key, or a number that JavaScript may have rounded
 */
export function keyWords(keys: readonly (bigint | number)[]): Uint32Array {
  const words = new Uint32Array(2 * keys.length);
  keys.forEach((key, i) => {
    const exact = typeof key === 'bigint' || Number.isSafeInteger(key);
    const wide = exact ? BigInt(key) : -1n;
    if (wide < 0n || wide > KEY_MAX) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `key ${i}: expected an integer in 0 … 2^64 − 1 (above 2^53 as a bigint), got ${key}`,
      );
    }
    setKey(words, i, wide);
  });
  return words;
}
