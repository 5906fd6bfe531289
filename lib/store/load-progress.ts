/** The bytes that a load has read, written by the load worker and read by any thread. */

const TOTAL = 0;
const LOADED = 1;

export class LoadProgress {
  /** Shared between threads. */
  readonly words: Float64Array;

  /** @param words of the progress in another thread */
  constructor(words: Float64Array = new Float64Array(new SharedArrayBuffer(16))) {
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
    return Math.min(this.words[LOADED]!, this.totalBytes);
  }

  add(bytes: number): void {
    this.words[LOADED]! += bytes;
  }
}
