/**
 * xxh64 of blocks of a file: a small memory of its own whose `block` is filled by the caller (a file can be read
 * straight into it) and hashed by the kernel.
 */
import type { Kernels } from '../core/kernels/contract.ts';
import { createKernels, createMemory } from '../core/kernels/kernels.ts';
import { BLOCK_BYTES } from '../core/layer-format.ts';

const HASH_AT = 0;
const BLOCK_AT = 64;

/** Not in use now: a memory that is dropped stays in RSS, so every reader takes one that another gave back. */
const idle: BlockHasher[] = [];

export class BlockHasher {
  readonly block: Uint8Array;
  readonly #kernels: Kernels;
  readonly #hash: Uint32Array;

  static borrow(): BlockHasher {
    return idle.pop() ?? new BlockHasher();
  }

  constructor() {
    const memory = createMemory(BLOCK_AT + BLOCK_BYTES);
    this.#kernels = createKernels(memory);
    this.block = new Uint8Array(memory.buffer, BLOCK_AT, BLOCK_BYTES);
    this.#hash = new Uint32Array(memory.buffer, HASH_AT, 2);
  }

  /** For the next one to borrow; whoever calls this does not use it again. */
  giveBack(): void {
    idle.push(this);
  }

  /** The hash of block[0..length) as words (low, high): a view that the next call overwrites. */
  hash(length: number): Uint32Array {
    this.#kernels.xxh64(BLOCK_AT, length, 0, 0, HASH_AT);
    return this.#hash;
  }
}
