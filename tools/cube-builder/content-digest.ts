/**
 * What was read for a table, as one digest: parts of one version that were built from different inputs must not be put
 * together. It does not depend on how the input came in batches, nor on where or when it was read.
 */
import { createHash, type Hash } from 'node:crypto';
import { BlockHasher } from '../../lib/store/block-hasher.ts';
import type { InputBatch } from './table-input.ts';

const BLOCK_BYTES = 1 << 20;

function bytesOf(words: Uint32Array): Uint8Array {
  return new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
}

export class ContentDigest {
  readonly #keys = new ColumnDigest();
  readonly #rows = new ColumnDigest();
  readonly #lengths = new ColumnDigest();
  readonly #deleted = new ColumnDigest();

  add({ keys, rows, values, ends, deletedKeys }: InputBatch): void {
    this.#keys.add(bytesOf(keys));
    if (rows !== undefined) this.#rows.add(bytesOf(rows));
    if (values !== undefined && ends !== undefined) {
      this.#rows.add(values);
      this.#lengths.add(bytesOf(ends.map((end, i) => end - (i === 0 ? 0 : ends[i - 1]!))));
    }
    if (deletedKeys === undefined || deletedKeys.length === 0) return;
    // Where among the rows they were deleted counts.
    this.#deleted.add(bytesOf(deletedKeys));
    this.#deleted.add(new TextEncoder().encode(` after ${this.#keys.bytes}`));
  }

  /** 64 hex digits; nothing can be added any more. */
  digest(): string {
    const all = createHash('sha256');
    for (const column of [this.#keys, this.#rows, this.#lengths, this.#deleted]) {
      all.update(column.digest());
    }
    return all.digest('hex');
  }
}

/** xxh64 of each MiB, and SHA-256 over these. */
class ColumnDigest {
  bytes = 0;
  readonly #sha: Hash = createHash('sha256');
  #hasher: BlockHasher | undefined;
  #used = 0;

  add(bytes: Uint8Array): void {
    this.#hasher ??= new BlockHasher();
    this.bytes += bytes.length;
    for (let at = 0; at < bytes.length; ) {
      const length = Math.min(bytes.length - at, BLOCK_BYTES - this.#used);
      this.#hasher.block.set(bytes.subarray(at, at + length), this.#used);
      this.#used += length;
      at += length;
      if (this.#used === BLOCK_BYTES) this.#endBlock(this.#hasher);
    }
  }

  digest(): Uint8Array {
    if (this.#hasher !== undefined && this.#used > 0) this.#endBlock(this.#hasher);
    return this.#sha.update(`${this.bytes}`).digest();
  }

  #endBlock(hasher: BlockHasher): void {
    this.#sha.update(bytesOf(hasher.hash(this.#used)));
    this.#used = 0;
  }
}
