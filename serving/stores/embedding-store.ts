/**
 * Where serving takes embedding rows from. All stores answer alike: one exported suite
 * (test/serving/stores/conformance.ts) runs in full against each that has rows.
 *
 * Invariants: a lookup names its version through the manifest and is answered by exactly that version, or fails;
 * a key that is not in a table is data (outcome unseen, the default row); a part of the store that is down is
 * outcome unavailable, never unseen.
 */
import type { LookupGroup, LookupSummary } from '../../lib/client/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type { StoreKind } from './store-choice.ts';
import type { ThreadNumbers } from './thread-numbers.ts';

/** What a cache of rows in front of a store did since it was opened. */
export interface HotRowsStats {
  readonly hits: number;
  readonly misses: number;
  /** Rows held now, and how many it has room for. */
  readonly rows: number;
  readonly capacity: number;
  readonly bytes: number;
}

export interface EmbeddingStore {
  readonly kind: StoreKind;
  /** Of the cache in front of it, when there is one. */
  readonly hotRows?: HotRowsStats;

  /**
   * Makes the version answerable: MEMORY and LOCAL fill themselves, REMOTE and REDIS ask whether all of it is there. Idempotent.
   * @throws CubeError NOT_READY naming what is missing
   */
  prepare(manifest: Manifest): Promise<void>;

  /**
   * Fills rows and outcomes of every group from the manifest's version.
   * @param timeoutMs for the whole call; keys without an answer by then are unavailable
   * @throws CubeError VERSION_ABSENT when the version was not prepared (or was retired)
   */
  lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary>;

  /**
   * The memories of a prepared version, shard by shard, when model workers may look up in them by themselves; each under a number of
   * `threads`, and none of them after `retire`. Absent: only `lookup` answers.
   * @throws CubeError VERSION_ABSENT
   */
  share?(manifest: Manifest): readonly SharedVersion[] | undefined;
  /** Where `share` is: who looks up in the memories. */
  readonly threads?: ThreadNumbers;

  /** The version is not needed any more; what only it used may go. */
  retire(manifest: Manifest): Promise<void>;

  close(): Promise<void>;
}
