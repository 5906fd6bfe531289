/**
 * What bundles and plain models have in common: a version is loaded, used, drained and retired as
 * one unit. A request acquires it from start to end, so it finishes with the version it started
 * with.
 */
import type { BatchingOptions } from './engine-options.ts';
import type { EngineStats } from './engine-stats.ts';
import type { InstancePlacement } from './instance-pool.ts';

/** What admission asks of an engine. */
export interface EngineLoad {
  /**
   * The expected milliseconds until rows of this priority that arrive now are in a batch.
   * @param isHead the body of the request has not arrived
   */
  estimateWaitMs(priority?: number, isHead?: boolean): number;
  /**
   * Counts a request of the usual size, whether or not it is admitted.
   * @returns the work that was offered lately, relative to what the engine can do: above 1 is too
   *   much; 0 while no rate is known
   */
  recordOffer(): number;
  /** The expected milliseconds for so many rows; 0 while no rate is known. */
  estimateRowsMs(rowCount: number): number;
  /** Counts a request whose body still arrives. @returns a function to call once it has */
  announce(): () => void;
}

export interface VersionUse {
  /** The bundle or model. */
  readonly name: string;
  readonly version: string;
  readonly stats: EngineStats;
  readonly batcher: EngineLoad;
  readonly batching: BatchingOptions;
  readonly pool: {
    readonly aliveInstances: number;
    readonly workerDeaths: number;
    readonly queuedBatches: number;
    /** The execution providers of the instances. */
    readonly placements: readonly InstancePlacement[];
  };

  /** @throws CubeError NOT_READY naming what is missing */
  checkAvailable(): Promise<void>;
  /** Keeps the version in use for a request; `release` must follow. */
  acquire(): void;
  release(): void;
  /** Waits for the requests in progress, then stops the graph instances. */
  close(): Promise<void>;
  /** Closes the version and releases what only it used. */
  retire(): Promise<void>;
}
