/**
 * The seam under a repository: an object store reduced to what publishing and fetching need. A folder today; HTTP
 * and S3 implement the same members. Paths come from layout.ts: relative, "/"-separated, already checked.
 *
 * The contract (test/repository/conformance.ts runs it against every backend):
 * - an object appears whole or not at all, and never changes once it is there;
 * - of two writers of one path exactly one is told `true`;
 * - a store that cannot promise this refuses writing with UNSUPPORTED.
 */
export interface Backend {
  /** For messages: a folder's path or a URL. */
  readonly location: string;

  /** A whole object. @throws CubeError NOT_FOUND; TOO_LARGE over `maxBytes` */
  read(path: string, maxBytes: number): Promise<Uint8Array>;

  /** Exactly `bytes` bytes from `start`. @throws CubeError NOT_FOUND; CORRUPT when the object ends before */
  readRange(path: string, start: number, bytes: number): Promise<Uint8Array>;

  /** Bytes of an object; undefined when it is absent. */
  size(path: string): Promise<number | undefined>;

  /** Names directly under a folder, sorted, without unfinished writes; an absent folder is empty. */
  list(folder: string): Promise<string[]>;

  /** @returns false, with nothing changed, when the object exists already */
  putIfAbsent(path: string, bytes: Uint8Array): Promise<boolean>;

  /** The same from a local file of any size, which stays where it is. */
  putFileIfAbsent(path: string, source: string): Promise<boolean>;

  /** Removes unfinished writes directly under a folder that nobody has gone on with for so long. */
  removeUnfinished(folder: string, idleMs: number): Promise<void>;

  /** Where the object lies, or would lie, on this machine's disk; undefined for a remote store. */
  localPath(path: string): string | undefined;
}
