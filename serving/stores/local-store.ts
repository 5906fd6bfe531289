/**
 * The LOCAL store: the layers of a repository's versions in a database embedded in this process, for a model that one
 * machine can hold (on disk, if not in memory). Filled at the first start, kept between starts.
 *
 * Invariants: a version is answerable only when all of its layers are complete and, if they are of an earlier start, were
 * read through; equal layers (one contentId) are
 * stored once however many versions name them; a fill that was killed is done again by the next `prepare`; what is
 * removed at `retire` is what neither a version wanted by this process names nor one that a channel wants: the next
 * start, or the next attempt, finds it. Fills and removals happen one after another.
 *
 * A key is asked for in the base and in those deltas whose filter knows it, all at once; the newest answer counts.
 *
 * A local read is not abandoned half-way: the deadline only refuses work that has expired before it begins.
 */
import { join } from 'node:path';
import { type LookupGroup, type LookupSummary, tablesOf } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { type RowDtype, rowBytesOf } from '../../lib/core/row-codec.ts';
import { makeFolder, removePath } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import type { EmbeddingStore } from './embedding-store.ts';
import { FillProgress } from './fill-progress.ts';
import { damaged, LayerDatabase, type LayerShape } from './layer-database.ts';
import { LocalKeys, type StoredChain } from './local-keys.ts';
import { CHECKSUM_BYTES, readLocalRow } from './local-row.ts';
import { RowOutput, setAllUnavailable } from './row-output.ts';
import { addLayers, type WantedVersions, wantedLayers } from './wanted-layers.ts';

export interface LocalStoreOptions {
  readonly repository: Pick<Repository, 'fetchLayer' | 'bundles'> & WantedVersions;
  /** The store's own; kept between starts. */
  readonly folder: string;
  readonly logger?: Logger;
  /** During `prepare`: rows written so far, of all that this version is short of. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

/** A version that this process wants; its tables are known when all layers are there. */
interface WantedVersion {
  readonly manifest: Manifest;
  /** Table → layers of each shard; undefined until prepared. */
  chains: ReadonlyMap<string, readonly StoredChain[]> | undefined;
  ready: Promise<void>;
}

interface MissingLayer {
  readonly table: TableRef;
  readonly layer: LayerRef;
}

const SCRATCH_KEPT_MAX = 16;

export class LocalStore implements EmbeddingStore {
  readonly kind = 'local';
  readonly #options: LocalStoreOptions;
  readonly #database: LayerDatabase;
  readonly #wanted = new Map<string, WantedVersion>();
  readonly #scratch: LocalKeys[] = [];
  /** The last of the fills and removals, which run one after another. */
  #work: Promise<unknown> = Promise.resolve();
  #closed = false;

  private constructor(options: LocalStoreOptions, database: LayerDatabase) {
    this.#options = options;
    this.#database = database;
  }

  /** @throws CubeError CONFLICT when another process has the folder open, CORRUPT when the database is damaged */
  static async open(options: LocalStoreOptions): Promise<LocalStore> {
    makeFolder(options.folder);
    const database = await LayerDatabase.open(join(options.folder, 'rows'));
    return new LocalStore(options, database);
  }

