/** Random reads of a file that are mostly in order: a window of it in memory, larger as long as reads go forward. */
import type { RandomReader } from '../../../lib/platform/files.ts';

const FORWARD_BYTES = 1 << 20;
const JUMP_BYTES = 16 << 10;

export class WindowReader {
  /** The window. */
  view: DataView = new DataView(new ArrayBuffer(0));
  /** Where the bytes loaded last begin in it. */
  at = 0;
  readonly #reader: RandomReader;
  readonly #fileBytes: number;
  #start = 0;

  /** Takes over the reader. */
  constructor(reader: RandomReader, fileBytes: number) {
    this.#reader = reader;
    this.#fileBytes = fileBytes;
  }

  /** Has `length` bytes from `offset` in the window; they must be inside the file. */
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
    const wanted = Math.max(length, isForward ? FORWARD_BYTES : JUMP_BYTES);
    const bytes = Buffer.allocUnsafe(Math.min(wanted, this.#fileBytes - offset));
    this.#reader.readInto(bytes, offset);
    this.view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
    this.#start = offset;
  }
}
