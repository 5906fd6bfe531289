/**
 * The contract of the stores that give serving its embedding rows. One exported suite
 * (test/serving/stores/support/conformance.ts) runs against each store that has rows.
 *
 * Invariants
 * - A lookup names its version through the manifest, and is answered by exactly that version, or
 *   fails.
 * - A key that is not in a table is normal: its outcome is unseen, and its row is the table's
 *   default row.
 * - When a part of the store is down, its keys are unavailable, never unseen.
 */
import type { ReplicaStats } from '../../lib/client/replica.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LookupGroup, LookupSummary } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type { StoreKind } from './store-choice.ts';

/** Counts of the row cache in front of a store since it was opened. */
export interface RowCacheStats {
  readonly hits: number;
  readonly misses: number;
  /** Rows in the cache now. */
  readonly rows: number;
  /** The most rows that it can have. */
  readonly capacity: number;
  readonly bytes: number;
}

/** Counts of the servers that a store asks, and of the requests to them since it was opened. */
export interface ServerStats {
  /** Servers that answer nothing and are only probed. */
  readonly circuitsOpen: number;
  readonly retries: number;
  readonly backups: number;
  /** Retries and backups not sent because their budget was spent. */
  readonly refusals: number;
  /** The servers, where the store knows each of them. */
  readonly replicas?: readonly ReplicaStats[];
}

export interface EmbeddingStore {
  readonly kind: StoreKind;
  /** Present when the store asks other servers. */
  readonly servers?: ServerStats | undefined;
  /** Present when a row cache is in front of the store. */
  readonly hotRows?: RowCacheStats | undefined;

  /**
   * Makes the version ready for lookups: MEMORY and LOCAL load it, REMOTE and REDIS check that all
   * of it is there. Idempotent.
   * @param signal cancels a long load; what was loaded so far may stay, and speeds up the next one
   * @throws CubeError NOT_READY naming what is missing, STOPPING after a cancellation
   */
  prepare(manifest: Manifest, signal?: AbortSignal): Promise<void>;

  /**
   * Fills the rows and outcomes of every group from the manifest's version.
   * @param timeoutMs for the whole call; keys without an answer by then are unavailable
   * @param span the parent of the spans of calls to other servers, if the lookup is traced
   * @throws CubeError VERSION_ABSENT when the version was not prepared, or was retired
   */
  lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
    span?: TraceSpan,
  ): Promise<LookupSummary>;

  /**
   * The memories of a prepared version, one for each shard, in which model workers look up by
   * themselves. Each worker uses its own number of `threads`, and must have detached before
   * `retire`. Absent or undefined: only `lookup` answers.
   * @throws CubeError VERSION_ABSENT
   */
  share?(manifest: Manifest): readonly SharedVersion[] | undefined;
  /** Present when `share` is. */
  readonly threads?: ThreadNumbers | undefined;

  /** The version is not needed any more: the store may remove what only this version used. */
  retire(manifest: Manifest): Promise<void>;

  close(): Promise<void>;
}

/**
 * Numbers 1 … capacity, each used by one model worker at a time: the area of the shared memories
 * that the worker looks up in. A worker takes the lowest free number and gives it back when it has
 * ended.
 */
export class ThreadNumbers {
  readonly capacity: number;
  readonly #used = new Set<number>();

  constructor(capacity: number) {
    this.capacity = capacity;
  }

  /** @throws CubeError OVERLOADED when every number is in use */
  acquire(): number {
    for (let number = 1; number <= this.capacity; number++) {
      if (this.#used.has(number)) continue;
      this.#used.add(number);
      return number;
    }
    throw new CubeError(
      'OVERLOADED',
      `all ${this.capacity} model workers that the memory store was opened for are in use; ` +
        'serve fewer versions or instances',
    );
  }

  release(number: number): void {
    this.#used.delete(number);
  }
}

/** @throws CubeError STOPPING once the load of a version was cancelled */
export function requireNotCancelled(
  { bundle, version }: Pick<Manifest, 'bundle' | 'version'>,
  signal: AbortSignal | undefined,
): void {
  if (!signal?.aborted) return;
  const text = `the load of ${bundle} ${version} was cancelled: it is not wanted any more`;
  throw new CubeError('STOPPING', text);
}

/** @param prepared keys of the versions that are ready for lookups */
export function makeAbsentError(manifest: Manifest, prepared: Iterable<string>): CubeError {
  const names = [...prepared].join(', ') || 'none';
  return new CubeError(
    'VERSION_ABSENT',
    `${manifest.bundle} ${manifest.version} was not prepared in this store (prepared: ${names})`,
  );
}
