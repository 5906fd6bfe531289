/**
 * Writes a layer file: its sections in file order, hashed while they are written, and the header at
 * the end. Equal sections give an equal file, independent of the builder.
 */
import { createHash } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import { xxh64 } from '../core/hash.ts';
import {
  BLOCK_BYTES,
  HEADER_BYTES,
  type LayerHeader,
  type LayerKind,
  type LayerLayout,
  NO_CONTENT_ID,
  SECTION_ALIGNMENT,
} from '../core/layer-format.ts';
import { encodeHeader, encodeUnsignedHeader } from '../core/layer-header.ts';
import { BlockHasher } from './block-hasher.ts';
import { createLayerWriter, type LayerWriter } from './layer-writer.ts';

export interface WrittenLayer {
  readonly contentId: string;
  readonly path: string;
  /** Length of the stored file. */
  readonly bytes: number;
  /** SHA-256 of the stored file. */
  readonly sha256: string;
  readonly rows: number;
  readonly deleted: number;
  readonly kind: LayerKind;
  readonly layout: LayerLayout;
}

/**
 * Call `pad` before each section, `write` with its bytes, and `finish` at the end; or `abort` to
 * leave nothing behind.
 */
export class SectionWriter {
  readonly #target: (contentId: string) => string;
  readonly #writer: LayerWriter;
  readonly #hasher: BlockHasher;
  readonly #sha = createHash('sha256');
  #done = false;
  #checksums = new Uint32Array(64);
  #position = HEADER_BYTES;
  #inBlock = 0;
  #blocks = 0;

  /**
   * @param target returns the final path for a content id; the file is written to a sibling path
   */
  constructor(target: (contentId: string) => string) {
    this.#target = target;
    this.#writer = createLayerWriter(target(NO_CONTENT_ID));
    this.#hasher = BlockHasher.acquire();
  }

  /** Position of the next byte. */
  get position(): number {
    return this.#position;
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

  /** Writes zeros up to the next section alignment. */
  pad(): void {
    const rest = this.#position % SECTION_ALIGNMENT;
    if (rest !== 0) this.write(new Uint8Array(SECTION_ALIGNMENT - rest));
  }

  /**
   * Writes the block checksums and the header, and renames the file into place; an existing file is
   * kept.
   * @param planned the header without its checksums and content id
   */
  finish(planned: LayerHeader): WrittenLayer {
    this.pad();
    if (this.#position !== planned.checksumsOffset) {
      const { checksumsOffset, table } = planned;
      const text = `${this.#position} bytes of sections, expected ${checksumsOffset}`;
      throw new CubeError('INTERNAL', `table ${table}: ${text}`);
    }
    if (this.#inBlock > 0) this.#endBlock();
    const checksums = new Uint8Array(this.#checksums.buffer, 0, 8 * this.#blocks);
    this.#writer.writeAt(checksums, this.#position);
    this.#sha.update(checksums);
    const hashed: LayerHeader = { ...planned, checksumsChecksum: xxh64(checksums) };
    this.#sha.update(encodeUnsignedHeader(hashed));
    const header = { ...hashed, contentId: this.#sha.digest('hex').slice(0, 32) };
    this.#writer.writeAt(encodeHeader(header), 0);
    const { contentId, fileBytes, rowCount, deletedCount, kind, layout } = header;
    const content = { contentId, sha256: this.#hashFile(fileBytes), bytes: fileBytes };
    const path = this.#target(contentId);
    const stored = this.#writer.commitLayer(path, content);
    this.#end();
    const counts = { rows: rowCount, deleted: deletedCount };
    return { contentId, path, ...stored, ...counts, kind, layout };
  }

  abort(): void {
    this.#writer.abort();
    this.#end();
  }

  #end(): void {
    if (!this.#done) this.#hasher.release();
    this.#done = true;
  }

  #endBlock(): void {
    if (2 * this.#blocks === this.#checksums.length) {
      const grown = new Uint32Array(2 * this.#checksums.length);
      grown.set(this.#checksums);
      this.#checksums = grown;
    }
    this.#checksums.set(this.#hasher.hash(this.#inBlock), 2 * this.#blocks);
    this.#blocks += 1;
    this.#inBlock = 0;
  }

  #hashFile(bytes: number): string {
    const sha = createHash('sha256');
    const piece = new Uint8Array(BLOCK_BYTES);
    for (let position = 0; position < bytes; position += BLOCK_BYTES) {
      const part = piece.subarray(0, Math.min(BLOCK_BYTES, bytes - position));
      this.#writer.readInto(part, position);
      sha.update(part);
    }
    return sha.digest('hex');
  }
}
