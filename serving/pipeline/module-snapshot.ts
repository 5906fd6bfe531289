/** The text of a pipeline's file and of its imports, which worker threads run. */

/** A file as it was read, compiled where it had to be. */
export interface ModuleSource {
  readonly url: string;
  /** As Node's module loader names it. */
  readonly format: string;
  readonly text: string;
}

export interface ModuleSnapshot {
  /** The URL of the file itself. */
  readonly url: string;
  readonly sources: readonly ModuleSource[];
}
