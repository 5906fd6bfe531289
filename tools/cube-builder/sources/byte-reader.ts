/**
 * Reads a stream through a sliding window and tracks the position. Parsers read the window
 * synchronously and wait for more bytes only if a record is incomplete.
 */
import { CubeError } from '../../../lib/core/errors.ts';

/** Initial size; the window grows to hold unread bytes plus the next chunk. */
const WINDOW_BYTES = 4 << 10;

export class ByteReader {
  /** Name of the input in errors. */
  readonly path: string;
  /** The window: unread bytes are start … end - 1. */
  bytes: Buffer = Buffer.allocUnsafe(WINDOW_BYTES);
  view: DataView = createView(this.bytes);
  start = 0;
  end = 0;
  readonly #chunks: AsyncIterator<Uint8Array>;
  #base = 0;
  #ended = false;

  constructor(path: string, chunks: AsyncIterable<Uint8Array>) {
    this.path = path;
    this.#chunks = chunks[Symbol.asyncIterator]();
  }

  /** Position of `start` in the (decompressed) input. */
  get offset(): number {
    return this.#base + this.start;
  }

  get available(): number {
    return this.end - this.start;
  }

  /** Whether the window reaches the end of the input. */
  get hasEnded(): boolean {
    return this.#ended;
  }

  /** Waits for `count` bytes in the window. @returns false if the input ends before */
  async ensure(count: number): Promise<boolean> {
    while (this.available < count && !this.#ended) {
      const next = await this.#chunks.next();
      if (next.done === true) this.#ended = true;
      else this.#append(next.value);
    }
    return this.available >= count;
  }

  /** Fills `target`. @throws CubeError CORRUPT if the input ends too early */
  async readInto(target: Uint8Array): Promise<void> {
    let done = 0;
    while (done < target.length) {
      if (this.available === 0 && !(await this.ensure(1))) {
        this.fail(`ends too early: ${target.length - done} more bytes were expected`);
      }
      const count = Math.min(target.length - done, this.available);
      target.set(this.bytes.subarray(this.start, this.start + count), done);
      this.start += count;
      done += count;
    }
  }

  /** @throws CubeError CORRUPT if unread bytes remain */
  async expectEnd(): Promise<void> {
    if (await this.ensure(1)) this.fail('has bytes after its end');
  }

  /** @throws CubeError CORRUPT with the input and the position */
  fail(what: string, offset: number = this.offset): never {
    throw new CubeError('CORRUPT', `${this.path}: byte ${offset}: ${what}`);
  }

  async close(): Promise<void> {
    await this.#chunks.return?.();
  }

  #append(chunk: Uint8Array): void {
    const unread = this.available;
    const needed = unread + chunk.length;
    const { bytes } = this;
    if (this.end + chunk.length > bytes.length) {
      if (needed > bytes.length) {
        this.bytes = Buffer.allocUnsafe(Math.max(2 * bytes.length, needed));
        this.view = createView(this.bytes);
      }
      bytes.copy(this.bytes, 0, this.start, this.end);
      this.#base += this.start;
      this.start = 0;
      this.end = unread;
    }
    this.bytes.set(chunk, this.end);
    this.end += chunk.length;
  }
}

function createView({ buffer, byteOffset, length }: Buffer): DataView {
  return new DataView(buffer, byteOffset, length);
}
