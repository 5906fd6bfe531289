/**
 * A folder for a while, under the system's folder for temporary files: `hypercube-<name>-…`, claimed by its process. A process that is
 * killed leaves it; whoever makes the next one, or collects garbage, removes it.
 */
import { lstatSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { Claim, isAbandoned } from './claim.ts';
import { listFolder, makeTemporaryFolder, removePath } from './files.ts';

const OURS = /^hypercube-[a-z]+-[A-Za-z0-9]{6}$/;

export class TemporaryFolder {
  readonly path: string;
  readonly #claim: Claim;

  /** @param name what it is for, in small letters */
  constructor(name: string) {
    removeAbandonedFolders();
    this.path = makeTemporaryFolder(`hypercube-${name}-`);
    this.#claim = new Claim(this.path);
  }

  remove(): void {
    this.#claim.release();
    removePath(this.path);
  }
}

/** Those of processes that are gone. What cannot be removed is left to others: it is somebody else's, or still written to. */
export function removeAbandonedFolders(): void {
  for (const name of listFolder(tmpdir()).filter((name) => OURS.test(name))) {
    const path = join(tmpdir(), name);
    try {
      if (lstatSync(path).isDirectory() && isAbandoned(path)) removePath(path);
    } catch {
      // As said above.
    }
  }
}
