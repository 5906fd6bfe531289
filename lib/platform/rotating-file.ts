/**
 * A log file that is rotated when full: `path`, then `path.1` (the newest rotated file) and so on.
 * Each write has whole lines, and a partial line that a killed process left is removed when the
 * file is opened again, so that every file is readable at any time.
 */

import { appendFileSync, existsSync, renameSync, rmSync, statSync, truncateSync } from 'node:fs';
import { appendFile } from 'node:fs/promises';
import { dirname } from 'node:path';
import { fileError, makeFolder, RandomAccessReader } from './files.ts';

export interface RotatingFileOptions {
  readonly path: string;
  /** Size limit in bytes; the file is rotated before a write would exceed it. */
  readonly bytesMax: number;
  /** Number of files to keep, the current one included. */
  readonly filesMax: number;
}

const TAIL_BYTES = 1 << 20;
const NEWLINE = 10;

export class RotatingFile {
  readonly #options: RotatingFileOptions;
  /** A device, such as /dev/null, is never renamed. */
  readonly #isDevice: boolean;
  #bytes: number;

  /** @throws CubeError when the folder cannot be created, or the file is unreadable or a pipe */
  constructor(options: RotatingFileOptions) {
    this.#options = options;
    makeFolder(dirname(options.path));
    this.#isDevice = isDevice(options.path);
    this.#bytes = this.#isDevice ? 0 : truncatePartialLine(options.path);
  }

  /** Calls must not overlap. @param lines whole lines @throws CubeError */
  async append(lines: Uint8Array): Promise<void> {
    const { path } = this.#options;
    try {
      this.#makeRoom(lines.length);
      await appendFile(path, lines);
      this.#bytes += lines.length;
    } catch (error) {
      throw fileError(error, 'write', path);
    }
  }

  /** The same, done when it returns. @throws CubeError */
  appendNow(lines: Uint8Array): void {
    const { path } = this.#options;
    try {
      this.#makeRoom(lines.length);
      appendFileSync(path, lines);
      this.#bytes += lines.length;
    } catch (error) {
      throw fileError(error, 'write', path);
    }
  }

  #makeRoom(byteCount: number): void {
    if (this.#isDevice) return;
    if (this.#bytes > 0 && this.#bytes + byteCount > this.#options.bytesMax) this.#rotate();
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

function isDevice(path: string): boolean {
  return statSync(path, { throwIfNoEntry: false })?.isCharacterDevice() ?? false;
}

/** @returns the size of the file without a partial last line */
function truncatePartialLine(path: string): number {
  if (!existsSync(path)) return 0;
  const { size } = statSync(path);
  const tail = new Uint8Array(Math.min(size, TAIL_BYTES));
  const reader = new RandomAccessReader(path);
  try {
    reader.readInto(tail, size - tail.length);
  } finally {
    reader.close();
  }
  const whole = size - tail.length + tail.lastIndexOf(NEWLINE) + 1;
  if (whole < size) truncateSync(path, whole);
  return whole;
}
