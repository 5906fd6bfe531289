/**
 * A pool of memory for request bodies. V8 counts fresh memory as pressure on its heap: at a hundred
 * large bodies a second it collected the whole heap once a second, on threads that compete with the
 * model for the cores.
 */

/** A body of 1,000 rows of 40 features. Longer ones get memory of their own. */
export const POOLED_BODY_BYTES: number = 256 << 10;
const POOLED_BODIES_MAX = 32;

export class BodyPool {
  readonly #free: ArrayBufferLike[] = [];

  /** @returns uninitialised memory of `byteCount` bytes, at most POOLED_BODY_BYTES */
  acquire(byteCount: number): Buffer {
    const memory = this.#free.pop() ?? Buffer.allocUnsafeSlow(POOLED_BODY_BYTES).buffer;
    return Buffer.from(memory, 0, byteCount);
  }

  /** Takes memory of `acquire` back, which the next caller overwrites. Call at most once. */
  release({ buffer }: Buffer): void {
    if (this.#free.length < POOLED_BODIES_MAX) this.#free.push(buffer);
  }
}
