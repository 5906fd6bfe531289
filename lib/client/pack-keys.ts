/** Converts keys from bigints or numbers to the two words each that lookups take. */
import { CubeError } from '../core/errors.ts';
import { setKey } from '../core/keys.ts';

const KEY_MAX = (1n << 64n) - 1n;

/**
 * Returns 2 words per key: low, high.
 * @throws CubeError INVALID_ARGUMENT for a value that is not an unsigned 64-bit integer, or a
 *   number above 2^53, which may be rounded
 */
export function packKeys(keys: readonly (bigint | number)[]): Uint32Array {
  const words = new Uint32Array(2 * keys.length);
  keys.forEach((key, i) => {
    const isExact = typeof key === 'bigint' || Number.isSafeInteger(key);
    const value = isExact ? BigInt(key) : -1n;
    if (value < 0n || value > KEY_MAX) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `key ${i}: expected an integer in 0 … 2^64 − 1 (above 2^53 as a bigint), got ${key}`,
      );
    }
    setKey(words, i, value);
  });
  return words;
}
