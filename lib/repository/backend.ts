/**
 * The seam under a repository: an object store reduced to what publishing and fetching need. Paths come from layout.ts:
 * relative, "/"-separated, already checked.
 *
 * The contract (test/repository/conformance.ts runs it against every backend):
 * - an object appears whole or not at all, and never changes once it is there;
 * - of two writers of one path exactly one is told `true`;
 * - a store that cannot promise this refuses writing with UNSUPPORTED.
 */
export interface Backend {
  /** For messages: a folder's path or a URL, without credentials. */
  readonly location: string;

  /** False where only objects whose names are known can be read; `list` is UNSUPPORTED there. */
  readonly canList: boolean;

  /** What only garbage collection needs; absent where nothing can be removed. */
  readonly eraser?: Eraser;

  /** A whole object. @throws CubeError NOT_FOUND; TOO_LARGE over `maxBytes` */
  read(path: string, maxBytes: number): Promise<Uint8Array>;

  /**
   * Exactly `bytes` bytes from `start`.
   * @param signal ends waiting for a store that is slow
   * @throws CubeError NOT_FOUND; CORRUPT when the object ends before, or has changed since its size was asked; UNAVAILABLE;
   *   STOPPING by the signal
   */
  readRange(path: string, start: number, bytes: number, signal?: AbortSignal): Promise<Uint8Array>;

  /** Bytes of an object; undefined when it is absent. */
  size(path: string): Promise<number | undefined>;

  /** Names directly under a folder, sorted, without unfinished writes; an absent folder is empty. */
  list(folder: string): Promise<string[]>;

  /** @returns false, with nothing changed, when the object exists already */
  putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean>;

  /**
   * The same from a local file of any size, which stays where it is.
   * @param onBytes told what has been written since the last call
   */
  putFileIfAbsent(
    path: string,
    source: string,
    onBytes?: (bytes: number) => void,
  ): Promise<boolean>;

  /** Removes unfinished writes below a folder, at any depth, that nobody has gone on with for so long. */
  removeUnfinished(folder: string, idleMs: number): Promise<void>;

  /** Where the object lies, or would lie, on this machine's disk; undefined for a remote store. */
  localPath(path: string): string | undefined;
}

export interface Eraser {
  /** Objects below a folder at any depth, without unfinished writes. Ages are by the store's times and this machine's clock. */
  objects(folder: string): Promise<StoredObject[]>;

  /** An absent object is removed already. */
  remove(path: string): Promise<void>;
}

export interface StoredObject {
  readonly path: string;
  readonly bytes: number;
  readonly ageMs: number;
}
