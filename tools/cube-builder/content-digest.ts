/**
 * Digest of all rows read for a table, so that parts built from different inputs are never
 * sealed together. It does not depend on batch sizes, paths or times.
 */
import { createHash, type Hash } from 'node:crypto';
import { BlockHasher } from '../../lib/store/block-hasher.ts';
import type { InputBatch } from './table-input.ts';

const BLOCK_BYTES = 1 << 20;

function viewBytes(words: Uint32Array): Uint8Array {
  return new Uint8Array(words.buffer, words.byteOffset, words.byteLength);
}

export class ContentDigest {
  readonly #keys = new ColumnDigest();
  readonly #rows = new ColumnDigest();
  readonly #lengths = new ColumnDigest();
  readonly #deleted = new ColumnDigest();

  add({ keys, rows, values, ends, deletedKeys }: InputBatch): void {
    this.#keys.add(viewBytes(keys));
    if (rows !== undefined) this.#rows.add(viewBytes(rows));
    if (values !== undefined && ends !== undefined) {
      this.#rows.add(values);
      this.#lengths.add(viewBytes(ends.map((end, i) => end - (i === 0 ? 0 : ends[i - 1]!))));
    }
    if (deletedKeys === undefined || deletedKeys.length === 0) return;
    // A deletion applies to the rows before it, so its position is part of the content.
    this.#deleted.add(viewBytes(deletedKeys));
    this.#deleted.add(new TextEncoder().encode(` after ${this.#keys.bytes}`));
  }

  /** Returns 64 hex digits. Nothing may be added afterwards. */
  digest(): string {
    const all = createHash('sha256');
    for (const column of [this.#keys, this.#rows, this.#lengths, this.#deleted]) {
      all.update(column.digest());
    }
    return all.digest('hex');
  }
}

/** SHA-256 over the xxh64 of each MiB. */
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
    this.#sha.update(viewBytes(hasher.hash(this.#used)));
    this.#used = 0;
  }
}
