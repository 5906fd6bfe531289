/** What a request is answered with. */

/** A float output of the graph, rowCount × width. */
export interface PredictionOutput {
  readonly name: string;
  readonly data: Float32Array;
  readonly width: number;
}

/** How the lookups of one slot went, over all rows. */
export interface SlotOutcomes {
  readonly slot: string;
  readonly hit: number;
  readonly unseen: number;
  readonly unavailable: number;
}

export interface Prediction {
  readonly rowCount: number;
  /** The graph's click output: rowCount × outputNum. */
  readonly output: Float32Array;
  readonly outputNum: number;
  /** Every float output of the graph, the click output first. */
  readonly outputs: readonly PredictionOutput[];
  /** The version of graph and tables. */
  readonly version: string;
  readonly unseen: number;
  readonly unavailable: number;
  readonly degraded: boolean;
  /** When asked for. */
  readonly slots?: readonly SlotOutcomes[];
  /** Waiting for the first batch; lookups and runs of the batches that the request was in. */
  readonly timings: {
    readonly queueMicros: number;
    readonly lookupMicros: number;
    readonly inferMicros: number;
  };
}
