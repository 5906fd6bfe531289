/** A repository in a folder, also of a network file system that has hard links. */
import { dirname, join, resolve } from 'node:path';
import { CubeError } from '../core/errors.ts';
import { wallClockMs } from '../platform/clock.ts';
import {
  copyFileIfAbsent,
  fileExists,
  getFileBytes,
  isFolder,
  listFolder,
  putFileIfAbsent,
  RandomAccessReader,
  readFile,
  removeEmptyFolder,
  removePath,
  removeStaleTemporaries,
  statPath,
} from '../platform/files.ts';
import { OpenFile } from '../platform/open-file.ts';
import type { Backend, ObjectDeleter, StoredObject } from './backend.ts';

const LARGE_BYTES = 1 << 20;

export class FolderBackend implements Backend {
  readonly location: string;
  readonly canList = true;
  readonly deleter: ObjectDeleter = {
    listObjects: async (folder) => this.#objects(folder),
    remove: async (path) => this.#remove(path),
  };

  constructor(folder: string) {
    this.location = resolve(folder);
  }

  /** Large files are read outside of this thread, which may have requests to answer. */
  async read(path: string, maxBytes: number): Promise<Uint8Array> {
    const local = this.localPath(path);
    const { bytes } = statPath(local) ?? { bytes: 0 };
    if (bytes < LARGE_BYTES || bytes > maxBytes) return readFile(local, maxBytes);
    const file = new OpenFile(local);
    try {
      const content = new Uint8Array(Math.min(file.bytes, maxBytes));
      await new Promise<void>((resolve, reject) => {
        file.read(content, 0, (error) => (error === undefined ? resolve() : reject(error)));
      });
      return content;
    } finally {
      file.close();
    }
  }

  async readRange(path: string, start: number, bytes: number): Promise<Uint8Array> {
    const target = new Uint8Array(bytes);
    const reader = new RandomAccessReader(this.localPath(path));
    try {
      reader.readInto(target, start);
    } finally {
      reader.close();
    }
    return target;
  }

  async size(path: string): Promise<number | undefined> {
    const local = this.localPath(path);
    if (!fileExists(local)) return undefined;
    return getFileBytes(local);
  }

  /** Names with a leading dot are unfinished writes (see lib/platform/files.ts). */
  async list(folder: string): Promise<string[]> {
    return listFolder(this.localPath(folder)).filter((name) => !name.startsWith('.'));
  }

  async putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean> {
    return putFileIfAbsent(this.localPath(path), bytes);
  }

  async putFileIfAbsent(
    path: string,
    source: string,
    onBytes?: (bytes: number) => void,
  ): Promise<boolean> {
    const isNew = copyFileIfAbsent(this.localPath(path), source);
    onBytes?.(getFileBytes(source));
    return isNew;
  }

  async removeUnfinishedWrites(folder: string, idleMs: number): Promise<void> {
    const local = this.localPath(folder);
    removeStaleTemporaries(local, idleMs);
    for (const name of await this.list(folder)) {
      if (isFolder(join(local, name)))
        await this.removeUnfinishedWrites(`${folder}/${name}`, idleMs);
    }
  }

  localPath(path: string): string {
    return join(this.location, path);
  }

  /** Objects of equal times have equal ages, by which the newest versions are found. */
  #objects(folder: string, nowMs: number = wallClockMs()): StoredObject[] {
    const found: StoredObject[] = [];
    for (const name of listFolder(this.localPath(folder))) {
      const path = `${folder}/${name}`;
      const stat = statPath(this.localPath(path));
      if (stat === undefined || name.startsWith('.')) continue;
      if (stat.isFolder) found.push(...this.#objects(path, nowMs));
      else if (stat.isFile) found.push({ path, bytes: stat.bytes, ageMs: nowMs - stat.mtimeMs });
    }
    return found;
  }

  /** Removes the folder too if it is empty then. */
  #remove(path: string): void {
    const local = this.localPath(path);
    removePath(local);
    removeEmptyFolder(dirname(local));
  }
}

/** @throws CubeError NOT_FOUND; INVALID_ARGUMENT for a file */
export function requireFolder(folder: string): void {
  if (isFolder(folder)) return;
  if (fileExists(folder)) {
    throw new CubeError('INVALID_ARGUMENT', `${folder} is a file; a repository is a folder`);
  }
  throw new CubeError(
    'NOT_FOUND',
    `no repository at ${folder}: no such folder (cube-builder --output-path creates one)`,
  );
}
