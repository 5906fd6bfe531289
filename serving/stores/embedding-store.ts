/**
 * Where serving takes embedding rows from. LOCAL and REMOTE answer alike: one exported suite
 * (test/serving/stores/conformance.ts) runs in full against each.
 *
 * Invariants: a lookup names its version through the manifest and is answered by exactly that version, or fails;
 * a key that is not in a table is data (outcome unseen, the default row); a part of the store that is down is
 * outcome unavailable, never unseen.
 */
import type { LookupGroup, LookupSummary } from '../../lib/client/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';

export interface EmbeddingStore {
  readonly kind: 'local' | 'remote';

  /**
   * Makes the version answerable: LOCAL fills itself, REMOTE asks the shards. Idempotent.
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

  /** The version is not needed any more; what only it used may go. */
  retire(manifest: Manifest): Promise<void>;

  close(): Promise<void>;
}
