/** MurmurHash3 x86_32 with seed 0, the hash of brpc's c_murmurhash. */

const C1 = 0xcc9e_2d51;
const C2 = 0x1b87_3593;

function scramble(word: number): number {
  const mixed = Math.imul(word, C1);
  return Math.imul((mixed << 15) | (mixed >>> 17), C2);
}

function step(hash: number, word: number): number {
  const mixed = hash ^ scramble(word);
  return (Math.imul((mixed << 13) | (mixed >>> 19), 5) + 0xe654_6b64) | 0;
}

function finish(hash: number): number {
  let mixed = hash ^ (hash >>> 16);
  mixed = Math.imul(mixed, 0x85eb_ca6b);
  mixed ^= mixed >>> 13;
  mixed = Math.imul(mixed, 0xc2b2_ae35);
  return (mixed ^ (mixed >>> 16)) >>> 0;
}

export function murmur32(bytes: Uint8Array): number {
  const blocks = bytes.length & ~3;
  let hash = 0;
  for (let i = 0; i < blocks; i += 4) {
    hash = step(
      hash,
      bytes[i]! | (bytes[i + 1]! << 8) | (bytes[i + 2]! << 16) | (bytes[i + 3]! << 24),
    );
  }
  let tail = 0;
  for (let i = bytes.length - 1; i >= blocks; i--) tail = (tail << 8) | bytes[i]!;
  if (blocks < bytes.length) hash ^= scramble(tail);
  return finish(hash ^ bytes.length);
}

/** Hashes a key's eight little-endian bytes. */
export function murmur32OfKey(low: number, high: number): number {
  return finish(step(step(0, low), high) ^ 8);
}
