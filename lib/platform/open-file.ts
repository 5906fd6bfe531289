/**
 * An open file with asynchronous reads at positions. It stays readable when its path is replaced or
 * removed.
 */
import { close, fstatSync, read } from 'node:fs';
import { CubeError } from '../core/errors.ts';
import { fileError, openRegularFile } from './files.ts';

type ReadCallback = (error: CubeError | undefined) => void;

export class OpenFile {
  readonly path: string;
  readonly bytes: number;
  /** For readers in other threads that finish before this file is closed. */
  readonly descriptor: number;
  #reading = 0;
  #closing = false;

  /**
   * @param descriptor an open descriptor of the file in this process; the path may no longer exist
   * @throws CubeError NOT_FOUND or IO
   */
  constructor(path: string, descriptor?: number) {
    this.path = path;
    const isOpen = descriptor !== undefined && process.platform === 'linux';
    this.descriptor = openRegularFile(isOpen ? `/proc/self/fd/${descriptor}` : path);
    this.bytes = fstatSync(this.descriptor).size;
  }

  /** Fills `target` from `position`, then calls `done`, always after this call has returned. */
  read(target: Uint8Array, position: number, done: ReadCallback): void {
    if (this.#closing) {
      process.nextTick(done, new CubeError('IO', `${this.path}: read after it was closed`));
      return;
    }
    this.#reading++;
    this.#readOn(target, 0, position, done);
  }

  /** Waits for reads in progress: the system may reuse a closed descriptor for another file. */
  close(): void {
    this.#closing = true;
    if (this.#reading === 0) this.#release();
  }

  /** Not awaited: closing the last descriptor of a large deleted file frees all of it. */
  #release(): void {
    close(this.descriptor, () => undefined);
  }

  #readOn(target: Uint8Array, from: number, position: number, done: ReadCallback): void {
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
    return new CubeError(
      'CORRUPT',
      `${this.path}: ends at byte ${position}, before the expected end`,
    );
  }
}
