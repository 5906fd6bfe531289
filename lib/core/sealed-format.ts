/**
 * The layout of a sealed (encrypted) file: a header, then blocks of AES-256-GCM.
 * docs/formats/sealed.md defines the bytes. Pure: the cryptography is in lib/platform.
 */
import { CubeError } from './errors.ts';
import { xxh64 } from './hash.ts';

/** "HCSEAL\r\n": a transfer in text mode damages it. */
const MAGIC = [0x48, 0x43, 0x53, 0x45, 0x41, 0x4c, 0x0d, 0x0a];
const FORMAT_VERSION = 1;
const CHECKSUM_AT = 16;
const CONTENT_ID_AT = 24;
const KEY_ID_AT = 40;
const CLEAR_BYTES_AT = 48;
const BLOCK_BYTES_AT = 56;
const WRAPPED_KEY_AT = 64;

export const SEALED_HEADER_BYTES = 128;
/** Bytes of the clear file in one block; the last block may be shorter. */
export const SEALED_BLOCK_BYTES: number = 1 << 20;
/** The authentication tag after each block. */
export const SEALED_TAG_BYTES = 16;
const WRAPPED_KEY_BYTES = 40;

export interface SealedHeader {
  /** Identity of the clear content, 32 hex digits. */
  readonly contentId: string;
  /** The key-encryption key that wrapped the data key, 16 hex digits. */
  readonly keyId: string;
  /** Length of the clear file. */
  readonly clearBytes: number;
  /** The data key, wrapped by AES key wrap (RFC 3394). */
  readonly wrappedKey: Uint8Array;
}

/** @param start the first bytes of a file */
export function isSealed(start: Uint8Array): boolean {
  return MAGIC.every((byte, i) => start[i] === byte);
}

/** An empty file has one empty block, so that its end is authenticated too. */
export function countSealedBlocks(clearBytes: number): number {
  return Math.max(1, Math.ceil(clearBytes / SEALED_BLOCK_BYTES));
}

/** Length of the sealed file. */
export function computeSealedBytes(clearBytes: number): number {
  return SEALED_HEADER_BYTES + clearBytes + SEALED_TAG_BYTES * countSealedBlocks(clearBytes);
}

/** Where a block starts in the sealed file. */
export function getSealedBlockOffset(block: number): number {
  return SEALED_HEADER_BYTES + block * (SEALED_BLOCK_BYTES + SEALED_TAG_BYTES);
}

/** Clear bytes of a block. */
export function getClearBlockBytes(clearBytes: number, block: number): number {
  return Math.min(SEALED_BLOCK_BYTES, clearBytes - block * SEALED_BLOCK_BYTES);
}

/** The associated data of a block: content identity, position, and whether it is the last. */
export function encodeBlockContext(contentId: string, block: number, isLast: boolean): Uint8Array {
  const context = new Uint8Array(25);
  context.set(fromHex(contentId));
  const view = new DataView(context.buffer);
  view.setBigUint64(16, BigInt(block), true);
  context[24] = isLast ? 1 : 0;
  return context;
}

export function encodeSealedHeader(header: SealedHeader): Uint8Array {
  const page = new Uint8Array(SEALED_HEADER_BYTES);
  const view = new DataView(page.buffer);
  page.set(MAGIC);
  view.setUint32(8, FORMAT_VERSION, true);
  view.setUint32(12, SEALED_HEADER_BYTES, true);
  page.set(fromHex(header.contentId), CONTENT_ID_AT);
  page.set(fromHex(header.keyId), KEY_ID_AT);
  view.setBigUint64(CLEAR_BYTES_AT, BigInt(header.clearBytes), true);
  view.setUint32(BLOCK_BYTES_AT, SEALED_BLOCK_BYTES, true);
  page.set(header.wrappedKey, WRAPPED_KEY_AT);
  view.setBigUint64(CHECKSUM_AT, xxh64(page), true);
  return page;
}

/**
 * @param path for errors
 * @param fileBytes length of the whole sealed file
 * @throws CubeError CORRUPT for a damaged or truncated file; UNSUPPORTED for another version
 */
export function decodeSealedHeader(
  page: Uint8Array,
  path: string,
  fileBytes: number,
): SealedHeader {
  if (page.length < SEALED_HEADER_BYTES || !isSealed(page)) {
    throw new CubeError('CORRUPT', `${path}: is not a sealed file, or its header is damaged`);
  }
  // Not slice(): the page may be a Buffer, whose slice shares its memory.
  const copy = Uint8Array.from(page.subarray(0, SEALED_HEADER_BYTES));
  const view = new DataView(copy.buffer);
  const version = view.getUint32(8, true);
  if (version !== FORMAT_VERSION) {
    throw new CubeError(
      'UNSUPPORTED',
      `${path}: sealed format version ${version}; this release reads version ${FORMAT_VERSION}`,
    );
  }
  const checksum = view.getBigUint64(CHECKSUM_AT, true);
  view.setBigUint64(CHECKSUM_AT, 0n, true);
  if (xxh64(copy) !== checksum) {
    throw new CubeError('CORRUPT', `${path}: the sealed header is damaged; fetch it again`);
  }
  const known: SealedHeader = {
    contentId: toHex(copy.subarray(CONTENT_ID_AT, CONTENT_ID_AT + 16)),
    keyId: toHex(copy.subarray(KEY_ID_AT, KEY_ID_AT + 8)),
    clearBytes: Number(view.getBigUint64(CLEAR_BYTES_AT, true)),
    wrappedKey: copy.slice(WRAPPED_KEY_AT, WRAPPED_KEY_AT + WRAPPED_KEY_BYTES),
  };
  requireCanonical(known, copy, path);
  if (fileBytes !== computeSealedBytes(known.clearBytes)) {
    throw new CubeError(
      'CORRUPT',
      `${path}: ${fileBytes} bytes, its sealed header says ` +
        `${computeSealedBytes(known.clearBytes)}; fetch it again`,
    );
  }
  return known;
}

/** Refuses other block sizes and bytes that this version does not define. */
function requireCanonical(header: SealedHeader, copy: Uint8Array, path: string): void {
  const isSafe = Number.isSafeInteger(computeSealedBytes(header.clearBytes));
  const expected = isSafe ? encodeSealedHeader(header) : new Uint8Array(0);
  const equal = copy.every((byte, i) => {
    const isChecksum = i >= CHECKSUM_AT && i < CHECKSUM_AT + 8;
    return isChecksum || expected[i] === byte;
  });
  if (equal) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${path}: the sealed header has fields that this release does not know`,
  );
}

export function toHex(bytes: Uint8Array): string {
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

function fromHex(text: string): Uint8Array {
  return Uint8Array.from(text.match(/../g) ?? [], (digits) => Number.parseInt(digits, 16));
}
