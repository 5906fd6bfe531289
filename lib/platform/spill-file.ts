/**
 * Temporary files for data that does not fit in memory: appended, then read from start to end. They
 * are not flushed; after a kill they are valid only if the run recorded their completion.
 */
import { closeSync, openSync, writeSync } from 'node:fs';
import { dirname } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { getSealingKey } from './encryption-keys.ts';
import { fileError, makeFolder } from './files.ts';

/** Appends to a file in an existing folder; creates the file if needed. */
export function appendChunks(path: string, pieces: readonly Uint8Array[]): void {
  const writer = new AppendWriter(path, 0);
  try {
    for (const piece of pieces) writer.write(piece);
  } finally {
    writer.close();
  }
}

/** Temporary files are not encrypted. @throws CubeError TOO_LARGE in an encrypted build */
function refuseClearRows(): void {
  if (getSealingKey() === undefined) return;
  throw new CubeError(
    'TOO_LARGE',
    'an encrypted build writes no temporary files, and its rows do not fit in memory: raise ' +
      '--memory, or build some shards at a time (--only-shards) and publish with cube-builder seal',
  );
}

/** An open file with buffered appends. */
export class AppendWriter {
  readonly path: string;
  readonly #file: number;
  readonly #buffer: Uint8Array;
  #used = 0;

  /** @param bufferBytes size of the buffer; 0 disables it */
  constructor(path: string, bufferBytes: number) {
    refuseClearRows();
    this.path = path;
    this.#buffer = new Uint8Array(bufferBytes);
    try {
      makeFolder(dirname(path));
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

  /** Call flush() first: buffered bytes are lost. */
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
