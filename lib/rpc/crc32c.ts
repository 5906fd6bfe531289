/** CRC-32C (Castagnoli, reflected), eight bytes per step, and the masked form in brpc's frames. */

const POLYNOMIAL = 0x82f6_3b78;
/** Eight tables of 256 entries: table k is the effect of a byte on the remainder k bytes later. */
const tables: Int32Array = makeTables();

function makeTables(): Int32Array {
  const words = new Int32Array(8 * 256);
  for (let byte = 0; byte < 256; byte++) {
    let rest = byte;
    for (let bit = 0; bit < 8; bit++) rest = (rest >>> 1) ^ (rest & 1 ? POLYNOMIAL : 0);
    words[byte] = rest;
  }
  for (let i = 256; i < words.length; i++) {
    const before = words[i - 256]!;
    words[i] = (before >>> 8) ^ words[before & 0xff]!;
  }
  return words;
}

/**
 * Computes the checksum of `bytes[start..end)` as unsigned 32 bits.
 * @param initial the checksum of the preceding bytes
 */
export function crc32c(bytes: Uint8Array, start: number, end: number, initial = 0): number {
  const t = tables;
  let crc = ~initial;
  let at = start;
  for (; at + 8 <= end; at += 8) {
    const low =
      crc ^ (bytes[at]! | (bytes[at + 1]! << 8) | (bytes[at + 2]! << 16) | (bytes[at + 3]! << 24));
    crc =
      t[1792 + (low & 0xff)]! ^
      t[1536 + ((low >>> 8) & 0xff)]! ^
      t[1280 + ((low >>> 16) & 0xff)]! ^
      t[1024 + (low >>> 24)]! ^
      t[768 + bytes[at + 4]!]! ^
      t[512 + bytes[at + 5]!]! ^
      t[256 + bytes[at + 6]!]! ^
      t[bytes[at + 7]!]!;
  }
  for (; at < end; at++) crc = (crc >>> 8) ^ t[(crc ^ bytes[at]!) & 0xff]!;
  return ~crc >>> 0;
}

/**
 * Masks a checksum as brpc stores it (rotated, plus a constant), so that checksums of data with
 * checksums stay strong.
 */
export function maskCrc(crc: number): number {
  return (((crc >>> 15) | (crc << 17)) + 0xa282_ead8) >>> 0;
}
