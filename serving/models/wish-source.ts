/** What shall be served of a model: the seam between those who say so (channels, a folder) and the watcher that makes it so. */

/** What a source wants under one label, read now. */
export interface Wish {
  /** What the source points to; for people, since it may be a version that must not be served. */
  readonly pointer: string;
  /** The version to serve: the pointer, unless it is quarantined. */
  readonly target: string | undefined;
  /** Held beside the target, so that going back to it is a switch and not a load. */
  readonly previous: string | undefined;
  /** The source was written anew since it was read last: what failed before may do now, and is tried at once. */
  readonly rewritten?: boolean;
  /** Why the pointer is not the target. */
  readonly problem: string | undefined;
}

export interface WishSource {
  /** What requests may ask for by name; the first answers those who name none. */
  readonly labels: readonly [string, ...string[]];

  /**
   * @returns undefined when a label points nowhere, which is no wish: what is loaded stays
   * @throws CubeError when the source cannot be read
   */
  read(label: string): Promise<Wish | undefined>;

  /** Why `read` gave nothing, and what to do. */
  whyNothing(label: string): Promise<string>;
}
