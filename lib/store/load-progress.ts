/** The bytes that a load has read, written by the load workers and read by any thread. */

const TOTAL = 0;
const LOADED = 1;

/** Threads that load one layer together. */
export const LOAD_THREADS_MAX = 4;
const WORDS = LOADED + LOAD_THREADS_MAX;

export class LoadProgress {
  /** Shared between threads. */
  readonly words: Float64Array;

  /** @param words of the progress in another thread */
  constructor(words: Float64Array = new Float64Array(new SharedArrayBuffer(8 * WORDS))) {
    this.words = words;
  }

  /** Bytes to read; 0 until the files are known, and when nothing is to be read. */
  get totalBytes(): number {
    return this.words[TOTAL]!;
  }

  set totalBytes(bytes: number) {
    this.words[TOTAL] = bytes;
  }

  get loadedBytes(): number {
    const loaded = this.words.subarray(LOADED).reduce((sum, bytes) => sum + bytes, 0);
    return Math.min(loaded, this.totalBytes);
  }

  /** @param thread that adds them: each has a word of its own */
  add(bytes: number, thread = 0): void {
    this.words[LOADED + thread]! += bytes;
  }
}
