/** An embedding store in plain Maps for tests of the predictor, with the failures that a real store is hard to bring to. */
import {
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { EmbeddingStore } from '../../serving/stores/embedding-store.ts';
import type { ToyBundle } from './toy-bundle.ts';

export class MemoryStore implements EmbeddingStore {
  readonly kind = 'remote';
  readonly bundles: readonly ToyBundle[];
  /** Keys of one shard that nobody answers for. */
  isDown: (key: bigint) => boolean = () => false;
  /** Answers as if from this version. */
  pretend: string | undefined;
  /** Lookups wait for this. */
  gate: Promise<void> = Promise.resolve();
  /** Distinct keys of each lookup, by table. */
  readonly lookups: number[][] = [];
  readonly retired: string[] = [];
  /** Versions that were asked for, each time. */
  readonly prepared: string[] = [];
  /** Versions that not every shard has. */
  readonly absent: Set<string> = new Set();

  constructor(bundles: readonly ToyBundle[]) {
    this.bundles = bundles;
  }

  async prepare({ version }: Manifest): Promise<void> {
    this.prepared.push(version);
    if (this.absent.has(version)) throw new CubeError('NOT_READY', `${version} is absent`);
  }

  async lookup(manifest: Manifest, groups: readonly LookupGroup[]): Promise<LookupSummary> {
    await this.gate;
    const bundle = this.bundles.find(({ wish }) => wish.version === manifest.version)!;
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
    return { version: this.pretend ?? manifest.version, unseen, unavailable, reason };
  }

  async retire({ version }: Manifest): Promise<void> {
    this.retired.push(version);
  }

  async close(): Promise<void> {}
}
