/** The REMOTE store: the shards of a fleet, through `CubeClient`. */
import type { CubeClient } from '../../lib/client/cube-client.ts';
import type { LookupGroup, LookupSummary } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { EmbeddingStore } from './embedding-store.ts';

/** How long `prepare` waits for every shard to answer whether it holds a version. */
const HOLDS_TIMEOUT_MS = 5_000;

export class RemoteStore implements EmbeddingStore {
  readonly kind = 'remote';
  readonly #client: CubeClient;
  readonly #prepared = new Set<string>();

  /** @param client owned by the store from here on: `close` closes it */
  constructor(client: CubeClient) {
    this.#client = client;
  }

  async prepare(manifest: Manifest): Promise<void> {
    const { held, missing } = await this.#client.holds(manifest, HOLDS_TIMEOUT_MS);
    if (!held) {
      throw new CubeError(
        'NOT_READY',
        `${manifest.bundle} ${manifest.version} is not on every shard: ${missing}`,
      );
    }
    this.#prepared.add(versionKey(manifest));
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    if (!this.#prepared.has(versionKey(manifest))) {
      throw new CubeError(
        'VERSION_ABSENT',
        `${manifest.bundle} ${manifest.version} was not prepared in this store`,
      );
    }
    return this.#client.lookup(manifest, groups, timeoutMs);
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#prepared.delete(versionKey(manifest));
  }

  async close(): Promise<void> {
    this.#prepared.clear();
    this.#client.close();
  }
}

function versionKey(manifest: Manifest): string {
  return `${manifest.bundle}/${manifest.version}`;
}
