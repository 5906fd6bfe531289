/**
 * The one reader and writer of the disk. What is written appears whole or not at all: written beside, flushed,
 * then renamed or linked into place.
 */
import { randomBytes } from 'node:crypto';
import {
  appendFileSync,
  closeSync,
  constants,
  copyFileSync,
  existsSync,
  fstatSync,
  fsyncSync,
  linkSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  renameSync,
  rmdirSync,
  rmSync,
  type Stats,
  statSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';

/** Larger single reads fail in Node or stall; also what a checksum kernel should be given between yields. */
const READ_PIECE_BYTES = 256 << 20;

/** A failed file operation as a CubeError that says which file and what to do. */
export function fileError(error: unknown, doing: string, path: string): CubeError {
  if (error instanceof CubeError) return error;
  const code = (error as NodeJS.ErrnoException).code ?? '';
  const reason: Record<string, string> = {
    ENOENT: 'no such file or folder',
    EACCES: 'permission denied',
    EEXIST: 'a file of that name is in the way',
    EISDIR: 'it is a folder, not a file',
    ENOTDIR: 'a part of the path is not a folder',
    ENOSPC: 'no space left on the disk',
    EDQUOT: 'the disk quota is used up',
    EFBIG: 'larger than the file system or the process may have a file',
    EROFS: 'the file system is read-only',
    EMFILE: 'too many open files (raise the limit with ulimit -n)',
  };
  const text = reason[code] ?? (error as Error).message;
  return new CubeError(code === 'ENOENT' ? 'NOT_FOUND' : 'IO', `cannot ${doing} ${path}: ${text}`, {
    cause: error,
  });
}

function guarded<T>(doing: string, path: string, action: () => T): T {
  try {
    return action();
  } catch (error) {
    throw fileError(error, doing, path);
  }
}

export function fileExists(path: string): boolean {
  return existsSync(path);
}

export function fileBytes(path: string): number {
  return guarded('read', path, () => statSync(path).size);
}

export interface FileStat {
  readonly bytes: number;
  readonly mtimeMs: number;
  readonly isFile: boolean;
  readonly isFolder: boolean;
}

/** What is at a path, links followed; undefined when nothing is. */
export function statPath(path: string): FileStat | undefined {
  if (!existsSync(path)) return undefined;
  const stat = guarded('read', path, () => statSync(path));
  const { size, mtimeMs } = stat;
  return { bytes: size, mtimeMs, isFile: stat.isFile(), isFolder: stat.isDirectory() };
}

export function isFolder(path: string): boolean {
  // existsSync first: below a file, statSync throws even when told not to.
  return existsSync(path) && statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}

/** mtime in milliseconds and size: equal means unchanged for our purposes; undefined when the file is absent. */
export function fileStamp(path: string): string | undefined {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat && `${stat.mtimeMs}:${stat.size}:${stat.ino}`;
}

/** Makes a folder and those above it, step by step: below /proc, Node's own recursion does not end. */
export function makeFolder(path: string): void {
  guarded('make the folder', path, () => {
    const missing: string[] = [];
    for (let at = resolve(path); !isFolder(at); at = dirname(at)) missing.push(at);
    for (const folder of missing.reverse()) {
      try {
        mkdirSync(folder);
        syncFolder(dirname(folder));
      } catch (error) {
        // Somebody else may have made it meanwhile.
        if (!isFolder(folder)) throw error;
      }
    }
  });
}

/** Flushes the names in a folder: a file in its place stays there when the power fails. Windows does so by itself. */
export function syncFolder(path: string): void {
  if (process.platform === 'win32') return;
  const folder = openSync(path, 'r');
  try {
    fsyncSync(folder);
  } catch (error) {
    // Some network file systems cannot, and promise the order themselves.
    if (!['EINVAL', 'ENOTSUP', 'EBADF'].includes((error as NodeJS.ErrnoException).code ?? '')) {
      throw error;
    }
  } finally {
    closeSync(folder);
  }
}

/** Names in a folder, sorted; an absent folder is empty. */
export function listFolder(path: string): string[] {
  if (!existsSync(path)) return [];
  return guarded('list', path, () => readdirSync(path).sort());
}

/** Removes a folder if nothing is in it. */
export function removeEmptyFolder(path: string): void {
  try {
    rmdirSync(path);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? '';
    // Windows says EPERM for one that is not empty; another may have removed it.
    if (!['ENOTEMPTY', 'EEXIST', 'EPERM', 'ENOENT'].includes(code)) {
      throw fileError(error, 'remove', path);
    }
  }
}

export function removePath(path: string): void {
  guarded('remove', path, () => rmSync(path, { recursive: true, force: true }));
}

/** The same without waiting for the file system, which takes a tenth of a second for a large file. */
export async function removePathLater(path: string): Promise<void> {
  await rm(path, { recursive: true, force: true }).catch((error: unknown) => {
    throw fileError(error, 'remove', path);
  });
}

/** @param maxBytes refuse larger files before reading them */
export function readFile(path: string, maxBytes: number = 2 ** 31): Uint8Array {
  return guarded('read', path, () => {
    const { size } = statSync(path);
    if (size > maxBytes) {
      throw new CubeError('TOO_LARGE', `${path}: ${size} bytes, the limit here is ${maxBytes}`);
    }
    return readFileSync(path);
  });
}

export function readText(path: string, maxBytes: number = 64 << 20): string {
  return new TextDecoder().decode(readFile(path, maxBytes));
}

/** Where a file is written before it is moved to its path. */
export function temporaryBeside(path: string): string {
  return join(dirname(path), `.${basename(path)}.${randomBytes(6).toString('hex')}.tmp`);
}

/** Removes entries of one kind whose name matches and that nobody has touched for so long. @returns the names removed */
function removeStale(
  folder: string,
  pattern: RegExp,
  idleMs: number,
  isKind: (stat: Stats) => boolean,
): string[] {
  const before = Date.now() - idleMs;
  return listFolder(folder).filter((name) => {
    if (!pattern.test(name)) return false;
    const path = join(folder, name);
    const stat = statSync(path, { throwIfNoEntry: false });
    if (stat === undefined || !isKind(stat) || stat.mtimeMs > before) return false;
    removePath(path);
    return true;
  });
}

/** Removes the folders of this pattern that killed runs left in a folder. @returns the names removed */
export function removeStaleFolders(folder: string, pattern: RegExp, idleMs: number): string[] {
  return removeStale(folder, pattern, idleMs, (stat) => stat.isDirectory());
}

const TEMPORARY = /^\..+\.tmp$/;

/**
 * Removes what killed writers left in a folder. A writer that was only slow fails when it moves its file into place, with
 * nothing half-written. @returns the names removed
 */
export function removeStaleTemporaries(folder: string, idleMs: number): string[] {
  return removeStale(folder, TEMPORARY, idleMs, (stat) => stat.isFile());
}

function writeTemporary(path: string, data: Uint8Array | string, mode = 0o666): string {
  makeFolder(dirname(path));
  const temporary = temporaryBeside(path);
  const file = openSync(temporary, 'wx', mode);
  try {
    const bytes = typeof data === 'string' ? new TextEncoder().encode(data) : data;
    let written = 0;
    while (written < bytes.length) written += writeSync(file, bytes, written);
    fsyncSync(file);
  } catch (error) {
    rmSync(temporary, { force: true });
    throw error;
  } finally {
    closeSync(file);
  }
  return temporary;
}

/** Replaces a file whole: a reader sees the old bytes or the new ones. */
export function replaceFile(path: string, data: Uint8Array | string): void {
  guarded('write', path, () => {
    renameSync(writeTemporary(path, data), path);
    syncFolder(dirname(path));
  });
}

/**
 * Creates a file whole if it is absent.
 * @param mode who may read it, before the umask
 * @returns false, with nothing changed, when it exists already
 */
export function putFileIfAbsent(path: string, data: Uint8Array | string, mode?: number): boolean {
  return guarded('write', path, () => {
    const temporary = writeTemporary(path, data, mode);
    try {
      linkSync(temporary, path);
      syncFolder(dirname(path));
      return true;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
      throw error;
    } finally {
      unlinkSync(temporary);
    }
  });
}

/** Copies a file whole to `path` if nothing is there. @returns false, with nothing changed, when it exists already */
export function copyFileIfAbsent(path: string, source: string): boolean {
  if (existsSync(path)) return false;
  const temporary = temporaryBeside(path);
  return guarded('copy to', path, () => {
    makeFolder(dirname(path));
    try {
      copyFileSync(source, temporary, constants.COPYFILE_FICLONE);
      const file = openSync(temporary, 'r');
      fsyncSync(file);
      closeSync(file);
      linkSync(temporary, path);
      syncFolder(dirname(path));
      return true;
    } catch (error) {
      if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
      throw error;
    } finally {
      rmSync(temporary, { force: true });
    }
  });
}

/** Moves a finished file or folder into place. */
export function movePath(from: string, to: string): void {
  guarded('move to', to, () => {
    mkdirSync(dirname(to), { recursive: true });
    renameSync(from, to);
  });
}

/** An open file read at positions; the caller closes it. */
export class RandomReader {
  readonly path: string;
  readonly bytes: number;
  readonly #file: number;
  readonly #borrowed: boolean;

  /** @param open a descriptor of the file that somebody else opened and closes */
  constructor(path: string, open?: number) {
    this.path = path;
    this.#borrowed = open !== undefined;
    this.#file = open ?? guarded('open', path, () => openSync(path, 'r'));
    this.bytes = fstatSync(this.#file).size;
  }

  /** Fills `target` from `position`, in pieces. @throws CubeError CORRUPT when the file ends before */
  readInto(target: Uint8Array, position: number): void {
    let done = 0;
    while (done < target.length) {
      const want = Math.min(target.length - done, READ_PIECE_BYTES);
      const got = guarded('read', this.path, () =>
        readSync(this.#file, target, done, want, position + done),
      );
      if (got === 0) {
        throw new CubeError('CORRUPT', `${this.path}: ends at byte ${position + done}, too early`);
      }
      done += got;
    }
  }

  close(): void {
    if (!this.#borrowed) closeSync(this.#file);
  }
}

/**
 * Writes a file beside its place and moves it there at the end: `commit()` or nothing. Positions may be written
 * in any order, so that a header can follow the sections it describes.
 */
export class RandomWriter {
  readonly path: string;
  readonly #temporary: string;
  readonly #file: number;
  #open = true;

  constructor(path: string) {
    this.path = path;
    makeFolder(dirname(path));
    this.#temporary = temporaryBeside(path);
    this.#file = guarded('create', path, () => openSync(this.#temporary, 'wx+'));
  }

  writeAt(bytes: Uint8Array, position: number): void {
    let done = 0;
    while (done < bytes.length) {
      const length = Math.min(bytes.length - done, READ_PIECE_BYTES);
      done += guarded('write', this.path, () =>
        writeSync(this.#file, bytes, done, length, position + done),
      );
    }
  }

  readInto(target: Uint8Array, position: number): void {
    let done = 0;
    while (done < target.length) {
      const got = guarded('read', this.path, () =>
        readSync(this.#file, target, done, target.length - done, position + done),
      );
      if (got === 0) throw new CubeError('INTERNAL', `${this.path}: read past what was written`);
      done += got;
    }
  }

  /** Flushes and moves the file to `path` (or to another name, known only now). */
  commit(path: string = this.path): void {
    guarded('write', path, () => {
      fsyncSync(this.#file);
      this.#close();
      mkdirSync(dirname(path), { recursive: true });
      renameSync(this.#temporary, path);
      syncFolder(dirname(path));
    });
  }

  /** Forgets everything written, also after a commit that failed. */
  abort(): void {
    this.#close();
    rmSync(this.#temporary, { force: true });
  }

  #close(): void {
    if (this.#open) closeSync(this.#file);
    this.#open = false;
  }
}

/** Appends to a log file at once. */
export function appendLog(path: string, text: string): void {
  guarded('write', path, () => appendFileSync(path, text));
}

/** A new folder under the system's folder for temporary files. */
export function makeTemporaryFolder(prefix: string): string {
  const path = join(tmpdir(), prefix);
  return guarded('make a folder like', path, () => mkdtempSync(path));
}
