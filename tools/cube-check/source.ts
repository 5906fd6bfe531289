/** Where files of a repository are read from: a folder, or the same below a URL. Paths are those of lib/repository/layout.ts. */

import { fileBytes } from '../../lib/platform/files.ts';
import { FolderBackend } from '../../lib/repository/folder-backend.ts';

/** A file on this machine's disk, for as long as it is needed. */
export interface LocalFile {
  readonly path: string;
  readonly bytes: number;
  release(): void;
}

export interface Source {
  /** For messages: a folder or a URL. */
  readonly location: string;
  /** A whole small file. @throws CubeError NOT_FOUND; TOO_LARGE over `maxBytes` */
  read(path: string, maxBytes: number): Promise<Uint8Array>;
  exists(path: string): Promise<boolean>;
  /** Names in a folder; undefined where nobody can tell. */
  list(folder: string): Promise<string[] | undefined>;
  /**
   * A file of any size.
   * @param bytes that it should have: of a longer one no more is fetched
   * @throws CubeError NOT_FOUND; TOO_LARGE
   */
  open(path: string, bytes: number): Promise<LocalFile>;
  close(): void;
}

export class FolderSource implements Source {
  readonly location: string;
  readonly #folder: FolderBackend;

  constructor(folder: string) {
    this.#folder = new FolderBackend(folder);
    this.location = this.#folder.location;
  }

  read(path: string, maxBytes: number): Promise<Uint8Array> {
    return this.#folder.read(path, maxBytes);
  }

  async exists(path: string): Promise<boolean> {
    return (await this.#folder.size(path)) !== undefined;
  }

  list(folder: string): Promise<string[]> {
    return this.#folder.list(folder);
  }

  async open(path: string): Promise<LocalFile> {
    const local = this.#folder.localPath(path);
    return { path: local, bytes: fileBytes(local), release: () => undefined };
  }

  close(): void {
    // Nothing is held.
  }
}

/** How messages name a file of a source. */
export function placeOf({ location }: Source, path: string): string {
  return `${location}/${path}`;
}
