/**
 * Scratch memory in which the keys of a batch are put in the order of their shards, and their rows
 * back in the order of the batch:
 *
 *     | keys | shard of each key | ends of the shards | sorted keys | positions | found
 *     | sorted rows | rows |
 */
import type { Kernels } from '../../lib/core/kernels/contract.ts';
import {
  createKernels,
  createMemory,
  detectKernelKind,
  type KernelKind,
} from '../../lib/core/kernels/kernels.ts';

/** Scratch memory of so few keys stays in a core's second-level cache. */
const CHUNK_KEYS = 1024;
/** Keys of a shard in one lookup, on average, where that needs more. */
const SHARD_KEYS = 64;
/**
 * Copies to or from shared memory use words only when both addresses are equal modulo 8; other
 * copies are six times slower.
 */
const SKEW = 7;
const SKEW_BYTES = 8;

export class ShardOrder {
  /** The most keys that `sort` takes. */
  readonly chunkKeys: number;
  /** The memory with sorted keys, sorted rows and the bits of found keys. */
  readonly bytes: Uint8Array;
  /** Addresses of the sorted keys, and of a bit for each key of one shard. */
  readonly sortedAt: number;
  readonly foundAt: number;
  /** Address for the rows of the sorted keys. */
  readonly sortedRowsAt: number;
  /** Where the keys of each shard end. */
  readonly ends: Uint32Array;
  /** The position that each sorted key had. */
  readonly positions: Uint32Array;
  readonly #kernels: Kernels;
  readonly #keysAt: number;
  readonly #shardsAt: number;
  readonly #positionsAt: number;
  readonly #rowsAt: number;

  /**
   * @param dim the most elements of a row
   * @param kind for tests
   */
  constructor(shardNum: number, dim: number, kind: KernelKind = detectKernelKind()) {
    const chunkKeys = Math.max(CHUNK_KEYS, SHARD_KEYS * shardNum);
    const rowsBytes = 4 * dim * chunkKeys + SKEW_BYTES;
    let end = 0;
    const reserve = (bytes: number): number => {
      const at = end;
      end += (bytes + SKEW) & ~SKEW;
      return at;
    };
    this.chunkKeys = chunkKeys;
    this.#keysAt = reserve(8 * chunkKeys + SKEW_BYTES);
    this.#shardsAt = reserve(4 * chunkKeys);
    const endsAt = reserve(4 * shardNum);
    this.sortedAt = reserve(8 * chunkKeys);
    this.#positionsAt = reserve(4 * chunkKeys);
    this.foundAt = reserve(chunkKeys / 8);
    this.sortedRowsAt = reserve(rowsBytes);
    this.#rowsAt = reserve(rowsBytes);
    const memory = createMemory(end);
    const { buffer } = memory;
    this.bytes = new Uint8Array(buffer);
    this.ends = new Uint32Array(buffer, endsAt, shardNum);
    this.positions = new Uint32Array(buffer, this.#positionsAt, chunkKeys);
    this.#kernels = createKernels(memory, kind);
  }

  /** Sorts keys [start, start + count) of a batch, stably. */
  sort(keys: Uint32Array, start: number, count: number): void {
    const own = new Uint8Array(keys.buffer, keys.byteOffset + 8 * start, 8 * count);
    const at = this.#keysAt + (own.byteOffset & SKEW);
    this.bytes.set(own, at);
    const { length: shardNum, byteOffset: endsAt } = this.ends;
    const { sortedAt } = this;
    this.#kernels.sortByShard(
      at,
      count,
      shardNum,
      this.#shardsAt,
      endsAt,
      sortedAt,
      this.#positionsAt,
    );
  }

  /** Copies the rows of the sorted keys to rows [start, start + count) of the batch. */
  unsort(rows: Float32Array, start: number, count: number, dim: number): void {
    const rowBytes = 4 * dim;
    const at = this.#rowsAt + ((rows.byteOffset + start * rowBytes) & SKEW);
    this.#kernels.scatterRows(this.sortedRowsAt, rowBytes, this.#positionsAt, count, at);
    rows.set(new Float32Array(this.bytes.buffer, at, count * dim), start * dim);
  }
}
