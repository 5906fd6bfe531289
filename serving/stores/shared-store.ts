/**
 * One store for several models. Two of them may serve the same version, as two channels of a bundle
 * do: the store keeps a version until the last model that prepared it has retired it.
 */
import type { LookupGroup, LookupSummary } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type {
  EmbeddingStore,
  RowCacheStats,
  ServerStats,
  ThreadNumbers,
} from './embedding-store.ts';
import type { StoreKind } from './store-choice.ts';

export class SharedStore {
  readonly store: EmbeddingStore;
  /** The models that have prepared each version, or are preparing it. */
  readonly #users = new Map<string, Set<EmbeddingStore>>();

  /** Takes ownership of `store`: `close` closes it. */
  constructor(store: EmbeddingStore) {
    this.store = store;
  }

  /** The store as one model uses it. Its `close` does nothing: others may use the store. */
  openForModel(): EmbeddingStore {
    return new CountedStore(this.store, this.#users);
  }

  close(): Promise<void> {
    return this.store.close();
  }
}

/** The store as one model uses it: says which versions it uses. */
class CountedStore implements EmbeddingStore {
  readonly #store: EmbeddingStore;
  readonly #users: Map<string, Set<EmbeddingStore>>;

  constructor(store: EmbeddingStore, users: Map<string, Set<EmbeddingStore>>) {
    this.#store = store;
    this.#users = users;
  }

  get kind(): StoreKind {
    return this.#store.kind;
  }

  get servers(): ServerStats | undefined {
    return this.#store.servers;
  }

  get hotRows(): RowCacheStats | undefined {
    return this.#store.hotRows;
  }

  get threads(): ThreadNumbers | undefined {
    return this.#store.threads;
  }

  async prepare(manifest: Manifest, signal?: AbortSignal): Promise<void> {
    const isNew = this.#addUse(manifest);
    try {
      await this.#store.prepare(manifest, signal);
    } catch (error) {
      if (isNew) this.#removeUse(manifest);
      throw error;
    }
  }

  lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
    span?: TraceSpan,
  ): Promise<LookupSummary> {
    return this.#store.lookup(manifest, groups, timeoutMs, span);
  }

  share(manifest: Manifest): readonly SharedVersion[] | undefined {
    return this.#store.share?.(manifest);
  }

  async retire(manifest: Manifest): Promise<void> {
    if (this.#removeUse(manifest)) await this.#store.retire(manifest);
  }

  async close(): Promise<void> {}

  /** @returns false if this model uses the version already */
  #addUse(manifest: Manifest): boolean {
    const key = versionKey(manifest);
    const users = this.#users.get(key) ?? new Set();
    if (users.has(this)) return false;
    this.#users.set(key, users.add(this));
    return true;
  }

  /** @returns whether no model uses the version any more */
  #removeUse(manifest: Manifest): boolean {
    const key = versionKey(manifest);
    const users = this.#users.get(key);
    users?.delete(this);
    if (users === undefined || users.size > 0) return false;
    this.#users.delete(key);
    return true;
  }
}
