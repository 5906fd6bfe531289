/**
 * A file that is received in pieces and may be interrupted. Pieces are collected in `<path>.part`,
 * which a later attempt continues; `commit()` renames it. The file at `path` is therefore always
 * complete.
 */
import {
  closeSync,
  fsyncSync,
  ftruncateSync,
  openSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  writeSync,
} from 'node:fs';
import { dirname } from 'node:path';
import { fileError, makeFolder, syncFolder } from './files.ts';

export class PartialFile {
  readonly #path: string;
  readonly #partPath: string;
  readonly #file: number;
  #bytes: number;
  #isOpen = true;

  /**
   * @param partPath where pieces are collected; a different path separates two writers of one file
   */
  constructor(path: string, partPath: string = `${path}.part`) {
    this.#path = path;
    this.#partPath = partPath;
    try {
      makeFolder(dirname(partPath));
      this.#bytes = statSync(partPath, { throwIfNoEntry: false })?.size ?? 0;
      this.#file = openSync(partPath, this.#bytes === 0 ? 'w+' : 'r+');
    } catch (error) {
      throw fileError(error, 'write', partPath);
    }
  }

  /** Bytes collected so far, earlier attempts included. */
  get bytes(): number {
    return this.#bytes;
  }

  /** Reads back collected bytes. @returns the count, less than requested only at the end */
  read(target: Uint8Array, position: number): number {
    return this.#guarded('read', () => readSync(this.#file, target, 0, target.length, position));
  }

  append(bytes: Uint8Array): void {
    let done = 0;
    while (done < bytes.length) {
      const length = bytes.length - done;
      const written = this.#guarded('write', () =>
        writeSync(this.#file, bytes, done, length, this.#bytes),
      );
      done += written;
      this.#bytes += written;
    }
  }

  /** Starts over. */
  clear(): void {
    this.truncate(0);
  }

  /** Keeps only the first `bytes`. */
  truncate(bytes: number): void {
    this.#guarded('write', () => ftruncateSync(this.#file, bytes));
    this.#bytes = bytes;
  }

  /**
   * Flushes the file and renames it into place, replacing an existing file. The file is closed also
   * when that fails; the pieces then stay for a later attempt.
   */
  commit(): void {
    this.#guarded('write', () => {
      try {
        fsyncSync(this.#file);
      } finally {
        this.close();
      }
      renameSync(this.#partPath, this.#path);
      syncFolder(dirname(this.#path));
    });
  }

  /** Keeps the pieces for a later attempt. Another file may have the number of a closed one. */
  close(): void {
    if (this.#isOpen) closeSync(this.#file);
    this.#isOpen = false;
  }

  /** Removes the pieces. */
  discard(): void {
    this.close();
    rmSync(this.#partPath, { force: true });
  }

  #guarded<T>(doing: string, action: () => T): T {
    try {
      return action();
    } catch (error) {
      throw fileError(error, doing, this.#partPath);
    }
  }
}
