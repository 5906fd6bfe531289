/**
 * What all reads of rows on disk share in one thread: how many may be under way, the memories in which blocks are
 * verified, and what was found damaged.
 */
import type { CubeError } from '../core/errors.ts';
import { BlockHasher } from './block-hasher.ts';

/** Reads under way at once: enough to keep a disk's queue full. */
const READS_MAX = 128;
/** Blocks being verified at once: each has a memory of 1 MiB, which is kept. */
const HASHERS_MAX = 4;

export class DiskIo {
  /** Blocks whose bytes did not match their checksum. */
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

  /** Takes a place for one read. @returns false when all are taken: `whenFree` is then called once */
  tryBegin(whenFree: () => void): boolean {
    if (this.#reads >= READS_MAX) {
      this.#waiting.push(whenFree);
      return false;
    }
    this.#reads++;
    return true;
  }

  end(): void {
    this.#reads--;
    // Who waited may want no place any more.
    while (this.#reads < READS_MAX && this.#waiting.length > 0) this.#waiting.shift()!();
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

  noteDamage(error: CubeError): void {
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
