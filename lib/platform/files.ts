/**
 * Reads and writes files. Every write is atomic: data is written to a temporary sibling path,
 * flushed, then renamed or linked into place.
 */

import { randomBytes } from 'node:crypto';
import {
  accessSync,
  appendFileSync,
  closeSync,
  constants,
  copyFileSync,
  existsSync,
  fstatSync,
  fsyncSync,
  linkSync,
  lstatSync,
  mkdirSync,
  mkdtempSync,
  openSync,
  readdirSync,
  readFileSync,
  readSync,
  realpathSync,
  renameSync,
  rmdirSync,
  rmSync,
  type Stats,
  statfsSync,
  statSync,
  unlinkSync,
  writeSync,
} from 'node:fs';
import { rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { basename, dirname, join, resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';

/**
 * Larger single reads fail or stall in Node. Also a good interval between two yields of a checksum
 * loop.
 */
const READ_CHUNK_BYTES = 256 << 20;

/** Converts a failed file operation to a CubeError that names the file and the reason. */
export function fileError(error: unknown, doing: string, path: string): CubeError {
  if (error instanceof CubeError) return error;
  const code = (error as NodeJS.ErrnoException).code ?? '';
  const reason: Record<string, string> = {
    ENOENT: 'no such file or folder',
    EACCES: 'permission denied',
    EEXIST: 'a file of that name exists',
    EISDIR: 'it is a folder, not a file',
    ENOTDIR: 'a part of the path is not a folder',
    ENOSPC: 'no space left on the disk',
    EDQUOT: 'the disk quota is used up',
    EFBIG: 'larger than the file size limit of the file system or the process',
    EROFS: 'the file system is read-only',
    EMFILE: 'too many open files (raise the limit with ulimit -n)',
  };
  const text = reason[code] ?? (error as Error).message;
  return new CubeError(code === 'ENOENT' ? 'NOT_FOUND' : 'IO', `cannot ${doing} ${path}: ${text}`, {
    cause: error,
  });
}

function withFileError<T>(doing: string, path: string, action: () => T): T {
  try {
    return action();
  } catch (error) {
    throw fileError(error, doing, path);
  }
}

export function fileExists(path: string): boolean {
  return existsSync(path);
}

export function getFileBytes(path: string): number {
  return withFileError('read', path, () => statSync(path).size);
}

export interface FileStat {
  readonly bytes: number;
  readonly mtimeMs: number;
  readonly isFile: boolean;
  readonly isFolder: boolean;
}

/** Describes the file or folder at a path, following links; undefined when there is none. */
export function statPath(path: string): FileStat | undefined {
  if (!existsSync(path)) return undefined;
  const stat = withFileError('read', path, () => statSync(path));
  const { size, mtimeMs } = stat;
  return { bytes: size, mtimeMs, isFile: stat.isFile(), isFolder: stat.isDirectory() };
}

export function isFolder(path: string): boolean {
  // existsSync comes first: for a path below a file, statSync throws even with throwIfNoEntry.
  return existsSync(path) && statSync(path, { throwIfNoEntry: false })?.isDirectory() === true;
}

/**
 * Modification time, size and inode: equal stamps mean an unchanged file. Undefined when it is
 * absent.
 */
export function getFileStamp(path: string): string | undefined {
  const stat = statSync(path, { throwIfNoEntry: false });
  return stat && `${stat.mtimeMs}:${stat.size}:${stat.ino}`;
}

/**
 * Creates a folder and its missing parents one by one: below /proc, Node's own recursion does not
 * end, and on a read-only file system it says that there is no such folder.
 */
export function makeFolder(path: string): void {
  withFileError('make the folder', path, () => {
    const missing: string[] = [];
    for (let at = resolve(path); !isFolder(at); at = dirname(at)) missing.push(at);
    for (const folder of missing.reverse()) {
      try {
        mkdirSync(folder);
        syncFolder(dirname(folder));
      } catch (error) {
        // Another process may have created it meanwhile.
        if (!isFolder(folder)) throw error;
      }
    }
  });
}

/**
 * Why this process cannot create and remove entries in a folder, as far as the system tells without
 * a write; undefined when it can, or when the folder is absent.
 */
export function findFolderObstacle(path: string): CubeError | undefined {
  try {
    accessSync(path, constants.W_OK | constants.X_OK);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    if (code !== 'ENOENT') return fileError(error, 'write to', path);
  }
  return undefined;
}

/**
 * Flushes a folder, so that a renamed file survives a power failure. Windows needs no such call.
 */
export function syncFolder(path: string): void {
  if (process.platform === 'win32') return;
  const folder = openSync(path, 'r');
  try {
    fsyncSync(folder);
  } catch (error) {
    // Some network file systems do not support this and guarantee the order themselves.
    if (!['EINVAL', 'ENOTSUP', 'EBADF'].includes((error as NodeJS.ErrnoException).code ?? '')) {
      throw error;
    }
  } finally {
    closeSync(folder);
  }
}

/** Sorted names in a folder; none when the folder is absent. */
export function listFolder(path: string): string[] {
  if (!existsSync(path)) return [];
  return withFileError('list', path, () => readdirSync(path).sort());
}

/** Removes a folder if it is empty. */
export function removeEmptyFolder(path: string): void {
  try {
    rmdirSync(path);
  } catch (error) {
    const code = (error as NodeJS.ErrnoException).code ?? '';
    // Windows reports EPERM for a folder that is not empty; another process may have removed it
    // already.
    if (!['ENOTEMPTY', 'EEXIST', 'EPERM', 'ENOENT'].includes(code)) {
      throw fileError(error, 'remove', path);
    }
  }
}

export function removePath(path: string): void {
  withFileError('remove', path, () => rmSync(path, { recursive: true, force: true }));
}

/**
 * Removes a file at once and keeps its space until the returned descriptor is closed: freeing that
 * of a large file takes a tenth of a second.
 * @returns undefined when there is nothing to close
 */
export function removeButKeepOpen(path: string): number | undefined {
  if (!existsSync(path)) return undefined;
  let file: number | undefined;
  try {
    file = openRegularFile(path, 'remove');
  } catch {
    // It can still be removed.
  }
  try {
    removePath(path);
  } catch (error) {
    if (file !== undefined) closeSync(file);
    throw error;
  }
  return file;
}

export function closeDescriptor(descriptor: number): void {
  closeSync(descriptor);
}

/** Like `removePath`, without blocking: removing a large file takes a tenth of a second. */
export async function removePathAsync(path: string): Promise<void> {
  await rm(path, { recursive: true, force: true }).catch((error: unknown) => {
    throw fileError(error, 'remove', path);
  });
}

/**
 * Opens a file for reading. Unlike `openSync`, this never waits for the writer of a named pipe.
 * @returns the descriptor
 * @throws CubeError INVALID_ARGUMENT for a pipe, socket or device
 */
export function openRegularFile(path: string, doing = 'open'): number {
  return withFileError(doing, path, () => {
    // Opening a named pipe waits for its writer without this flag, which Windows lacks.
    const file = openSync(path, constants.O_RDONLY | (constants.O_NONBLOCK ?? 0));
    const stats = fstatSync(file);
    // A later read of a folder says so.
    if (stats.isFile() || stats.isDirectory()) return file;
    closeSync(file);
    throw new CubeError('INVALID_ARGUMENT', `${path}: is not a regular file`);
  });
}

/** @param maxBytes larger files are refused before they are read */
export function readFile(path: string, maxBytes: number = 2 ** 31): Uint8Array {
  return withFileError('read', path, () => {
    const file = openRegularFile(path, 'read');
    try {
      const { size } = fstatSync(file);
      if (size > maxBytes) {
        throw new CubeError('TOO_LARGE', `${path}: ${size} bytes exceed the limit of ${maxBytes}`);
      }
      return readFileSync(file);
    } finally {
      closeSync(file);
    }
  });
}

/** A file may grow to this size while it is read. */
const REGULAR_FILE_BYTES = 65_536;

/**
 * Reads a file whose size may change.
 * @throws CubeError INVALID_ARGUMENT for anything but a regular file; TOO_LARGE if it has more than
 *   `maxBytes`
 */
export function readRegularFile(path: string, maxBytes: number): Uint8Array {
  return withFileError('read', path, () => {
    const file = openRegularFile(path, 'read');
    try {
      const stats = fstatSync(file);
      if (!stats.isFile()) {
        throw new CubeError('INVALID_ARGUMENT', `${path}: is not a regular file`);
      }
      const limit = Math.min(maxBytes, Math.max(stats.size, REGULAR_FILE_BYTES));
      const buffer = new Uint8Array(limit + 1);
      let used = 0;
      for (let got = 1; got > 0 && used < buffer.length; used += got) {
        got = readSync(file, buffer, used, buffer.length - used, null);
      }
      if (used <= limit) return buffer.subarray(0, used);
      if (limit < maxBytes) throw new CubeError('IO', `${path}: grew while it was read; try again`);
      throw new CubeError('TOO_LARGE', `${path}: more than the limit of ${maxBytes} bytes`);
    } finally {
      closeSync(file);
    }
  });
}

export function readText(path: string, maxBytes: number = 64 << 20): string {
  return new TextDecoder().decode(readFile(path, maxBytes));
}

/** A temporary path in the same folder, from which a finished file is renamed to its path. */
export function getTemporarySiblingPath(path: string): string {
  return join(dirname(path), `.${basename(path)}.${randomBytes(6).toString('hex')}.tmp`);
}

/**
 * Removes entries of one kind that match a pattern and have not changed for `idleMs`.
 * @returns the names removed
 */
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

/**
 * Removes folders of killed runs by name pattern and age.
 * @returns the names removed
 */
export function removeStaleFolders(folder: string, pattern: RegExp, idleMs: number): string[] {
  return removeStale(folder, pattern, idleMs, (stat) => stat.isDirectory());
}

const TEMPORARY_NAME = /^\..+\.tmp$/;

/**
 * Removes temporary files of killed writers. A slow writer whose file is removed fails when it
 * renames it, and leaves nothing half-written.
 * @returns the names removed
 */
export function removeStaleTemporaries(folder: string, idleMs: number): string[] {
  return removeStale(folder, TEMPORARY_NAME, idleMs, (stat) => stat.isFile());
}

function writeTemporaryFile(path: string, data: Uint8Array | string, mode = 0o666): string {
  makeFolder(dirname(path));
  const temporary = getTemporarySiblingPath(path);
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

/**
 * Replaces a file atomically: a reader sees the old bytes or the new ones.
 * @param mode `keep`: the permissions of the existing file
 */
export function replaceFile(path: string, data: Uint8Array | string, mode?: 'keep'): void {
  withFileError('write', path, () => {
    const kept = mode === 'keep' ? statSync(path, { throwIfNoEntry: false })?.mode : undefined;
    renameSync(writeTemporaryFile(path, data, kept && kept & 0o777), path);
    syncFolder(dirname(path));
  });
}

/** @returns false when `path` exists */
function linkIfAbsent(temporary: string, path: string): boolean {
  try {
    linkSync(temporary, path);
  } catch (error) {
    if ((error as NodeJS.ErrnoException).code === 'EEXIST') return false;
    throw error;
  }
  syncFolder(dirname(path));
  return true;
}

/**
 * Creates a file atomically if it is absent.
 * @param mode file permissions, before the umask
 * @returns false, with nothing changed, when the file exists
 */
export function putFileIfAbsent(path: string, data: Uint8Array | string, mode?: number): boolean {
  return withFileError('write', path, () => {
    const temporary = writeTemporaryFile(path, data, mode);
    try {
      return linkIfAbsent(temporary, path);
    } finally {
      unlinkSync(temporary);
    }
  });
}

/**
 * Copies a file atomically if the target is absent.
 * @returns false, with nothing changed, when it exists
 */
export function copyFileIfAbsent(path: string, source: string): boolean {
  if (existsSync(path)) return false;
  const temporary = getTemporarySiblingPath(path);
  return withFileError('copy to', path, () => {
    makeFolder(dirname(path));
    try {
      closeSync(openRegularFile(source));
      copyFileSync(source, temporary, constants.COPYFILE_FICLONE);
      const file = openSync(temporary, 'r');
      try {
        fsyncSync(file);
      } finally {
        closeSync(file);
      }
      return linkIfAbsent(temporary, path);
    } finally {
      rmSync(temporary, { force: true });
    }
  });
}

/**
 * Checks that a finished file may take this place: renaming it would replace a device, a pipe or a
 * link instead of writing to it. @throws CubeError INVALID_ARGUMENT
 */
export function requireReplaceable(path: string): void {
  const found = withFileError('write', path, () => lstatSync(path, { throwIfNoEntry: false }));
  if (found === undefined || found.isFile()) return;
  const kind = found.isDirectory() ? 'a folder' : found.isSymbolicLink() ? 'a link' : 'no file';
  throw new CubeError('INVALID_ARGUMENT', `${path} is ${kind}: name a regular file, or a new one`);
}

/** Moves a finished file or folder into place. */
export function movePath(from: string, to: string): void {
  withFileError('move to', to, () => {
    makeFolder(dirname(to));
    renameSync(from, to);
  });
}

/** An open file read at positions; the caller closes it. */
export class RandomAccessReader {
  readonly path: string;
  readonly bytes: number;
  readonly #file: number;
  readonly #borrowed: boolean;

  /** @param open a descriptor that the caller opened and closes */
  constructor(path: string, open?: number) {
    this.path = path;
    this.#borrowed = open !== undefined;
    this.#file = open ?? openRegularFile(path);
    this.bytes = fstatSync(this.#file).size;
  }

  /** Fills `target` from `position`. @throws CubeError CORRUPT when the file is too short */
  readInto(target: Uint8Array, position: number): void {
    let done = 0;
    while (done < target.length) {
      const want = Math.min(target.length - done, READ_CHUNK_BYTES);
      const got = withFileError('read', this.path, () =>
        readSync(this.#file, target, done, want, position + done),
      );
      if (got === 0) {
        throw new CubeError(
          'CORRUPT',
          `${this.path}: ends at byte ${position + done}, before the expected end`,
        );
      }
      done += got;
    }
  }

  close(): void {
    if (!this.#borrowed) closeSync(this.#file);
  }
}

/**
 * Writes a temporary sibling file and renames it on `commit()`. Positions may be written in any
 * order, so that a header can follow the sections it describes.
 */
export class RandomAccessWriter {
  readonly path: string;
  readonly #temporary: string;
  readonly #file: number;
  #open = true;

  constructor(path: string) {
    this.path = path;
    makeFolder(dirname(path));
    this.#temporary = getTemporarySiblingPath(path);
    this.#file = withFileError('create', path, () => openSync(this.#temporary, 'wx+'));
  }

  writeAt(bytes: Uint8Array, position: number): void {
    let done = 0;
    while (done < bytes.length) {
      const length = Math.min(bytes.length - done, READ_CHUNK_BYTES);
      done += withFileError('write', this.path, () =>
        writeSync(this.#file, bytes, done, length, position + done),
      );
    }
  }

  readInto(target: Uint8Array, position: number): void {
    let done = 0;
    while (done < target.length) {
      const got = withFileError('read', this.path, () =>
        readSync(this.#file, target, done, target.length - done, position + done),
      );
      if (got === 0) throw new CubeError('INTERNAL', `${this.path}: read past what was written`);
      done += got;
    }
  }

  /** Flushes the file and renames it to `path`, which may differ from the constructor's. */
  commit(path: string = this.path): void {
    withFileError('write', path, () => {
      fsyncSync(this.#file);
      this.#close();
      makeFolder(dirname(path));
      renameSync(this.#temporary, path);
      syncFolder(dirname(path));
    });
  }

  /** Discards everything written, also after a failed commit. */
  abort(): void {
    this.#close();
    rmSync(this.#temporary, { force: true });
  }

  #close(): void {
    if (this.#open) closeSync(this.#file);
    this.#open = false;
  }
}

/** Appends to a log file, without buffering. */
export function appendLog(path: string, text: string): void {
  withFileError('write', path, () => appendFileSync(path, text));
}

/** Creates a folder in the system's temporary folder. */
export function makeTemporaryFolder(prefix: string): string {
  const path = join(tmpdir(), prefix);
  return withFileError('make a folder like', path, () => mkdtempSync(path));
}

/** Bytes that this process may still write to the file system of a folder. @throws CubeError */
export function freeDiskBytes(folder: string): number {
  try {
    const { bavail, bsize } = statfsSync(folder);
    return bavail * bsize;
  } catch (error) {
    throw fileError(error, 'ask for the free space of', folder);
  }
}

/**
 * Resolves symbolic links, which decide whether a file is inside a folder.
 * @throws CubeError NOT_FOUND when the target does not exist
 */
export function realPath(path: string): string {
  try {
    return realpathSync(path);
  } catch (error) {
    throw fileError(error, 'read', path);
  }
}
