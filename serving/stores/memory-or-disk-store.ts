/**
 * The store of models that chose none: a version's tables in memory where they fit beside those held, else in the database on
 * this machine's disk, which is opened when the first version needs it. Where a version went is logged, and stays so until it is
 * retired.
 */
import type { LookupGroup, LookupSummary } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { SharedVersion } from '../../lib/store/shared-version.ts';
import type { EmbeddingStore } from './embedding-store.ts';
import type { LocalStore } from './local-store.ts';
import type { MemoryStore } from './memory-store.ts';
import type { ThreadNumbers } from './thread-numbers.ts';

export class MemoryOrDiskStore implements EmbeddingStore {
  readonly kind = 'memory';
  readonly threads: ThreadNumbers;
  readonly #memory: MemoryStore;
  readonly #openDisk: () => Promise<LocalStore>;
  readonly #logger: Logger;
  readonly #onDisk = new Set<string>();
  #disk: Promise<LocalStore> | undefined;

  /** @param memory owned from here on, as is what `openDisk` opens: `close` closes them */
  constructor(memory: MemoryStore, openDisk: () => Promise<LocalStore>, logger: Logger) {
    this.#memory = memory;
    this.threads = memory.threads;
    this.#openDisk = openDisk;
    this.#logger = logger;
  }

  async prepare(manifest: Manifest): Promise<void> {
    if (this.#onDisk.has(versionName(manifest)))
      return (await this.#openedDisk()).prepare(manifest);
    try {
      await this.#memory.prepare(manifest);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      if (code !== 'TOO_LARGE' && code !== 'OVERLOADED') throw error;
      const { bundle, version } = manifest;
      this.#logger.warn({ bundle, version, why: message }, 'tables are kept on disk');
      await (await this.#openedDisk()).prepare(manifest);
      this.#onDisk.add(versionName(manifest));
    }
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    return (await this.#storeOf(manifest)).lookup(manifest, groups, timeoutMs);
  }

  share(manifest: Manifest): readonly SharedVersion[] | undefined {
    return this.#onDisk.has(versionName(manifest)) ? undefined : this.#memory.share(manifest);
  }

  async retire(manifest: Manifest): Promise<void> {
    const store = await this.#storeOf(manifest);
    this.#onDisk.delete(versionName(manifest));
    await store.retire(manifest);
  }

  async close(): Promise<void> {
    const disk = await this.#disk?.catch(() => undefined);
    await Promise.all([this.#memory.close(), disk?.close()]);
  }

  #storeOf(manifest: Manifest): EmbeddingStore | Promise<EmbeddingStore> {
    return this.#onDisk.has(versionName(manifest)) ? this.#openedDisk() : this.#memory;
  }

  /** One that could not be opened is tried again: another process may have had it. */
  #openedDisk(): Promise<LocalStore> {
    this.#disk ??= this.#openDisk().catch((error: unknown) => {
      this.#disk = undefined;
      throw error;
    });
    return this.#disk;
  }
}

function versionName({ bundle, version }: Manifest): string {
  return `${bundle}/${version}`;
}
