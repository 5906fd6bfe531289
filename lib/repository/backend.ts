/**
 * The storage under a repository, reduced to what publishing and fetching need. Paths come from
 * layout.ts: relative, "/"-separated, already checked.
 *
 * Every backend keeps this contract (test/repository/support/conformance.ts):
 * - an object appears whole or not at all, and never changes once it exists;
 * - of two concurrent writers of one path exactly one gets `true`;
 * - a store that cannot guarantee this refuses writes with UNSUPPORTED.
 */
export interface Backend {
  /** A folder or a URL without credentials, for messages. */
  readonly location: string;

  /** False if objects can only be read by name; `list` is UNSUPPORTED then. */
  readonly canList: boolean;

  /** For garbage collection; undefined if objects cannot be removed. */
  readonly deleter?: ObjectDeleter;

  /** Reads a whole object. @throws CubeError NOT_FOUND; TOO_LARGE over `maxBytes` */
  read(path: string, maxBytes: number): Promise<Uint8Array>;

  /**
   * Reads exactly `bytes` bytes from offset `start`.
   * @param signal stops the wait for a slow store
   * @throws CubeError NOT_FOUND; CORRUPT if the object is shorter, or has changed since `size`;
   *   UNAVAILABLE; STOPPING by the signal
   */
  readRange(path: string, start: number, bytes: number, signal?: AbortSignal): Promise<Uint8Array>;

  /** Size in bytes; undefined if the object does not exist. */
  size(path: string): Promise<number | undefined>;

  /** Sorted names directly in a folder, without unfinished writes; none for a missing folder. */
  list(folder: string): Promise<string[]>;

  /** @returns false, with nothing changed, if the object exists */
  putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean>;

  /**
   * Like `putIfAbsent`, from a local file of any size, which is kept.
   * @param onBytes called with the bytes written since the last call
   */
  putFileIfAbsent(
    path: string,
    source: string,
    onBytes?: (bytes: number) => void,
  ): Promise<boolean>;

  /** Removes unfinished writes below a folder, at any depth, that made no progress for `idleMs`. */
  removeUnfinishedWrites(folder: string, idleMs: number): Promise<void>;

  /** The path on this machine's disk, also of a missing object; undefined for a remote store. */
  localPath(path: string): string | undefined;
}

export interface ObjectDeleter {
  /**
   * Objects below a folder at any depth, without unfinished writes. Ages are the difference between
   * this machine's clock and the times of the store.
   */
  listObjects(folder: string): Promise<StoredObject[]>;

  /** Does nothing if the object does not exist. */
  remove(path: string): Promise<void>;
}

export interface StoredObject {
  readonly path: string;
  readonly bytes: number;
  readonly ageMs: number;
}
