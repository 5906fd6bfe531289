/**
 * A file of lines that grows at its end and is moved aside when it is full: `path`, then `path.1` (the newest before it) and so on.
 * Whole lines are written at once, and a line that a killed process left half is cut off at the next opening, so that every
 * file is readable at any time.
 */

import { existsSync, renameSync, rmSync, statSync, truncateSync } from 'node:fs';
import { appendFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { fileError, makeFolder, RandomReader } from './files.ts';

export interface RotatingFileOptions {
  readonly path: string;
  /** A file that would grow beyond is moved aside first. */
  readonly bytesMax: number;
  /** The one that grows among them. */
  readonly filesMax: number;
}

const TAIL_BYTES = 1 << 20;
const NEWLINE = 10;

export class RotatingFile {
  readonly #options: RotatingFileOptions;
  #bytes: number;

  /** @throws CubeError when the folder cannot be made or the file not be read */
  constructor(options: RotatingFileOptions) {
    this.#options = options;
    makeFolder(dirname(options.path));
    this.#bytes = cutHalfLine(options.path);
  }

  /** Never called before the last one settled. @param lines whole ones @throws CubeError */
  async append(lines: Uint8Array): Promise<void> {
    const { path, bytesMax } = this.#options;
    try {
      if (this.#bytes > 0 && this.#bytes + lines.length > bytesMax) this.#rotate();
      await appendFile(path, lines);
      this.#bytes += lines.length;
    } catch (error) {
      throw fileError(error, 'write', path);
    }
  }

  #rotate(): void {
    const { path, filesMax } = this.#options;
    const aside = (n: number): string => (n === 0 ? path : `${path}.${n}`);
    rmSync(aside(filesMax - 1), { force: true });
    for (let n = filesMax - 2; n >= 0; n--) {
      if (existsSync(aside(n))) renameSync(aside(n), aside(n + 1));
    }
    this.#bytes = 0;
  }
}

/** @returns the file's bytes, without a last line that does not end */
function cutHalfLine(path: string): number {
  if (!existsSync(path)) return 0;
  const { size } = statSync(path);
  const tail = new Uint8Array(Math.min(size, TAIL_BYTES));
  const reader = new RandomReader(path);
  try {
    reader.readInto(tail, size - tail.length);
  } finally {
    reader.close();
  }
  const whole = size - tail.length + tail.lastIndexOf(NEWLINE) + 1;
  if (whole < size) truncateSync(path, whole);
  return whole;
}
