/**
 * A pool of WebAssembly memories, which are reused and dropped only when necessary: a dropped
 * shared memory stays in the process's RSS until a forced collection, and reading into touched
 * pages is ten times faster. Every memory may grow to 4 GiB (the address space is reserved anyway),
 * so that any free memory can serve any request.
 *
 * Invariant: used + pooled bytes never exceed the budget.
 */
import { CubeError } from '../core/errors.ts';
import type { Kernels } from '../core/kernels/contract.ts';
import {
  createKernels,
  createMemory,
  type KernelKind,
  MEMORY_PAGES_MAX,
  PAGE_BYTES,
} from '../core/kernels/kernels.ts';
import { alignUp } from '../core/layer-format.ts';

/** A free memory with more unused space than this is left for a larger layer. */
const WASTE_RATIO = 0.25;
const WASTE_BYTES: number = 1 << 20;

/** A memory with views of all of it, which are recreated when it grows. */
export class PooledMemory {
  readonly memory: WebAssembly.Memory;
  readonly kind: KernelKind;
  kernels: Kernels;
  bytes: Uint8Array;

  constructor(memory: WebAssembly.Memory, kind: KernelKind) {
    this.memory = memory;
    this.kind = kind;
    this.kernels = createKernels(memory, kind);
    this.bytes = new Uint8Array(memory.buffer);
  }

  get length(): number {
    return this.bytes.length;
  }

  growTo(bytes: number): void {
    this.memory.grow((bytes - this.length) / PAGE_BYTES);
    this.bytes = new Uint8Array(this.memory.buffer);
    if (this.kind === 'portable') this.kernels = createKernels(this.memory, this.kind);
  }
}

export class MemoryPool {
  readonly budgetBytes: number;
  readonly #kind: KernelKind;
  /** Sorted by length. */
  readonly #free: PooledMemory[] = [];
  #usedBytes = 0;
  #pooledBytes = 0;

  constructor(budgetBytes: number, kind: KernelKind) {
    this.budgetBytes = budgetBytes;
    this.#kind = kind;
  }

  /** Minimum budget needed for memories of these sizes. */
  static bytesFor(sizes: readonly number[]): number {
    return sizes.reduce((sum, bytes) => sum + alignUp(bytes, PAGE_BYTES), 0);
  }

  get usedBytes(): number {
    return this.#usedBytes;
  }

  get pooledBytes(): number {
    return this.#pooledBytes;
  }

  /**
   * Acquires one memory for each size, or none at all.
   * @param what purpose, for errors
   * @throws CubeError TOO_LARGE when it can never fit, OVERLOADED when it does not fit now
   */
  acquireAll(sizes: readonly number[], what: string): PooledMemory[] {
    const needs = sizes.map((bytes) => alignUp(bytes, PAGE_BYTES));
    this.#requireRoom(
      needs.reduce((sum, bytes) => sum + bytes, 0),
      what,
    );
    const acquired: PooledMemory[] = new Array(needs.length);
    const largestFirst = needs.map((_, i) => i).sort((a, b) => needs[b]! - needs[a]!);
    let rest = needs.reduce((sum, bytes) => sum + bytes, 0);
    try {
      for (const i of largestFirst) {
        rest -= needs[i]!;
        acquired[i] = this.#acquire(needs[i]!, rest, what);
      }
    } catch (error) {
      for (const memory of acquired) if (memory !== undefined) this.release(memory);
      throw error;
    }
    return acquired;
  }

  release(memory: PooledMemory): void {
    this.#usedBytes -= memory.length;
    this.#addFree(memory);
  }

  #requireRoom(needed: number, what: string): void {
    const { budgetBytes } = this;
    if (needed <= this.#unusedBytes) return;
    const alone = needed > budgetBytes;
    throw new CubeError(
      alone ? 'TOO_LARGE' : 'OVERLOADED',
      `${what} needs ${needed} bytes of memory; ` +
        `${this.#usedBytes} of the budget of ${budgetBytes} are used. ` +
        (alone
          ? 'Raise the memory budget or use more shards'
          : 'Unload a version first, or raise the memory budget'),
    );
  }

  /**
   * @param rest bytes still needed for the remaining sizes: a larger memory must leave room for
   *   them
   */
  #acquire(needed: number, rest: number, what: string): PooledMemory {
    const longest = this.#unusedBytes - rest;
    const memory =
      this.#takeFitting(needed, Math.min(longest, needed * (1 + WASTE_RATIO) + WASTE_BYTES)) ??
      this.#growFree(needed, what) ??
      // No room for another memory: a wasteful fit is better than dropping one.
      (this.#hasRoom(needed) ? undefined : this.#takeFitting(needed, longest)) ??
      this.#allocate(needed, what);
    this.#usedBytes += memory.length;
    return memory;
  }

  /** The smallest free memory of at least `needed` and at most `longest` bytes. */
  #takeFitting(needed: number, longest: number): PooledMemory | undefined {
    const at = this.#free.findIndex((memory) => memory.length >= needed);
    const found = this.#free[at];
    return found !== undefined && found.length <= longest ? this.#takeFree(found) : undefined;
  }

  /** Grows the largest free memory below `needed`, if the budget allows. */
  #growFree(needed: number, what: string): PooledMemory | undefined {
    const at = this.#free.findLastIndex((memory) => memory.length < needed);
    const found = this.#free[at];
    if (found === undefined) return undefined;
    if (!this.#hasRoom(needed - found.length)) return undefined;
    if (needed / PAGE_BYTES > MEMORY_PAGES_MAX) return undefined;
    this.#takeFree(found);
    try {
      guardAllocation(what, needed, () => found.growTo(needed));
    } catch (error) {
      this.#addFree(found);
      throw error;
    }
    return found;
  }

  #allocate(needed: number, what: string): PooledMemory {
    // The free memories have unsuitable sizes: drop them, smallest first.
    while (!this.#hasRoom(needed)) {
      const [smallest] = this.#free;
      if (smallest === undefined) break;
      this.#takeFree(smallest);
    }
    if (!this.#hasRoom(needed)) this.#requireRoom(needed, what);
    return guardAllocation(what, needed, () => {
      return new PooledMemory(createMemory(needed), this.#kind);
    });
  }

  get #unusedBytes(): number {
    return this.budgetBytes - this.#usedBytes;
  }

  #hasRoom(bytes: number): boolean {
    return this.#usedBytes + this.#pooledBytes + bytes <= this.budgetBytes;
  }

  #takeFree(memory: PooledMemory): PooledMemory {
    this.#free.splice(this.#free.indexOf(memory), 1);
    this.#pooledBytes -= memory.length;
    return memory;
  }

  #addFree(memory: PooledMemory): void {
    this.#pooledBytes += memory.length;
    const at = this.#free.findIndex((other) => other.length >= memory.length);
    this.#free.splice(at < 0 ? this.#free.length : at, 0, memory);
  }
}

/** The operating system may refuse an allocation within the budget. */
function guardAllocation<T>(what: string, bytes: number, allocate: () => T): T {
  try {
    return allocate();
  } catch (error) {
    throw new CubeError(
      'OVERLOADED',
      `${what}: the operating system refused a memory of ${bytes} bytes; ` +
        'lower the memory budget or free memory',
      { cause: error },
    );
  }
}
