/**
 * Where cube-check reads the files of a repository: a folder, a bucket, or the same below a URL.
 * Paths are those of lib/repository/layout.ts.
 */
import { basename, join } from 'node:path';
import { CubeError } from '../../lib/core/errors.ts';
import { getFileBytes, removePath } from '../../lib/platform/files.ts';
import { AppendWriter } from '../../lib/platform/spill-file.ts';
import { TemporaryFolder } from '../../lib/platform/temporary-folder.ts';
import type { Backend } from '../../lib/repository/backend.ts';

/** Bytes that one request of a bucket fetches. */
const PIECE_BYTES = 8 << 20;

/** A file on this machine's disk, until it is released. */
export interface LocalFile {
  readonly path: string;
  readonly bytes: number;
  release(): void;
}

export interface CheckSource {
  /** A folder or a URL, for messages. */
  readonly location: string;
  readonly canList: boolean;
  /** A whole small file. @throws CubeError NOT_FOUND; TOO_LARGE over `maxBytes` */
  read(path: string, maxBytes: number): Promise<Uint8Array>;
  exists(path: string): Promise<boolean>;
  /** The names in a folder; undefined where folders cannot be listed. */
  list(folder: string): Promise<string[] | undefined>;
  /** Size of a file in bytes; undefined for a missing one, and where folders cannot be listed. */
  size(path: string): Promise<number | undefined>;
  /**
   * A file of any size.
   * @param bytes its expected size; no more is fetched of a longer one
   * @throws CubeError NOT_FOUND; TOO_LARGE
   */
  open(path: string, bytes: number): Promise<LocalFile>;
  close(): void;
}

export function toLocation({ location }: CheckSource, path: string): string {
  return `${location}/${path}`;
}

/** Says "missing" for a file that does not exist, however the source words it. */
export function asMissing(thrown: unknown, where: string): CubeError {
  const error = CubeError.from(thrown);
  if (error.code !== 'NOT_FOUND') return error;
  return new CubeError('NOT_FOUND', `${where} is missing`);
}

/** A repository in a folder or a bucket. Layers of a bucket are copied to temporary files. */
export class ListedSource implements CheckSource {
  readonly location: string;
  readonly canList = true;
  readonly #backend: Backend;
  #folder: TemporaryFolder | undefined;
  #files = 0;

  constructor(backend: Backend) {
    this.#backend = backend;
    this.location = backend.location;
  }

  read(path: string, maxBytes: number): Promise<Uint8Array> {
    return this.#backend.read(path, maxBytes);
  }

  async exists(path: string): Promise<boolean> {
    return (await this.#backend.size(path)) !== undefined;
  }

  list(folder: string): Promise<string[]> {
    return this.#backend.list(folder);
  }

  size(path: string): Promise<number | undefined> {
    return this.#backend.size(path);
  }

  async open(path: string, expected: number): Promise<LocalFile> {
    const local = this.#backend.localPath(path);
    if (local !== undefined) {
      return { path: local, bytes: getFileBytes(local), release: () => undefined };
    }
    const where = toLocation(this, path);
    const bytes = await this.#backend.size(path);
    if (bytes === undefined) throw new CubeError('NOT_FOUND', `${where}: no such object`);
    if (bytes > expected) {
      throw new CubeError('TOO_LARGE', `${where}: has ${bytes} bytes, expected ${expected}`);
    }
    this.#folder ??= new TemporaryFolder('check');
    const target = join(this.#folder.path, `${this.#files++}-${basename(path)}`);
    await this.#copy(path, bytes, target);
    return { path: target, bytes, release: () => removePath(target) };
  }

  async #copy(path: string, bytes: number, target: string): Promise<void> {
    const writer = new AppendWriter(target, PIECE_BYTES);
    try {
      for (let at = 0; at < bytes; at += PIECE_BYTES) {
        const length = Math.min(PIECE_BYTES, bytes - at);
        writer.write(await this.#backend.readRange(path, at, length));
      }
      writer.flush();
    } finally {
      writer.close();
    }
  }

  close(): void {
    this.#folder?.remove();
    this.#folder = undefined;
  }
}
