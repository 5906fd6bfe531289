/**
 * The LOCAL store: the layers of a repository's versions in a database embedded in this process,
 * for models that fit on the disk of one machine. It is filled at the first start and kept between
 * starts.
 *
 * Invariants
 * - A version can be looked up in only when all of its layers are complete. Layers of an earlier
 *   start were also read through once.
 * - Equal layers (one contentId) are stored once, however many versions name them.
 * - A fill that was killed is repeated by the next `prepare`.
 * - `retire` removes the layers that neither a version of this process nor a version that a channel
 *   names needs. What it could not remove is removed by the next `retire`.
 *
 * A lookup asks for a key in the base and in those deltas whose filter contains it, all at once;
 * the newest answer counts. A lookup that has begun is not abandoned: the deadline only refuses
 * lookups that have expired before they begin.
 */
import { join } from 'node:path';
import {
  type LookupGroup,
  type LookupSummary,
  resolveTables,
} from '../../lib/core/lookup-group.ts';
import {
  type LayerRef,
  type Manifest,
  requireClear,
  type TableRef,
} from '../../lib/core/manifest.ts';
import { computeRowBytes, type RowDtype } from '../../lib/core/row-codec.ts';
import { makeFolder, removePath } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { forEachConcurrent } from '../../lib/repository/for-each-concurrent.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import { requireLayerForm } from '../../lib/store/layer-open.ts';
import { type EmbeddingStore, requireNotCancelled } from './embedding-store.ts';
import { FillProgress } from './fill-progress.ts';
import { DamagedDatabaseError, LayerDatabase, type LayerDescription } from './layer-database.ts';
import { type ChannelReader, collectLayers, findLayersInUse } from './layers-in-use.ts';
import { LocalKeys, type StoredChain } from './local-keys.ts';
import { CHECKSUM_BYTES, readLocalRow } from './local-row.ts';
import { answerExpired, RowOutput } from './row-output.ts';
import { VersionLifecycle } from './version-lifecycle.ts';

export interface LocalStoreOptions {
  readonly repository: Pick<Repository, 'fetchLayer' | 'listBundles'> & ChannelReader;
  /** Used by this store alone, and kept between starts. */
  readonly folder: string;
  readonly logger?: Logger;
  /** Called during `prepare` with the rows written so far and the rows that the version lacked. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

/** A version whose layers are all in the database. */
interface StoredVersion {
  readonly manifest: Manifest;
  /** The layers of each shard, by table. */
  readonly chains: ReadonlyMap<string, readonly StoredChain[]>;
}

interface MissingLayer {
  readonly table: TableRef;
  readonly layer: LayerRef;
}

/** Layers filled at a time: one is fetched or compacted while another is written. */
const FILLED_LAYERS = 2;
/** Scratch memory kept for the next lookups. */
const SCRATCH_MAX = 16;

export class LocalStore implements EmbeddingStore {
  readonly kind = 'local';
  readonly #options: LocalStoreOptions;
  /** Replaced when a damaged database is rebuilt. */
  #database: LayerDatabase;
  readonly #versions: VersionLifecycle<StoredVersion>;
  readonly #scratch: LocalKeys[] = [];

  private constructor(options: LocalStoreOptions, database: LayerDatabase) {
    this.#options = options;
    this.#database = database;
    this.#versions = new VersionLifecycle(`the local store in ${options.folder}`);
  }

  /**
   * Opens the folder's database. A damaged one is removed and filled again.
   * @throws CubeError CONFLICT when another process has the folder open
   */
  static async open(options: LocalStoreOptions): Promise<LocalStore> {
    makeFolder(options.folder);
    const database = await LayerDatabase.open(getDatabaseFolder(options)).catch((error: unknown) =>
      createAgain(options, error),
    );
    return new LocalStore(options, database);
  }

