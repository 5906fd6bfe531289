/**
 * Short arrays of words in common buffers. V8 allocates the buffer of an array of more than 64
 * bytes outside of its heap, which takes longer than a view of a common one.
 */

const SLAB_WORDS = 1024;
/** An array that lives longer than its request keeps its slab. */
const SHARED_WORDS_MAX = 128;

let slab = new Uint32Array(SLAB_WORDS);
let used = 0;

/**
 * Zeroed words, aligned for views of 64 bits. Do not transfer their buffer, which others use too.
 */
export function allocateWords(count: number): Uint32Array {
  if (count > SHARED_WORDS_MAX) return new Uint32Array(count);
  if (used + count > SLAB_WORDS) {
    slab = new Uint32Array(SLAB_WORDS);
    used = 0;
  }
  const words = slab.subarray(used, used + count);
  used += count + (count & 1);
  return words;
}