  async prepare(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    requireRows(manifest);
    const name = versionName(manifest);
    const known = this.#wanted.get(name);
    if (known !== undefined) return known.ready;
    // Wanted from here on, so that a retirement of another version waiting in line keeps what is shared.
    const version: WantedVersion = { manifest, chains: undefined, ready: Promise.resolve() };
    this.#wanted.set(name, version);
    version.ready = this.#enqueue(() => this.#fill(version)).catch((error: unknown) => {
      if (this.#wanted.get(name) === version) this.#wanted.delete(name);
      throw error;
    });
    return version.ready;
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    this.#requireOpen();
    const version = this.#wanted.get(versionName(manifest));
    const chains = version?.chains;
    if (version === undefined || chains === undefined) {
      throw new CubeError(
        'VERSION_ABSENT',
        `${manifest.bundle} ${manifest.version} was not prepared in this store (it holds: ${this.#held()})`,
      );
    }
    const tables = tablesOf(version.manifest, groups);
    if (timeoutMs <= 0) return expired(manifest, groups, tables);
    const keys = this.#scratch.pop() ?? new LocalKeys();
    try {
      let candidatesMax = 0;
      for (const { table, count } of groups) candidatesMax += count * depthOf(chains.get(table)!);
      keys.reset(candidatesMax);
      for (const group of groups) keys.add(group.keys, group.count, chains.get(group.table)!);
      const views = keys.views();
      const values = views.length === 0 ? [] : await this.#database.getMany(views);
      return {
        version: manifest.version,
        unseen: this.#gather(keys, values, groups, tables),
        unavailable: 0,
      };
    } finally {
      if (this.#scratch.length < SCRATCH_KEPT_MAX) this.#scratch.push(keys);
    }
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#requireOpen();
    this.#wanted.delete(versionName(manifest));
    await this.#enqueue(() => this.#removeUnwanted());
  }

  /** Stops a fill that is under way (the next start completes it) and closes the database. */
  async close(): Promise<void> {
    if (this.#closed) return;
    this.#closed = true;
    await this.#work;
    await this.#database.close();
  }

  #requireOpen(): void {
    if (this.#closed) {
      throw new CubeError('STOPPING', `${this.#options.folder}: the local store is closed`);
    }
  }

  #held(): string {
    const held = [...this.#wanted].filter(([, version]) => version.chains !== undefined);
    return held.map(([name]) => name).join(', ') || 'none';
  }

  #enqueue<T>(work: () => Promise<T>): Promise<T> {
    const result = this.#work.then(work);
    this.#work = result.catch(() => undefined);
    return result;
  }

  async #fill(wanted: WantedVersion): Promise<void> {
    const { bundle, version } = wanted.manifest;
    const missing = this.#missing(wanted.manifest);
    const { logger, onProgress } = this.#options;
    const progress = new FillProgress({
      subject: { bundle, version },
      rowsTotal: missing.reduce((sum, { layer }) => sum + layer.rows, 0),
      ...(logger && { logger }),
      ...(onProgress && { onProgress }),
    });
    try {
      const afterRows = (count: number): void => {
        this.#requireOpen();
        progress.add(count);
      };
      for (const { table, layer } of missing) {
        await this.#fillLayer(bundle, table, layer, afterRows);
      }
      progress.finish();
    } catch (error) {
      progress.abandon();
      throw error;
    }
    removePath(this.#incoming());
    await this.#verify(wanted.manifest);
    wanted.chains = this.#chains(wanted.manifest);
  }

