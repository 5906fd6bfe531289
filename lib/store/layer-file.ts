/**
 * Layer files on disk: written whole or not at all, and read as verified batches of rows. The bytes are
 * docs/formats/layer.md's; what they mean is lib/core's.
 */
import { createHash } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import { xxh64 } from '../core/hash.ts';
import { type LayerInput, type LayerPlan, planLayer } from '../core/layer-builder.ts';
import {
  BLOCK_BYTES,
  HEADER_BYTES,
  type LayerHeader,
  type LayerLayout,
  SECTION_ALIGNMENT,
} from '../core/layer-format.ts';
import { encodeHeader, encodeUnsignedHeader } from '../core/layer-header.ts';
import { fileExists, RandomWriter } from '../platform/files.ts';
import { BlockHasher } from './block-hasher.ts';
import { LayerReader } from './layer-reader.ts';

const BATCH_ROWS = 65_536;
const BATCH_BYTES = 8 << 20;

export interface WrittenLayer {
  readonly contentId: string;
  readonly path: string;
  readonly bytes: number;
  /** Of the whole file. */
  readonly sha256: string;
  readonly rows: number;
  readonly layout: LayerLayout;
}

/** Writes sections in file order and hashes what it writes. */
class SectionWriter {
  readonly #writer: RandomWriter;
  readonly #hasher = new BlockHasher();
  readonly #sha = createHash('sha256');
  readonly #checksums: Uint32Array;
  #position = HEADER_BYTES;
  #inBlock = 0;
  #blocks = 0;

  constructor(writer: RandomWriter, blockCount: number) {
    this.#writer = writer;
    this.#checksums = new Uint32Array(2 * blockCount);
  }

