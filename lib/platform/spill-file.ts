/**
 * Files that hold for a while what does not fit in memory: appended to, then read from front to back. They are not flushed
 * to the disk: what a killed run left of them counts only when it wrote down, afterwards, that they are whole.
 */
import { closeSync, mkdirSync, openSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { fileError } from './files.ts';

/** Appends to a file, which need not exist, in a folder that does. */
export function appendPieces(path: string, pieces: readonly Uint8Array[]): void {
  const writer = new AppendWriter(path, 0);
  try {
    for (const piece of pieces) writer.write(piece);
  } finally {
    writer.close();
  }
}

/** An open file that grows at its end; small writes gather in a buffer. */
export class AppendWriter {
  readonly path: string;
  readonly #file: number;
  readonly #buffer: Uint8Array;
  #used = 0;

  /** @param bufferBytes 0 writes everything at once */
  constructor(path: string, bufferBytes: number) {
    this.path = path;
    this.#buffer = new Uint8Array(bufferBytes);
    try {
      mkdirSync(dirname(path), { recursive: true });
      this.#file = openSync(path, 'a');
    } catch (error) {
      throw fileError(error, 'write', path);
    }
  }

  write(bytes: Uint8Array): void {
    if (bytes.length > this.#buffer.length - this.#used) this.flush();
    if (bytes.length > this.#buffer.length) {
      this.#append(bytes);
      return;
    }
    this.#buffer.set(bytes, this.#used);
    this.#used += bytes.length;
  }

  flush(): void {
    const used = this.#used;
    this.#used = 0;
    this.#append(this.#buffer.subarray(0, used));
  }

  /** What is in the buffer is lost: flush() first. */
  close(): void {
    closeSync(this.#file);
  }

  #append(bytes: Uint8Array): void {
    let done = 0;
    try {
      while (done < bytes.length) done += writeSync(this.#file, bytes, done);
    } catch (error) {
      throw fileError(error, 'write', this.path);
    }
  }
}
