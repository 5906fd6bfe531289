/**
 * Seals and opens files with AES-256-GCM, one block of 1 MiB at a time. Clear bytes exist only in
 * memory. docs/formats/sealed.md defines the bytes; docs/adr/0046 the keys.
 */
import {
  createCipheriv,
  createDecipheriv,
  createHash,
  createHmac,
  type DecipherGCM,
} from 'node:crypto';
import { closeSync, readSync } from 'node:fs';
import { CubeError } from '../core/errors.ts';
import {
  computeSealedBytes,
  countSealedBlocks,
  decodeSealedHeader,
  encodeBlockContext,
  encodeSealedHeader,
  getClearBlockBytes,
  getSealedBlockOffset,
  isSealed,
  SEALED_BLOCK_BYTES,
  SEALED_HEADER_BYTES,
  SEALED_TAG_BYTES,
  type SealedHeader,
} from '../core/sealed-format.ts';
import type { EncryptionKey, KeyRing } from './encryption-keys.ts';
import { openRegularFile, RandomAccessReader } from './files.ts';

const CIPHER = 'aes-256-gcm';
/** Read and opened at a time: each piece is used while it lies in the processor's cache. */
const OPENED_BYTES = 128 << 10;

/** A file read at positions; the caller closes it. */
export interface ByteReader {
  readonly path: string;
  readonly bytes: number;
  /** Fills `target` from `position`. @throws CubeError CORRUPT when the file is too short */
  readInto(target: Uint8Array, position: number): void;
  close(): void;
}

/** Bytes of a stored block from a position in it; they may change at the next call. */
type ReadStored = (at: number, length: number) => Uint8Array;

/** Whether the tag of a block matches what was read. */
function isFinal(decipher: DecipherGCM): boolean {
  try {
    decipher.final();
    return true;
  } catch {
    return false;
  }
}

/** Seals and opens the blocks of one file. */
class BlockCipher {
  readonly #dataKey: Uint8Array;
  readonly #header: SealedHeader;
  readonly #last: number;
  readonly #nonce = new Uint8Array(12);