  write(bytes: Uint8Array): void {
    this.#writer.writeAt(bytes, this.#position);
    this.#position += bytes.length;
    const { block } = this.#hasher;
    for (let at = 0; at < bytes.length; ) {
      const length = Math.min(bytes.length - at, BLOCK_BYTES - this.#inBlock);
      const piece = bytes.subarray(at, at + length);
      this.#sha.update(piece);
      block.set(piece, this.#inBlock);
      this.#inBlock += length;
      at += length;
      if (this.#inBlock === BLOCK_BYTES) this.#endBlock();
    }
  }

  /** Zeros up to where a section may start. */
  pad(): void {
    const rest = this.#position % SECTION_ALIGNMENT;
    if (rest !== 0) this.write(new Uint8Array(SECTION_ALIGNMENT - rest));
  }

  /** Writes the block checksums and the header. @returns the finished header */
  finish(planned: LayerHeader): LayerHeader {
    if (this.#inBlock > 0) this.#endBlock();
    const checksums = new Uint8Array(this.#checksums.buffer);
    this.#writer.writeAt(checksums, this.#position);
    this.#sha.update(checksums);
    const hashed: LayerHeader = { ...planned, checksumsChecksum: xxh64(checksums) };
    this.#sha.update(encodeUnsignedHeader(hashed));
    const header = { ...hashed, contentId: this.#sha.digest('hex').slice(0, 32) };
    this.#writer.writeAt(encodeHeader(header), 0);
    return header;
  }

  #endBlock(): void {
    this.#checksums.set(this.#hasher.hash(this.#inBlock), 2 * this.#blocks);
    this.#blocks += 1;
    this.#inBlock = 0;
  }
}

function writeSections(writer: RandomWriter, plan: LayerPlan): LayerHeader {
  const sections = new SectionWriter(writer, plan.header.blockCount);
  for (let segment = 0; segment < plan.header.segments.length; segment++) {
    sections.pad();
    sections.write(plan.segmentBytes(segment));
  }
  sections.pad();
  return sections.finish(plan.header);
}

/**
 * Builds and writes a layer. The same content gives the same file under the same name; one that is there already is
 * kept.
 * @param target the final path of a content id
 * @param segmentBytesMax smaller segments than the format allows, for tests
 * @throws CubeError INVALID_ARGUMENT naming a key that comes twice or belongs to another shard
 */
export function writeLayer(
  layer: LayerInput,
  target: (contentId: string) => string,
  segmentBytesMax?: number,
): WrittenLayer {
  const plan = planLayer(layer, segmentBytesMax);
  const writer = new RandomWriter(target(plan.header.contentId));
  try {
    const header = writeSections(writer, plan);
    const sha256 = hashFile(writer, header.fileBytes);
    const path = target(header.contentId);
    if (fileExists(path)) writer.abort();
    else writer.commit(path);
    return {
      contentId: header.contentId,
      path,
      bytes: header.fileBytes,
      sha256,
      rows: header.rowCount,
      layout: header.layout,
    };
  } catch (error) {
    writer.abort();
    throw error;
  }
}

function hashFile(
  file: { readInto(target: Uint8Array, position: number): void },
  bytes: number,
): string {
  const sha = createHash('sha256');
  const piece = new Uint8Array(BLOCK_BYTES);
  for (let position = 0; position < bytes; position += BLOCK_BYTES) {
    const part = piece.subarray(0, Math.min(BLOCK_BYTES, bytes - position));
    file.readInto(part, position);
    sha.update(part);
  }
  return sha.digest('hex');
}

export interface RowBatch {
  /** 2 · count words (low, high). */
  readonly keys: Uint32Array;
  /** count · rowBytes. */
  readonly rows: Uint8Array;
  readonly count: number;
}

/**
 * All rows of a layer in file order, in batches of at most 65,536; the arrays are the caller's. Every byte was
 * verified against its block's checksum.
 */
export function* readLayerRows(path: string): Generator<RowBatch> {
  const reader = new LayerReader(path);
  try {
    const { header } = reader;
    if (header.layout === 'indexed') {
      throw new CubeError('UNSUPPORTED', `${path}: layout indexed is not read yet`);
    }
    const perPiece = Math.max(1, Math.min(BATCH_ROWS, Math.floor(BATCH_BYTES / header.stride)));
    let rowsBefore = 0;
    for (const segment of header.segments) {
      for (const piece of reader.slots(segment, perPiece)) {
        const batch =
          header.layout === 'inline'
            ? rowsOfSlots(header, piece)
            : rowsOfDense(header, piece, rowsBefore);
        rowsBefore += batch.count;
        if (batch.count > 0) yield batch;
      }
    }
    if (rowsBefore !== header.rowCount) {
      throw new CubeError(
        'CORRUPT',
        `${path}: holds ${rowsBefore} rows, its header says ${header.rowCount}; build it again`,
      );
    }
  } finally {
    reader.close();
  }
}

function rowsOfSlots(header: LayerHeader, piece: Uint8Array): RowBatch {
  const { stride, rowBytes } = header;
  const slots = piece.length / stride;
  const words = new Uint32Array(piece.buffer, piece.byteOffset, piece.length / 4);
  const strideWords = stride / 4;
  const rowWords = rowBytes / 4;
  const emptyLow = Number(header.emptyKey & 0xffff_ffffn);
  const emptyHigh = Number(header.emptyKey >> 32n);
  const keys = new Uint32Array(2 * slots);
  const rows = new Uint32Array(slots * rowWords);
  let count = 0;
  for (let at = 0; at < words.length; at += strideWords) {
    const low = words[at]!;
    const high = words[at + 1]!;
    if (low === emptyLow && high === emptyHigh) continue;
    keys[2 * count] = low;
    keys[2 * count + 1] = high;
    for (let i = 0; i < rowWords; i++) rows[count * rowWords + i] = words[at + 2 + i]!;
    count += 1;
  }
  return {
    keys: keys.subarray(0, 2 * count),
    rows: new Uint8Array(rows.buffer, 0, count * rowBytes),
    count,
  };
}

/** Dense rows are stored without keys: they follow from the row number. */
function rowsOfDense(header: LayerHeader, piece: Uint8Array, firstRow: number): RowBatch {
  const count = piece.length / header.stride;
  const first = BigInt.asUintN(64, header.firstKey + BigInt(firstRow) * header.keyStep);
  const stepLow = Number(header.keyStep & 0xffff_ffffn);
  const stepHigh = Number(header.keyStep >> 32n);
  const keys = new Uint32Array(2 * count);
  let low = Number(first & 0xffff_ffffn);
  let high = Number(first >> 32n);
  for (let i = 0; i < count; i++) {
    keys[2 * i] = low;
    keys[2 * i + 1] = high;
    const sum = low + stepLow;
    high = (high + stepHigh + (sum > 0xffff_ffff ? 1 : 0)) >>> 0;
    low = sum >>> 0;
  }
  return { keys, rows: piece, count };
}
