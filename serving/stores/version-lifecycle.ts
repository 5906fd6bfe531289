/**
 * The life cycle of versions in the stores that keep tables on this machine: which versions are
 * loaded, and the order of loads and removals. The stores say how a version is loaded and removed.
 *
 * Invariants
 * - A version is loaded once, however often it is prepared. After a failure, the next `prepare`
 *   tries again.
 * - Loads and removals run one after another.
 * - A version counts as needed from the call of `prepare` on. So the removal of another version,
 *   which may wait in the same queue, keeps what both share.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import { makeAbsentError } from './embedding-store.ts';

interface Entry<Loaded> {
  readonly manifest: Manifest;
  /** Undefined until the load has ended. */
  loaded: Loaded | undefined;
  /** Settles when the load has ended. */
  ready: Promise<void>;
}

export class VersionLifecycle<Loaded> {
  readonly #storeName: string;
  readonly #entries = new Map<string, Entry<Loaded>>();
  /** The last load or removal in the queue. */
  #lastTask: Promise<unknown> = Promise.resolve();
  #isClosed = false;

  /** @param storeName names the store in errors */
  constructor(storeName: string) {
    this.#storeName = storeName;
  }

  /** @throws CubeError STOPPING after `close` */
  requireOpen(): void {
    if (this.#isClosed) throw new CubeError('STOPPING', `${this.#storeName} is closed`);
  }

  /**
   * Loads the version when the loads and removals before it have ended.
   * @throws CubeError UNSUPPORTED for tables without embeddings; the errors of `load`
   */
  async prepare(manifest: Manifest, load: () => Promise<Loaded>): Promise<void> {
    this.requireOpen();
    requireEmbeddings(manifest);
    const key = versionKey(manifest);
    const known = this.#entries.get(key);
    if (known !== undefined) return known.ready;
    const entry: Entry<Loaded> = { manifest, loaded: undefined, ready: Promise.resolve() };
    this.#entries.set(key, entry);
    entry.ready = this.#enqueue(async () => {
      entry.loaded = await load();
    }).catch((error: unknown) => {
      if (this.#entries.get(key) === entry) this.#entries.delete(key);
      throw error;
    });
    return entry.ready;
  }

  /** @throws CubeError VERSION_ABSENT when the version is not loaded, STOPPING after `close` */
  get(manifest: Manifest): Loaded {
    this.requireOpen();
    const loaded = this.#entries.get(versionKey(manifest))?.loaded;
    if (loaded !== undefined) return loaded;
    const prepared = [...this.#entries].filter(([, entry]) => entry.loaded !== undefined);
    throw makeAbsentError(
      manifest,
      prepared.map(([key]) => key),
    );
  }

  /** Whether the version is loaded, or being loaded. */
  has(manifest: Manifest): boolean {
    return this.#entries.has(versionKey(manifest));
  }

  /** The manifests of all versions that are loaded, or being loaded. */
  manifests(): Manifest[] {
    return Array.from(this.#entries.values(), ({ manifest }) => manifest);
  }

  get hasLoaded(): boolean {
    return [...this.#entries.values()].some(({ loaded }) => loaded !== undefined);
  }

  /**
   * Forgets the version at once, and calls `remove` when the loads and removals before it have
   * ended.
   */
  async retire(manifest: Manifest, remove: () => Promise<void>): Promise<void> {
    this.requireOpen();
    this.#entries.delete(versionKey(manifest));
    await this.#enqueue(remove);
  }

  /** Refuses all further calls. @returns false when it was closed before */
  close(): boolean {
    if (this.#isClosed) return false;
    this.#isClosed = true;
    return true;
  }

  /** Settles when the last load or removal has ended. Never rejects. */
  async waitIdle(): Promise<void> {
    await this.#lastTask;
  }

  #enqueue<T>(task: () => Promise<T>): Promise<T> {
    const result = this.#lastTask.then(task);
    this.#lastTask = result.catch(() => undefined);
    return result;
  }
}

/** @throws CubeError UNSUPPORTED for a table whose values have any length */
function requireEmbeddings(manifest: Manifest): void {
  const values = manifest.tables.find(({ dtype }) => dtype === 'bytes');
  if (values === undefined) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${manifest.bundle} ${manifest.version}: table ${values.name} ` +
      `has values of any length (dtype bytes), ` +
      'which are not embeddings',
  );
}