  constructor(header: SealedHeader, dataKey: Uint8Array) {
    this.#header = header;
    this.#dataKey = dataKey;
    this.#last = countSealedBlocks(header.clearBytes) - 1;
    this.#nonce.set(
      createHmac('sha256', dataKey).update('hypercube nonce 1').digest().subarray(0, 8),
    );
  }

  /** @returns ciphertext and tag */
  seal(block: number, clear: Uint8Array): Uint8Array[] {
    const cipher = createCipheriv(CIPHER, this.#dataKey, this.#getNonce(block));
    cipher.setAAD(this.#getContext(block));
    const text = cipher.update(clear);
    const rest = cipher.final();
    return [text, rest, cipher.getAuthTag()];
  }

  /**
   * @param read the stored block in pieces
   * @param target receives the clear bytes; zeros when this fails
   * @throws CubeError CORRUPT for other bytes than were sealed at this position
   */
  open(block: number, read: ReadStored, path: string, target: Uint8Array): void {
    const decipher = createDecipheriv(CIPHER, this.#dataKey, this.#getNonce(block), {
      authTagLength: SEALED_TAG_BYTES,
    });
    decipher.setAAD(this.#getContext(block));
    let isAuthentic = false;
    try {
      for (let at = 0; at < target.length; at += OPENED_BYTES) {
        const piece = decipher.update(read(at, Math.min(OPENED_BYTES, target.length - at)));
        target.set(piece, at);
        piece.fill(0);
      }
      decipher.setAuthTag(read(target.length, SEALED_TAG_BYTES));
      isAuthentic = isFinal(decipher);
    } finally {
      if (!isAuthentic) target.fill(0);
    }
    if (isAuthentic) return;
    const offset = getSealedBlockOffset(block);
    throw new CubeError(
      'CORRUPT',
      `${path}: the sealed block at byte ${offset} is damaged or was moved; fetch it again`,
    );
  }

  #getNonce(block: number): Uint8Array {
    new DataView(this.#nonce.buffer).setUint32(8, block, true);
    return this.#nonce;
  }

  #getContext(block: number): Uint8Array {
    return encodeBlockContext(this.#header.contentId, block, block === this.#last);
  }

  /** The cipher cannot be used afterwards. */
  clear(): void {
    this.#dataKey.fill(0);
    this.#nonce.fill(0);
  }
}

/** What identifies a file to seal. */
export interface ClearContent {
  /** Identity of the content, 32 hex digits. */
  readonly contentId: string;
  /** SHA-256 of the clear file, hex. */
  readonly sha256: string;
  readonly bytes: number;
}

/**
 * Seals a file.
 * @param pieces the clear file in order, in pieces of any size
 * @returns the sealed file in pieces; equal content and key give equal bytes
 */
export function* sealPieces(
  content: ClearContent,
  pieces: Iterable<Uint8Array>,
  key: EncryptionKey,
): Generator<Uint8Array> {
  const dataKey = key.deriveDataKey(content.sha256);
  const header: SealedHeader = {
    contentId: content.contentId,
    keyId: key.keyId,
    clearBytes: content.bytes,
    wrappedKey: key.wrap(dataKey),
  };
  const cipher = new BlockCipher(header, dataKey);
  const buffer = new Uint8Array(Math.min(SEALED_BLOCK_BYTES, content.bytes));
  let block = 0;
  let used = 0;
  try {
    yield encodeSealedHeader(header);
    for (const piece of pieces) {
      for (let at = 0; at < piece.length; ) {
        const length = Math.min(piece.length - at, buffer.length - used);
        buffer.set(piece.subarray(at, at + length), used);
        used += length;
        at += length;
        if (used < SEALED_BLOCK_BYTES) continue;
        yield* cipher.seal(block++, buffer);
        used = 0;
      }
    }
    if (used > 0 || block === 0) yield* cipher.seal(block, buffer.subarray(0, used));
  } finally {
    buffer.fill(0);
    cipher.clear();
  }
}

export function sealBytes(
  clear: Uint8Array,
  content: Omit<ClearContent, 'bytes'>,
  key: EncryptionKey,
): Uint8Array {
  const sealed = new Uint8Array(computeSealedBytes(clear.length));
  let at = 0;
  for (const piece of sealPieces({ ...content, bytes: clear.length }, [clear], key)) {
    sealed.set(piece, at);
    at += piece.length;
  }
  return sealed;
}

/** Opens a sealed file that is in memory. @throws CubeError DENIED without its key; CORRUPT */
export function openSealedBytes(sealed: Uint8Array, path: string, keys: KeyRing): Uint8Array {
  const header = decodeSealedHeader(sealed, path, sealed.length);
  const cipher = new BlockCipher(header, keys.openDataKey(header, path));
  const clear = new Uint8Array(header.clearBytes);
  try {
    for (let block = 0; block < countSealedBlocks(header.clearBytes); block++) {
      const start = getSealedBlockOffset(block);
      const bytes = getClearBlockBytes(header.clearBytes, block);
      const at = block * SEALED_BLOCK_BYTES;
      const read: ReadStored = (from, length) => {
        return sealed.subarray(start + from, start + from + length);
      };
      cipher.open(block, read, path, clear.subarray(at, at + bytes));
    }
    return clear;
  } finally {
    cipher.clear();
  }
}

/** The header of a sealed file; undefined for a file that is not sealed. @throws CubeError */
export function readSealedHeader(path: string): SealedHeader | undefined {
  const reader = new RandomAccessReader(path);
  try {
    return readSealedStart(reader);
  } finally {
    reader.close();
  }
}

function readSealedStart(reader: ByteReader): SealedHeader | undefined {
  const page = new Uint8Array(Math.min(SEALED_HEADER_BYTES, reader.bytes));
  reader.readInto(page, 0);
  return isSealed(page) ? decodeSealedHeader(page, reader.path, reader.bytes) : undefined;
}

/** SHA-256 of a file as it is stored, as hex. */
export function hashFile(path: string): string {
  const reader = new RandomAccessReader(path);
  try {
    const sha = createHash('sha256');
    const buffer = new Uint8Array(Math.min(SEALED_BLOCK_BYTES, Math.max(1, reader.bytes)));
    for (let at = 0; at < reader.bytes; at += buffer.length) {
      const piece = buffer.subarray(0, Math.min(buffer.length, reader.bytes - at));
      reader.readInto(piece, at);
      sha.update(piece);
    }
    return sha.digest('hex');
  } finally {
    reader.close();
  }
}

/** Whether a file exists and starts as a sealed file does. */
export function isSealedFile(path: string): boolean {
  const start = new Uint8Array(8);
  let file: number;
  try {
    file = openRegularFile(path, 'read');
  } catch (error) {
    if (CubeError.from(error).code === 'NOT_FOUND') return false;
    throw error;
  }
  try {
    readSync(file, start, 0, start.length, 0);
    return isSealed(start);
  } finally {
    closeSync(file);
  }
}

/**
 * Opens a file that may be sealed.
 * @param dataKey resolves the key of a sealed file; the reader overwrites it with zeros
 * @param descriptor of the file, if it is open
 * @throws CubeError DENIED without the key of a sealed file; CORRUPT
 */
export function openMaybeSealed(
  path: string,
  dataKey: (header: SealedHeader) => Uint8Array,
  descriptor?: number,
): ByteReader {
  const reader = new RandomAccessReader(path, descriptor);
  try {
    const header = readSealedStart(reader);
    return header === undefined ? reader : new SealedReader(reader, header, dataKey(header));
  } catch (error) {
    reader.close();
    throw error;
  }
}

/** The clear bytes of a sealed file. Each byte that it returns is authenticated. */
export class SealedReader implements ByteReader {
  readonly path: string;
  readonly bytes: number;
  readonly contentId: string;
  readonly #reader: RandomAccessReader;
  readonly #cipher: BlockCipher;
  readonly #buffer: Uint8Array;
  /** The last block that was read in parts: readers go from front to back. */
  readonly #clear: Uint8Array;
  /** Its number. */
  #block = -1;

  constructor(reader: RandomAccessReader, header: SealedHeader, dataKey: Uint8Array) {
    this.path = reader.path;
    this.bytes = header.clearBytes;
    this.contentId = header.contentId;
    this.#reader = reader;
    this.#cipher = new BlockCipher(header, dataKey);
    this.#buffer = new Uint8Array(OPENED_BYTES);
    this.#clear = new Uint8Array(Math.min(SEALED_BLOCK_BYTES, header.clearBytes));
  }

  readInto(target: Uint8Array, position: number): void {
    if (position + target.length > this.bytes) {
      throw new CubeError('CORRUPT', `${this.path}: ends at byte ${this.bytes} of its content`);
    }
    for (let done = 0; done < target.length; ) {
      const at = position + done;
      const block = Math.floor(at / SEALED_BLOCK_BYTES);
      const from = at - block * SEALED_BLOCK_BYTES;
      const bytes = getClearBlockBytes(this.bytes, block);
      const length = Math.min(bytes - from, target.length - done);
      const piece = target.subarray(done, done + length);
      if (length === bytes) this.#open(block, piece);
      else piece.set(this.#openPart(block, bytes).subarray(from, from + length));
      done += length;
    }
  }

  close(): void {
    this.#clear.fill(0);
    this.#cipher.clear();
    this.#reader.close();
  }

  #openPart(block: number, bytes: number): Uint8Array {
    const clear = this.#clear.subarray(0, bytes);
    if (block === this.#block) return clear;
    this.#block = -1;
    this.#open(block, clear);
    this.#block = block;
    return clear;
  }

  #open(block: number, target: Uint8Array): void {
    const offset = getSealedBlockOffset(block);
    const read: ReadStored = (at, length) => {
      const stored = this.#buffer.subarray(0, length);
      this.#reader.readInto(stored, offset + at);
      return stored;
    };
    this.#cipher.open(block, read, this.path, target);
  }
}
