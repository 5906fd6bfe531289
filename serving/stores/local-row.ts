/**
 * Bytes of the keys and values in the LOCAL store's database (docs/formats/local-store.md).
 *
 *     key    layer number u32 BE · key u64 BE: a layer is one range, in key order
 *     value  row as the layer stores it · checksum u32 LE: MurmurHash3 (x86, 32) of key and row,
 *            seed = layer number
 *
 * A value without a row means that a delta deleted the key. Rows consist of whole words, whatever
 * their dtype. The database does not verify its own blocks when it reads them; the checksum does.
 * Because it covers the key, a damaged row, or the row of another key, is always detected.
 */

export const LOCAL_KEY_BYTES = 12;
export const CHECKSUM_BYTES = 4;

export function writeLocalKey(
  bytes: Uint8Array,
  at: number,
  layer: number,
  low: number,
  high: number,
): void {
  writeBigEndian(bytes, at, layer);
  writeBigEndian(bytes, at + 4, high);
  writeBigEndian(bytes, at + 8, low);
}

function writeBigEndian(bytes: Uint8Array, at: number, word: number): void {
  bytes[at] = word >>> 24;
  bytes[at + 1] = word >>> 16;
  bytes[at + 2] = word >>> 8;
  bytes[at + 3] = word;
}

export function readBigEndian(bytes: Uint8Array, at: number): number {
  const word = (bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!;
  return word >>> 0;
}

/**
 * Writes the value of the row of `rowWords` words at `source[sourceAt]`; 0 words for a deleted key.
 */
export function writeLocalRow(
  bytes: Uint8Array,
  at: number,
  source: Uint8Array,
  sourceAt: number,
  rowWords: number,
  layer: number,
  low: number,
  high: number,
): void {
  let hash = mixWord(mixWord(layer, low), high);
  for (let i = 0; i < 4 * rowWords; i += 4) {
    const from = sourceAt + i;
    const word =
      source[from]! |
      (source[from + 1]! << 8) |
      (source[from + 2]! << 16) |
      (source[from + 3]! << 24);
    writeLittleEndian(bytes, at + i, word);
    hash = mixWord(hash, word);
  }
  writeLittleEndian(bytes, at + 4 * rowWords, finalizeHash(hash, 4 * rowWords + 8));
}

function writeLittleEndian(bytes: Uint8Array, at: number, word: number): void {
  bytes[at] = word;
  bytes[at + 1] = word >>> 8;
  bytes[at + 2] = word >>> 16;
  bytes[at + 3] = word >>> 24;
}

/**
 * Copies a value's row to `words[wordsAt]`. @returns false when the value is damaged or has another
 * length
 */
export function readLocalRow(
  value: Uint8Array,
  words: Uint32Array,
  wordsAt: number,
  rowWords: number,
  layer: number,
  low: number,
  high: number,
): boolean {
  if (value.length !== 4 * rowWords + CHECKSUM_BYTES) return false;
  let hash = mixWord(mixWord(layer, low), high);
  let at = 0;
  for (let d = 0; d < rowWords; d++, at += 4) {
    const word =
      value[at]! | (value[at + 1]! << 8) | (value[at + 2]! << 16) | (value[at + 3]! << 24);
    words[wordsAt + d] = word;
    hash = mixWord(hash, word);
  }
  const stored =
    value[at]! | (value[at + 1]! << 8) | (value[at + 2]! << 16) | (value[at + 3]! << 24);
  return stored >>> 0 === finalizeHash(hash, 4 * rowWords + 8);
}

/** One block of MurmurHash3_x86_32. */
function mixWord(hash: number, word: number): number {
  let k = Math.imul(word, 0xcc9e_2d51);
  k = Math.imul((k << 15) | (k >>> 17), 0x1b87_3593);
  const mixed = hash ^ k;
  return (Math.imul((mixed << 13) | (mixed >>> 19), 5) + 0xe654_6b64) | 0;
}

/** The finalizer of MurmurHash3_x86_32. */
function finalizeHash(hash: number, bytes: number): number {
  let h = hash ^ bytes;
  h = Math.imul(h ^ (h >>> 16), 0x85eb_ca6b);
  h = Math.imul(h ^ (h >>> 13), 0xc2b2_ae35);
  return (h ^ (h >>> 16)) >>> 0;
}
