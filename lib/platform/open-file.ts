/**
 * A file held open and read at positions without blocking the thread, so that it can be read while its name is given
 * to another file or removed.
 */
import { close, fstatSync, openSync, read } from 'node:fs';
import { CubeError } from '../core/errors.ts';
import { fileError } from './files.ts';

type Done = (error: CubeError | undefined) => void;

export class OpenFile {
  readonly path: string;
  readonly bytes: number;
  /** For a reader of another thread that ends before this is closed. */
  readonly descriptor: number;
  #reading = 0;
  #closing = false;

  /**
   * @param descriptor of this process, under which the file is open already: it may have lost its name since
   * @throws CubeError NOT_FOUND or IO
   */
  constructor(path: string, descriptor?: number) {
    this.path = path;
    try {
      this.descriptor =
        descriptor !== undefined && process.platform === 'linux'
          ? openSync(`/proc/self/fd/${descriptor}`, 'r')
          : openSync(path, 'r');
    } catch (error) {
      throw fileError(error, 'open', path);
    }
    this.bytes = fstatSync(this.descriptor).size;
  }

  /** Fills `target` from `position`, then calls `done`, never before it returns. */
  read(target: Uint8Array, position: number, done: Done): void {
    if (this.#closing) {
      process.nextTick(done, new CubeError('IO', `${this.path}: read after it was closed`));
      return;
    }
    this.#reading++;
    this.#readOn(target, 0, position, done);
  }

  /** Reads under way end first: their descriptor may not become another file's. */
  close(): void {
    this.#closing = true;
    if (this.#reading === 0) this.#release();
  }

  /** Not waited for: the last to close a large file that has no name frees all of it. */
  #release(): void {
    close(this.descriptor, () => undefined);
  }

  #readOn(target: Uint8Array, from: number, position: number, done: Done): void {
    read(this.descriptor, target, from, target.length - from, position + from, (error, got) => {
      if (error === null && got > 0 && from + got < target.length) {
        this.#readOn(target, from + got, position, done);
        return;
      }
      this.#reading--;
      if (this.#closing && this.#reading === 0) this.#release();
      if (error !== null) done(fileError(error, 'read', this.path));
      else if (from + got < target.length) done(this.#endsEarly(position + from + got));
      else done(undefined);
    });
  }

  #endsEarly(position: number): CubeError {
    return new CubeError('CORRUPT', `${this.path}: ends at byte ${position}, too early`);
  }
}
