/**
 * Reads a layer file from start to end, block by block, and returns only verified bytes. For
 * filling other stores and for checks; the resident store reads through its worker.
 */
import { CubeError } from '../core/errors.ts';
import { xxh64 } from '../core/hash.ts';
import {
  BLOCK_BYTES,
  HEADER_BYTES,
  type LayerHeader,
  type LayerSegment,
} from '../core/layer-format.ts';
import { decodeHeader } from '../core/layer-header.ts';
import type { ByteReader } from '../platform/sealed-file.ts';
import { BlockHasher } from './block-hasher.ts';
import { openLayerFile } from './layer-open.ts';

/**
 * Reads and checks a header page. @throws CubeError CORRUPT when the file size differs from the
 * header
 */
export function readHeader(reader: ByteReader): LayerHeader {
  const page = new Uint8Array(Math.min(HEADER_BYTES, reader.bytes));
  reader.readInto(page, 0);
  const header = decodeHeader(page, reader.path);
  if (reader.bytes !== header.fileBytes) {
    throw new CubeError(
      'CORRUPT',
      `${reader.path}: ${reader.bytes} bytes, its header says ${header.fileBytes}; fetch it again`,
    );
  }
  return header;
}

/** The block checksums as words (low, high), verified themselves. */
export function readChecksums(reader: ByteReader, header: LayerHeader): Uint32Array {
  const bytes = new Uint8Array(8 * header.blockCount);
  reader.readInto(bytes, header.checksumsOffset);
  if (xxh64(bytes) !== header.checksumsChecksum) {
    throw new CubeError(
      'CORRUPT',
      `${reader.path}: the block checksums are damaged; fetch it again`,
    );
  }
  return new Uint32Array(bytes.buffer);
}

export function createBlockMismatchError(path: string, block: number): CubeError {
  const from = HEADER_BYTES + block * BLOCK_BYTES;
  return new CubeError(
    'CORRUPT',
    `${path}: the block of 1 MiB at byte ${from} is damaged (checksum); fetch it again`,
  );
}

/** The verified bytes of a layer file's sections, in file order. */
export class LayerReader {
  readonly header: LayerHeader;
  readonly #reader: ByteReader;
  readonly #checksums: Uint32Array;
  readonly #hasher: BlockHasher;
  #block = -1;
  #closed = false;

  constructor(path: string) {
    this.#reader = openLayerFile(path);
    try {
      this.header = readHeader(this.#reader);
      this.#checksums = readChecksums(this.#reader, this.header);
    } catch (error) {
      this.#reader.close();
      throw error;
    }
    this.#hasher = BlockHasher.acquire();
  }

  /** Fills `target` from a position between the header and the checksums. */
  read(target: Uint8Array, position: number): void {
    let done = 0;
    while (done < target.length) {
      const offset = position + done - HEADER_BYTES;
      const block = Math.floor(offset / BLOCK_BYTES);
      const from = offset - block * BLOCK_BYTES;
      const length = Math.min(target.length - done, BLOCK_BYTES - from);
      target.set(this.#verifiedBlock(block).subarray(from, from + length), done);
      done += length;
    }
  }

  /** The bytes of one segment in pieces of whole slots or rows. */
  *slots(
    segment: LayerSegment,
    slotsPerPiece: number,
    stride: number = this.header.stride,
  ): Generator<Uint8Array> {
    for (let slot = 0; slot < segment.slots; slot += slotsPerPiece) {
      const piece = new Uint8Array(Math.min(slotsPerPiece, segment.slots - slot) * stride);
      this.read(piece, segment.offset + slot * stride);
      yield piece;
    }
  }

  get path(): string {
    return this.#reader.path;
  }

  close(): void {
    if (this.#closed) return;
    this.#closed = true;
    this.#reader.close();
    this.#hasher.release();
  }

  #verifiedBlock(block: number): Uint8Array {
    const { block: buffer } = this.#hasher;
    if (block === this.#block) return buffer;
    this.#block = -1;
    const position = HEADER_BYTES + block * BLOCK_BYTES;
    const length = Math.min(BLOCK_BYTES, this.header.checksumsOffset - position);
    this.#reader.readInto(buffer.subarray(0, length), position);
    const hash = this.#hasher.hash(length);
    const checksums = this.#checksums;
    if (hash[0] !== checksums[2 * block] || hash[1] !== checksums[2 * block + 1]) {
      throw createBlockMismatchError(this.#reader.path, block);
    }
    this.#block = block;
    return buffer;
  }
}
