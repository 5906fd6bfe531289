/**
 * Short arrays of words in common buffers. V8 gives an array of more than 64 bytes a buffer of its
 * own, which takes a microsecond to allocate and free; a view of a common one takes a tenth.
 */

const SLAB_WORDS = 1024;
/** An array that lives longer than its request keeps its slab. */
const SHARED_WORDS_MAX = 128;

let slab = new Uint32Array(SLAB_WORDS);
let used = 0;

/** Zeroed words. Do not transfer their buffer, which others use too. */
export function allocateWords(count: number): Uint32Array {
  if (count > SHARED_WORDS_MAX) return new Uint32Array(count);
  if (used + count > SLAB_WORDS) {
    slab = new Uint32Array(SLAB_WORDS);
    used = 0;
  }
  const words = slab.subarray(used, used + count);
  used += count;
  return words;
}
