/** What a model's versions do, as `/v1/status` and the doors tell it. */

export interface LoadFailure {
  readonly version: string;
  readonly code: string;
  readonly message: string;
  readonly at: string;
  readonly attempts: number;
}

export interface LabelStatus {
  /** The channel. */
  readonly channel: string;
  /** The version that answers, and since when. */
  readonly active: string | undefined;
  readonly activeSince: string | undefined;
  /** The version that the channel wants. */
  readonly target: string | undefined;
  /** Why nothing is served, or why the channel cannot be followed. */
  readonly problem: string | undefined;
}

/** The label that answers requests which name none, beside what concerns the whole model. */
export interface WatcherStatus extends LabelStatus {
  readonly model: string;
  /** Every label, the first included. */
  readonly channels: readonly LabelStatus[];
  readonly loading: string | undefined;
  /** What is being done for it: `tables`, `model instances`, `warm-up, row 3 of 12`, `warm-up, batches of 8`. */
  readonly loadingStep: string | undefined;
  /** Loaded whole: those that answer, and those that a rollback leads to. */
  readonly held: readonly string[];
  readonly failed: readonly LoadFailure[];
  /** Unloaded by hand: nothing is followed until it is loaded again. */
  readonly unloaded: boolean;
}
