/**
 * Checksums of frames: brpc's crc32c, and xxh64, which costs a fifth of it and which only our
 * servers and clients know. Each covers bytes of one frame, and its value lies in the frame's meta.
 */
import type { XXHashAPI } from 'xxhash-wasm';
import { CHECKSUM_CRC32C, getChecksumBytes } from '../../proto/frame-fields.ts';
import { xxh64Words } from '../core/kernels/xxh64.ts';
import { crc32c, maskCrc } from './crc32c.ts';

/** The memory of the hash grows to the largest input, so larger ones are hashed in pieces. */
const PIECE_BYTES = 1 << 20;

/** Set soon after the first checksum: most processes compute none, and loading takes CPU time. */
let library: XXHashAPI | undefined;
let isLoading = false;
const words = new Uint32Array(2);
const value = new DataView(new ArrayBuffer(8));
const valueBytes = new Uint8Array(value.buffer);

/** Writes the checksum of `bytes[start..end)` to `bytes[at..]`, where its bytes are reserved. */
export function writeChecksum(
  bytes: Uint8Array,
  type: number,
  { at, start, end }: { at: number; start: number; end: number },
): void {
  compute(bytes, type, start, end);
  for (let i = 0; i < getChecksumBytes(type); i++) bytes[at + i] = valueBytes[i]!;
}

/** Whether `bytes[at..]` is the checksum of `bytes[start..end)`. */
export function hasChecksum(
  bytes: Uint8Array,
  type: number,
  { at, start, end }: { at: number; start: number; end: number },
): boolean {
  compute(bytes, type, start, end);
  for (let i = 0; i < getChecksumBytes(type); i++) {
    if (bytes[at + i] !== valueBytes[i]) return false;
  }
  return true;
}

/** Computes the checksum to `valueBytes`, big-endian. */
function compute(bytes: Uint8Array, type: number, start: number, end: number): void {
  if (type === CHECKSUM_CRC32C) value.setUint32(0, maskCrc(crc32c(bytes, start, end)));
  else value.setBigUint64(0, computeXxh64(bytes, start, end));
}

function computeXxh64(bytes: Uint8Array, start: number, end: number): bigint {
  if (library === undefined) return computeWithoutLibrary(bytes, start, end);
  const { h64Raw, create64 } = library;
  const { buffer, byteOffset } = bytes;
  if (end - start <= PIECE_BYTES) {
    return h64Raw(new Uint8Array(buffer, byteOffset + start, end - start));
  }
  const hasher = create64();
  for (let at = start; at < end; at += PIECE_BYTES) {
    hasher.update(new Uint8Array(buffer, byteOffset + at, Math.min(PIECE_BYTES, end - at)));
  }
  return hasher.digest();
}

/** Portable and slower. The first call loads the library. */
function computeWithoutLibrary(bytes: Uint8Array, start: number, end: number): bigint {
  if (!isLoading) {
    isLoading = true;
    void import('xxhash-wasm').then(async (xxhash) => {
      library = await xxhash.default();
    });
  }
  xxh64Words(bytes, start, end, 0, 0, words, 0);
  return (BigInt(words[1]!) << 32n) | BigInt(words[0]!);
}