  async prepare(manifest: Manifest, signal?: AbortSignal): Promise<void> {
    requireClear(manifest, 'the LOCAL store on disk');
    return this.#versions.prepare(manifest, () =>
      this.#fill(manifest, signal).catch((error: unknown) =>
        this.#fillAgain(manifest, signal, error),
      ),
    );
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    const version = this.#versions.get(manifest);
    const tables = resolveTables(version.manifest, groups);
    if (timeoutMs <= 0) return answerExpired(manifest, groups, tables);
    const chains = groups.map(({ table }) => version.chains.get(table) ?? []);
    const keys = this.#scratch.pop() ?? new LocalKeys();
    try {
      let candidatesMax = 0;
      for (let g = 0; g < groups.length; g++) {
        candidatesMax += groups[g]!.count * findDepth(chains[g]!);
      }
      keys.reset(candidatesMax);
      for (let g = 0; g < groups.length; g++) {
        keys.addKeys(groups[g]!.keys, groups[g]!.count, chains[g]!);
      }
      const views = keys.toViews();
      const values = views.length === 0 ? [] : await this.#database.getMany(views);
      return {
        version: manifest.version,
        unseen: this.#gather(keys, values, groups, tables),
        unavailable: 0,
      };
    } finally {
      if (this.#scratch.length < SCRATCH_MAX) this.#scratch.push(keys);
    }
  }

  retire(manifest: Manifest): Promise<void> {
    return this.#versions.retire(manifest, () => this.#removeUnusedLayers());
  }

  /** Stops a fill in progress, which the next start completes, and closes the database. */
  async close(): Promise<void> {
    if (!this.#versions.close()) return;
    await this.#versions.waitIdle();
    await this.#database.close();
  }

  async #fill(manifest: Manifest, signal: AbortSignal | undefined): Promise<StoredVersion> {
    const { bundle, version } = manifest;
    const missing = this.#findMissing(manifest);
    const requireContinued = (): void => {
      this.#versions.requireOpen();
      requireNotCancelled(manifest, signal);
    };
    const { logger, onProgress } = this.#options;
    const progress = new FillProgress({
      subject: { bundle, version },
      rowsTotal: missing.reduce((sum, { layer }) => sum + layer.rows, 0),
      ...(logger && { logger }),
      ...(onProgress && { onProgress }),
    });
    try {
      const afterRows = (count: number): void => {
        requireContinued();
        progress.addRows(count);
      };
      await forEachConcurrent(missing, FILLED_LAYERS, async (layer) => {
        requireContinued();
        await this.#fillLayer(manifest, layer, afterRows, signal);
      });
      progress.finish();
    } catch (error) {
      progress.stop();
      throw error;
    }
    removePath(this.#incomingFolder());
    await this.#verify(manifest, requireContinued);
    return { manifest, chains: this.#readChains(manifest) };
  }

  /** Fills a new database if the old one is damaged and no version is served from it. */
  async #fillAgain(
    manifest: Manifest,
    signal: AbortSignal | undefined,
    error: unknown,
  ): Promise<StoredVersion> {
    if (this.#versions.hasLoaded || !(error instanceof DamagedDatabaseError)) throw error;
    await this.#database.close();
    this.#database = await createAgain(this.#options, error);
    return this.#fill(manifest, signal);
  }

  async #fillLayer(
    manifest: Manifest,
    { table, layer }: MissingLayer,
    afterRows: (rows: number) => void,
    signal: AbortSignal | undefined,
  ): Promise<void> {
    const file = join(this.#incomingFolder(), `${layer.contentId}.cube`);
    makeFolder(this.#incomingFolder());
    await this.#options.repository.fetchLayer(
      manifest.bundle,
      table.name,
      layer,
      file,
      signal && { signal },
    );
    requireLayerForm(manifest, file);
    const content = { rows: readLayerRows(file), deleted: readDeletedKeys(file) };
    await this.#database.fill(describeLayer(table, layer), content, afterRows);
    removePath(file);
  }

  /**
   * Reads the layers of an earlier start through once, so that a damaged row is never taken for a
   * missing one.
   */
  async #verify(manifest: Manifest, requireContinued: () => void): Promise<void> {
    for (const table of manifest.tables) {
      for (const layer of table.shards.flat()) {
        const description = describeLayer(table, layer);
        await this.#database.verify(description, requireContinued);
      }
    }
  }

  /** The layers of a version that are not complete, each once. */
  #findMissing(manifest: Manifest): MissingLayer[] {
    const missing = new Map<string, MissingLayer>();
    for (const table of manifest.tables) {
      for (const layer of table.shards.flat()) {
        const { contentId, rows } = layer;
        if (this.#database.findComplete(contentId)?.rows !== rows) {
          missing.set(contentId, { table, layer });
        }
      }
    }
    return [...missing.values()];
  }

