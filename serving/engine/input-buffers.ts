/**
 * Memory for the inputs of batches, used again: a new buffer is filled with zeros by the runtime
 * and later freed, which costs more than the copy of the rows. Workers return the buffers of a
 * batch with its result.
 */

/** Smaller buffers cost less than keeping them. */
const BYTES_MIN = 1 << 12;
/** Kept at most, over all sizes: inputs of a few batches. */
const BYTES_KEPT_MAX = 64 << 20;
const KEPT_PER_SIZE_MAX = 8;

export class InputBuffers {
  /** Free buffers by their size, a power of two. */
  readonly #free = new Map<number, ArrayBuffer[]>();
  #keptBytes = 0;

  /** @returns memory at the beginning of a buffer; its content is arbitrary */
  allocate(byteLength: number): Uint8Array {
    if (byteLength < BYTES_MIN || byteLength > BYTES_KEPT_MAX) return new Uint8Array(byteLength);
    const capacity = 2 ** Math.ceil(Math.log2(byteLength));
    const free = this.#free.get(capacity)?.pop();
    if (free === undefined) return new Uint8Array(new ArrayBuffer(capacity), 0, byteLength);
    this.#keptBytes -= capacity;
    return new Uint8Array(free, 0, byteLength);
  }

  /** Takes buffers that nothing uses any more. */
  release(buffers: readonly ArrayBuffer[]): void {
    for (const buffer of buffers) {
      const { byteLength } = buffer;
      const isPooled = byteLength >= BYTES_MIN && Number.isInteger(Math.log2(byteLength));
      if (!isPooled || this.#keptBytes + byteLength > BYTES_KEPT_MAX) continue;
      const free = this.#free.get(byteLength) ?? [];
      if (free.length >= KEPT_PER_SIZE_MAX) continue;
      free.push(buffer);
      this.#free.set(byteLength, free);
      this.#keptBytes += byteLength;
    }
  }
}
