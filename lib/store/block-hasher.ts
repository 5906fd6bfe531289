/**
 * Computes xxh64 of file blocks. The caller fills `block`, which lies in a small WebAssembly memory
 * (a file can be read straight into it), and the kernel hashes it.
 */
import type { Kernels } from '../core/kernels/contract.ts';
import { createKernels, createMemory } from '../core/kernels/kernels.ts';
import { BLOCK_BYTES } from '../core/layer-format.ts';

const HASH_AT = 0;
const BLOCK_AT = 64;

/**
 * Unused hashers. They are reused because a dropped WebAssembly memory stays in the process's RSS.
 */
const idleHashers: BlockHasher[] = [];

export class BlockHasher {
  readonly block: Uint8Array;
  readonly #kernels: Kernels;
  readonly #hash: Uint32Array;

  static acquire(): BlockHasher {
    return idleHashers.pop() ?? new BlockHasher();
  }

  constructor() {
    const memory = createMemory(BLOCK_AT + BLOCK_BYTES);
    this.#kernels = createKernels(memory);
    this.block = new Uint8Array(memory.buffer, BLOCK_AT, BLOCK_BYTES);
    this.#hash = new Uint32Array(memory.buffer, HASH_AT, 2);
  }

  /** Returns the hasher to the pool; do not use it afterwards. */
  release(): void {
    idleHashers.push(this);
  }

  /** The hash of block[0..length) as words (low, high): a view that the next call overwrites. */
  hash(length: number): Uint32Array {
    this.#kernels.xxh64(BLOCK_AT, length, 0, 0, HASH_AT);
    return this.#hash;
  }
}
