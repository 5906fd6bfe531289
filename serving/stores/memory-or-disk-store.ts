/**
 * The default store: the tables of a version are in memory if they fit beside those already loaded,
 * else in the database on this machine's disk, which is opened when the first version needs it. The
 * choice is logged, and lasts until the version is retired.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { LookupGroup, LookupSummary } from '../../lib/core/lookup-group.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type { EmbeddingStore, ThreadNumbers } from './embedding-store.ts';
import type { LocalStore } from './local-store.ts';
import type { MemoryStore } from './memory-store.ts';

export class MemoryOrDiskStore implements EmbeddingStore {
  readonly kind = 'memory';
  readonly threads: ThreadNumbers;
  readonly #memory: MemoryStore;
  readonly #openDisk: () => Promise<LocalStore>;
  readonly #logger: Logger;
  readonly #onDisk = new Set<string>();
  #disk: Promise<LocalStore> | undefined;

  /** Takes ownership of `memory` and of the store that `openDisk` opens: `close` closes both. */
  constructor(memory: MemoryStore, openDisk: () => Promise<LocalStore>, logger: Logger) {
    this.#memory = memory;
    this.threads = memory.threads;
    this.#openDisk = openDisk;
    this.#logger = logger;
  }

  async prepare(manifest: Manifest, signal?: AbortSignal): Promise<void> {
    const key = versionKey(manifest);
    if (this.#onDisk.has(key)) return (await this.#openDiskOnce()).prepare(manifest, signal);
    try {
      await this.#memory.prepare(manifest, signal);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (code !== 'TOO_LARGE' && code !== 'OVERLOADED') throw error;
      const { bundle, version } = manifest;
      this.#logger.warn({ bundle, version, why: message }, 'tables are kept on disk');
      await (await this.#openDiskOnce()).prepare(manifest, signal);
      this.#onDisk.add(key);
    }
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
    span?: TraceSpan,
  ): Promise<LookupSummary> {
    return (await this.#findStore(manifest)).lookup(manifest, groups, timeoutMs, span);
  }

  share(manifest: Manifest): readonly SharedVersion[] | undefined {
    return this.#onDisk.has(versionKey(manifest)) ? undefined : this.#memory.share(manifest);
  }

  async retire(manifest: Manifest): Promise<void> {
    const store = await this.#findStore(manifest);
    this.#onDisk.delete(versionKey(manifest));
    await store.retire(manifest);
  }

  async close(): Promise<void> {
    const disk = await this.#disk?.catch(() => undefined);
    await Promise.all([this.#memory.close(), disk?.close()]);
  }

  #findStore(manifest: Manifest): EmbeddingStore | Promise<EmbeddingStore> {
    return this.#onDisk.has(versionKey(manifest)) ? this.#openDiskOnce() : this.#memory;
  }

  /**
   * Opens the database on disk. After a failure the next call tries again: another process may have
   * had it open.
   */
  #openDiskOnce(): Promise<LocalStore> {
    this.#disk ??= this.#openDisk().catch((error: unknown) => {
      this.#disk = undefined;
      throw error;
    });
    return this.#disk;
  }
}
