/**
 * A locked folder in the system's temporary folder, `hypercube-<name>-…`. A killed process leaves
 * its folder behind; the next process that creates one, or collects garbage, removes it.
 */
import { lstatSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { listFolder, makeTemporaryFolder, removePath } from './files.ts';
import { FolderLock, isFolderAbandoned } from './folder-lock.ts';

const FOLDER_NAME = /^hypercube-[a-z]+-[A-Za-z0-9]{6}$/;

export class TemporaryFolder {
  readonly path: string;
  readonly #claim: FolderLock;

  /** @param name purpose, in lower-case letters */
  constructor(name: string) {
    removeAbandonedFolders();
    this.path = makeTemporaryFolder(`hypercube-${name}-`);
    this.#claim = new FolderLock(this.path);
  }

  remove(): void {
    this.#claim.release();
    removePath(this.path);
  }
}

/**
 * Removes folders of processes that have ended. Folders that cannot be removed are skipped: they
 * belong to another user, or are still being written.
 */
export function removeAbandonedFolders(): void {
  for (const name of listFolder(tmpdir()).filter((name) => FOLDER_NAME.test(name))) {
    const path = join(tmpdir(), name);
    try {
      if (lstatSync(path).isDirectory() && isFolderAbandoned(path)) removePath(path);
    } catch {
      // Skipped, see above.
    }
  }
}
