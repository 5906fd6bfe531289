/** An embedding store made of Maps, with failures that are hard to cause in a real store. */

import { CubeError } from '../../../lib/core/errors.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import {
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../../lib/core/lookup-group.ts';
import type { Manifest } from '../../../lib/core/manifest.ts';
import type { EmbeddingStore } from '../../../serving/stores/embedding-store.ts';
import type { ToyBundle } from './toy-bundle.ts';

export class FakeStore implements EmbeddingStore {
  readonly kind = 'remote';
  readonly bundles: readonly ToyBundle[];
  /** Whether the shard of a key is unavailable. */
  isDown: (key: bigint) => boolean = () => false;
  /** The version that lookups report, instead of the requested one. */
  reportedVersion: string | undefined;
  /** Lookups wait for this promise. */
  lookupGate: Promise<void> = Promise.resolve();
  /** Distinct keys of each lookup, by table. */
  readonly lookups: number[][] = [];
  readonly timeoutsMs: number[] = [];
  /** Whether unavailable keys were waited for until the deadline. */
  deadlineExceeded = false;
  readonly retired: string[] = [];
  /** Every version passed to `prepare`, in order. */
  readonly prepared: string[] = [];
  /** Versions that are not available on every shard. */
  readonly missingVersions: Set<string> = new Set();

  constructor(bundles: readonly ToyBundle[]) {
    this.bundles = bundles;
  }

  /** Versions that can never be loaded. */
  readonly brokenVersions: Set<string> = new Set();
  /** `prepare` waits for this promise. */
  prepareGate: Promise<void> = Promise.resolve();

  async prepare({ version }: Manifest): Promise<void> {
    this.prepared.push(version);
    await this.prepareGate;
    if (this.brokenVersions.has(version)) throw new CubeError('CORRUPT', `${version} is damaged`);
    if (this.missingVersions.has(version)) throw new CubeError('NOT_READY', `${version} is absent`);
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    this.timeoutsMs.push(timeoutMs);
    await this.lookupGate;
    const bundle = this.bundles.find(({ options }) => options.version === manifest.version)!;
    this.lookups.push(groups.map(({ count }) => count));
    let unseen = 0;
    let unavailable = 0;
    for (const { table: name, keys, count, rows, outcomes } of groups) {
      const table = bundle.tables.find((candidate) => candidate.name === name)!;
      for (let i = 0; i < count; i++) {
        const key = keyToBigint(keys, i);
        const row = table.rows.get(key);
        const down = this.isDown(key);
        rows.set(down || row === undefined ? table.defaultRow : row, i * table.dim);
        if (down) unavailable++;
        else if (row === undefined) unseen++;
        const outcome = row === undefined ? OUTCOME_UNSEEN : OUTCOME_HIT;
        outcomes[i] = down ? OUTCOME_UNAVAILABLE : outcome;
      }
    }
    const reason = 'shard 1 of 2: 127.0.0.1:9: connection refused';
    const { deadlineExceeded } = this;
    const version = this.reportedVersion ?? manifest.version;
    return { version, unseen, unavailable, reason, deadlineExceeded };
  }

  async retire({ version }: Manifest): Promise<void> {
    this.retired.push(version);
  }

  async close(): Promise<void> {}
}