  async #fillLayer(
    bundle: string,
    table: TableRef,
    layer: LayerRef,
    afterRows: (rows: number) => void,
  ): Promise<void> {
    this.#requireOpen();
    const file = join(this.#incoming(), `${layer.contentId}.cube`);
    makeFolder(this.#incoming());
    await this.#options.repository.fetchLayer(bundle, table.name, layer, file);
    const content = { rows: readLayerRows(file), deleted: readDeletedKeys(file) };
    await this.#database.fill(shapeOf(table, layer), content, afterRows);
    removePath(file);
  }

  /** Layers of an earlier start are read through once before they answer: what is damaged must not look missing. */
  async #verify(manifest: Manifest): Promise<void> {
    for (const table of manifest.tables) {
      for (const layer of table.shards.flat()) {
        await this.#database.verify(shapeOf(table, layer), () => this.#requireOpen());
      }
    }
  }

  /** The layers of a version that are not complete, each once. */
  #missing(manifest: Manifest): MissingLayer[] {
    const missing = new Map<string, MissingLayer>();
    for (const table of manifest.tables) {
      for (const layer of table.shards.flat()) {
        const { contentId, rows } = layer;
        if (this.#database.complete(contentId)?.rows !== rows) {
          missing.set(contentId, { table, layer });
        }
      }
    }
    return [...missing.values()];
  }

  #chains(manifest: Manifest): Map<string, readonly StoredChain[]> {
    const ofTable = ({ shards }: TableRef): StoredChain[] =>
      shards.map((layers) => {
        const newestFirst = layers.map(({ contentId }) => contentId).reverse();
        return {
          numbers: Uint32Array.from(newestFirst, (id) => this.#database.complete(id)!.number),
          filters: newestFirst.slice(0, -1).map((id) => this.#database.filter(id)!),
        };
      });
    return new Map(manifest.tables.map((table) => [table.name, ofTable(table)]));
  }

  async #removeUnwanted(): Promise<void> {
    const { repository, logger } = this.#options;
    const prepared = [...this.#wanted.values()].map(({ manifest }) => manifest);
    // Models of other bundles may share the folder, and not have asked yet.
    const needed = await wantedLayers(repository, await repository.bundles(), prepared);
    // Asked for while the channels were read.
    for (const { manifest } of this.#wanted.values()) addLayers(manifest, needed);
    for (const { contentId, rows } of this.#database.layers()) {
      if (needed.has(contentId)) continue;
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
    let at = 0;
    let candidate = 0;
    for (let g = 0; g < groups.length; g++) {
      const table = tables[g]!;
      const output = new RowOutput(groups[g]!, table);
      for (let i = 0; i < groups[g]!.count; i++, at++) {
        const end = keys.ends[at]!;
        while (candidate < end && values[keys.candidates[candidate]!] === undefined) candidate++;
        if (candidate === end) output.setUnseen(i);
        else {
          const unique = keys.candidates[candidate]!;
          if (!readValue(values[unique]!, keys.words, 3 * unique, output, i)) {
            throw damaged(this.#database.folder, `a row of table ${table.name}`);
          }
        }
        candidate = end;
      }
      unseen += output.unseen;
    }
    return unseen;
  }

  /** Fetched layer files on their way into the database. */
  #incoming(): string {
    return join(this.#options.folder, 'incoming');
  }
}

function versionName(manifest: Manifest): string {
  return `${manifest.bundle}/${manifest.version}`;
}

/** @throws CubeError UNSUPPORTED for values that are no embeddings */
function requireRows(manifest: Manifest): void {
  const values = manifest.tables.find(({ dtype }) => dtype === 'bytes');
  if (values === undefined) return;
  throw new CubeError(
    'UNSUPPORTED',
    `${versionName(manifest)}: table ${values.name} has values of any length (dtype bytes), which are no embeddings`,
  );
}

function shapeOf({ dtype, dim }: TableRef, { contentId, rows, kind }: LayerRef): LayerShape {
  return { contentId, rows, kind, rowBytes: rowBytesOf(dtype as RowDtype, dim) };
}

/** Layers of the deepest shard. */
function depthOf(chains: readonly StoredChain[]): number {
  let depth = 1;
  for (const { numbers } of chains) depth = Math.max(depth, numbers.length);
  return depth;
}

/**
 * The value that decides key i of a group: a row, or that it is deleted.
 * @param words layer, low and high word of the key at `wordsAt`
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
  const place = output.placeOf(i);
  if (!readLocalRow(value, output.words, place, rowWords, layer, low, high)) return false;
  if (isDeleted) output.setUnseen(i);
  else output.hit(i);
  return true;
}

function expired(
  manifest: Manifest,
  groups: readonly LookupGroup[],
  tables: readonly TableRef[],
): LookupSummary {
  const unavailable = setAllUnavailable(groups, tables);
  const reason = 'no time was left to ask';
  return { version: manifest.version, unseen: 0, unavailable, ...(unavailable > 0 && { reason }) };
}
