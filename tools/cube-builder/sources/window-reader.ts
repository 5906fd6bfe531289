/** Random access to a file through a window in memory, which is larger for forward reads. */
import type { RandomAccessReader } from '../../../lib/platform/files.ts';

const FORWARD_BYTES = 1 << 20;
const JUMP_BYTES = 16 << 10;

export class WindowReader {
  /** The bytes in memory. */
  view: DataView = new DataView(new ArrayBuffer(0));
  /** Offset in `view` of the bytes loaded last. */
  at = 0;
  readonly #reader: RandomAccessReader;
  readonly #fileBytes: number;
  #start = 0;

  /** The reader is closed together with this object. */
  constructor(reader: RandomAccessReader, fileBytes: number) {
    this.#reader = reader;
    this.#fileBytes = fileBytes;
  }

  /** Loads `length` bytes from `offset` into the window. They must be inside the file. */
  load(offset: number, length: number): void {
    const at = offset - this.#start;
    if (at < 0 || at + length > this.view.byteLength) this.#read(offset, length);
    this.at = offset - this.#start;
  }

  close(): void {
    this.#reader.close();
  }

  #read(offset: number, length: number): void {
    const end = this.#start + this.view.byteLength;
    const isForward = offset >= this.#start && offset <= end;
    const windowBytes = Math.max(length, isForward ? FORWARD_BYTES : JUMP_BYTES);
    const bytes = Buffer.allocUnsafe(Math.min(windowBytes, this.#fileBytes - offset));
    this.#reader.readInto(bytes, offset);
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.#start = offset;
  }
}