  #readChains(manifest: Manifest): Map<string, readonly StoredChain[]> {
    const readChain = (layers: readonly LayerRef[]): StoredChain => {
      const newestFirst = layers.map(({ contentId }) => contentId).reverse();
      return {
        numbers: Uint32Array.from(newestFirst, (id) => this.#database.getNumber(id)),
        filters: newestFirst.slice(0, -1).map((id) => this.#database.getFilter(id)),
      };
    };
    return new Map(manifest.tables.map(({ name, shards }) => [name, shards.map(readChain)]));
  }

  async #removeUnusedLayers(): Promise<void> {
    const { repository, logger } = this.#options;
    // Models of other bundles may share the folder, and may not have been prepared yet.
    const bundles = await repository.listBundles();
    const inUse = await findLayersInUse(repository, bundles, this.#versions.manifests());
    // Versions may have been asked for while the channels were read.
    for (const manifest of this.#versions.manifests()) collectLayers(manifest, inUse);
    for (const { contentId, rows } of this.#database.listLayers()) {
      if (inUse.has(contentId)) continue;
      await this.#database.remove(contentId);
      logger?.info({ contentId, rows }, 'layer removed');
    }
  }

  /** Writes rows and outcomes. @returns the number of unseen keys */
  #gather(
    keys: LocalKeys,
    values: readonly (Uint8Array | undefined)[],
    groups: readonly LookupGroup[],
    tables: readonly TableRef[],
  ): number {
    let unseen = 0;
    let position = 0;
    let candidate = 0;
    for (let g = 0; g < groups.length; g++) {
      const table = tables[g]!;
      const output = new RowOutput(groups[g]!, table);
      for (let i = 0; i < groups[g]!.count; i++, position++) {
        const end = keys.ends[position]!;
        while (candidate < end && values[keys.candidates[candidate]!] === undefined) candidate++;
        if (candidate === end) output.setUnseen(i);
        else {
          const unique = keys.candidates[candidate]!;
          if (!readValue(values[unique]!, keys.words, 3 * unique, output, i)) {
            throw new DamagedDatabaseError(this.#database.folder, `a row of table ${table.name}`);
          }
        }
        candidate = end;
      }
      unseen += output.unseen;
    }
    return unseen;
  }

  /** Where fetched layer files are until the database has their rows. */
  #incomingFolder(): string {
    return join(this.#options.folder, 'incoming');
  }
}

function getDatabaseFolder({ folder }: LocalStoreOptions): string {
  return join(folder, 'rows');
}

/**
 * Removes a damaged database, which nothing else has open, and creates an empty one.
 * @throws the error, if it is not about damage
 */
async function createAgain(options: LocalStoreOptions, error: unknown): Promise<LayerDatabase> {
  if (!(error instanceof DamagedDatabaseError)) throw error;
  const folder = getDatabaseFolder(options);
  options.logger?.warn(
    { folder, reason: error.message },
    'the local store is damaged; it is removed and filled again from the repository',
  );
  removePath(folder);
  return LayerDatabase.open(folder);
}

function describeLayer(
  { dtype, dim }: TableRef,
  { contentId, rows, kind }: LayerRef,
): LayerDescription {
  return { contentId, rows, kind, rowBytes: computeRowBytes(dtype as RowDtype, dim) };
}

/** The number of layers of the deepest shard. */
function findDepth(chains: readonly StoredChain[]): number {
  let depth = 1;
  for (const { numbers } of chains) depth = Math.max(depth, numbers.length);
  return depth;
}

/**
 * Writes the value that decides key i of a group: a row, or that the key was deleted.
 * @param words layer, low and high word of the key, from index `wordsAt` on
 * @returns false when the value is damaged
 */
function readValue(
  value: Uint8Array,
  words: Uint32Array,
  wordsAt: number,
  output: RowOutput,
  i: number,
): boolean {
  const layer = words[wordsAt]!;
  const low = words[wordsAt + 1]!;
  const high = words[wordsAt + 2]!;
  const isDeleted = value.length === CHECKSUM_BYTES;
  const rowWords = isDeleted ? 0 : output.rowWords;
  const offset = output.getWordOffset(i);
  if (!readLocalRow(value, output.words, offset, rowWords, layer, low, high)) return false;
  if (isDeleted) output.setUnseen(i);
  else output.setHit(i);
  return true;
}
