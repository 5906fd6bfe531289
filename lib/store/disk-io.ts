/**
 * Shared state of all row reads from disk in one thread: the limit of parallel reads, the memories
 * in which blocks are verified, and the count of damaged blocks.
 */
import type { CubeError } from '../core/errors.ts';
import { BlockHasher } from './block-hasher.ts';

/** Parallel reads: enough to keep a disk's queue full. */
const READS_MAX = 128;
/** Blocks verified in parallel; each needs a memory of 1 MiB, which is kept. */
const HASHERS_MAX = 4;

export class DiskIo {
  /** Blocks whose checksum did not match. */
  damagedBlocks = 0;
  readonly #onDamage: (error: CubeError) => void;
  readonly #waiting: (() => void)[] = [];
  readonly #freeHashers: BlockHasher[] = [];
  readonly #waitingForHasher: ((hasher: BlockHasher) => void)[] = [];
  #reads = 0;
  #hashers = 0;

  /** @param onDamage called once for each damaged block */
  constructor(onDamage: (error: CubeError) => void = () => undefined) {
    this.#onDamage = onDamage;
  }

  /**
   * Reserves one read.
   * @returns false when none is free: `whenFree` is then called once when one may be
   */
  tryStartRead(whenFree: () => void): boolean {
    if (this.#reads >= READS_MAX) {
      this.#waiting.push(whenFree);
      return false;
    }
    this.#reads++;
    return true;
  }

  endRead(): void {
    this.#reads--;
    // A waiting reader may not need the slot any more.
    while (this.#reads < READS_MAX) {
      const whenFree = this.#waiting.shift();
      if (whenFree === undefined) return;
      whenFree();
    }
  }

  async withHasher<T>(use: (hasher: BlockHasher) => Promise<T>): Promise<T> {
    const hasher = await this.#takeHasher();
    try {
      return await use(hasher);
    } finally {
      const next = this.#waitingForHasher.shift();
      if (next === undefined) this.#freeHashers.push(hasher);
      else next(hasher);
    }
  }

  reportDamage(error: CubeError): void {
    this.damagedBlocks++;
    this.#onDamage(error);
  }

  async #takeHasher(): Promise<BlockHasher> {
    const free = this.#freeHashers.pop();
    if (free !== undefined) return free;
    if (this.#hashers < HASHERS_MAX) {
      this.#hashers++;
      return new BlockHasher();
    }
    return new Promise((resolve) => this.#waitingForHasher.push(resolve));
  }
}
