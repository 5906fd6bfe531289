/**
 * The LOCAL store: the layers of a repository's versions in a database embedded in this process, for a model that one
 * machine can hold (on disk, if not in memory). Filled at the first start, kept between starts.
 *
 * Invariants: a version is answerable only when all of its layers are complete and, if they are of an earlier start, were
 * read through; equal layers (one contentId) are
 * stored once however many versions name them; a fill that was killed is done again by the next `prepare`; what is
 * removed at `retire` is what no version wanted by this process names. Fills and removals happen one after another.
 *
 * A local read is not abandoned half-way: the deadline only refuses work that has expired before it begins.
 */
import { join } from 'node:path';
import {
  defaultRowOf,
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
  tablesOf,
} from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { makeFolder, removePath } from '../../lib/platform/files.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { Repository } from '../../lib/repository/repository.ts';
import { readLayerRows } from '../../lib/store/layer-file.ts';
import type { EmbeddingStore } from './embedding-store.ts';
import { damaged, LayerDatabase } from './layer-database.ts';
import { LocalKeys } from './local-keys.ts';
import { readLocalRow } from './local-row.ts';

export interface LocalStoreOptions {
  readonly repository: Pick<Repository, 'fetchLayer'>;
  /** The store's own; kept between starts. */
  readonly folder: string;
  readonly logger?: Logger;
  /** During `prepare`: rows written so far, of all that this version is short of. */
  readonly onProgress?: (rows: number, rowsTotal: number) => void;
}

/** A version that this process wants; its tables are known when all layers are there. */
interface WantedVersion {
  readonly manifest: Manifest;
  /** Table → layer number of each shard; undefined until prepared. */
  layers: ReadonlyMap<string, Uint32Array> | undefined;
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
    requireReadable(manifest);
    const name = versionName(manifest);
    const known = this.#wanted.get(name);
    if (known !== undefined) return known.ready;
    // Wanted from here on, so that a retirement of another version waiting in line keeps what is shared.
    const version: WantedVersion = { manifest, layers: undefined, ready: Promise.resolve() };
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
    const layers = version?.layers;
    if (version === undefined || layers === undefined) {
      throw new CubeError(
        'VERSION_ABSENT',
        `${manifest.bundle} ${manifest.version} was not prepared in this store (it holds: ${this.#held()})`,
      );
    }
    const tables = tablesOf(version.manifest, groups);
    if (timeoutMs <= 0) return expired(manifest, groups, tables);
    const keys = this.#scratch.pop() ?? new LocalKeys();
    try {
      let total = 0;
      for (const group of groups) total += group.count;
      keys.reset(total);
      for (const group of groups) keys.add(group.keys, group.count, layers.get(group.table)!);
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
    const held = [...this.#wanted].filter(([, version]) => version.layers !== undefined);
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
    const rowsTotal = missing.reduce((sum, { layer }) => sum + layer.rows, 0);
    if (missing.length > 0) {
      logger?.info({ bundle, version, layers: missing.length, rows: rowsTotal }, 'filling');
    }
    let rows = 0;
    const afterRows = (count: number): void => {
      this.#requireOpen();
      rows += count;
      onProgress?.(rows, rowsTotal);
    };
    for (const { table, layer } of missing) await this.#fillLayer(bundle, table, layer, afterRows);
    removePath(this.#incoming());
    await this.#verify(wanted.manifest);
    wanted.layers = this.#layerNumbers(wanted.manifest);
  }

  async #fillLayer(
    bundle: string,
    table: TableRef,
    layer: LayerRef,
    afterRows: (rows: number) => void,
  ): Promise<void> {
    this.#requireOpen();
    const { contentId, rows } = layer;
    const file = join(this.#incoming(), `${contentId}.cube`);
    makeFolder(this.#incoming());
    await this.#options.repository.fetchLayer(bundle, table.name, layer, file);
    const content = { contentId, rows, dim: table.dim };
    await this.#database.fill(content, readLayerRows(file), afterRows);
    removePath(file);
  }

  /** Layers of an earlier start are read through once before they answer: what is damaged must not look missing. */
  async #verify(manifest: Manifest): Promise<void> {
    for (const table of manifest.tables) {
      for (const { contentId, rows } of table.shards.flat()) {
        const layer = { contentId, rows, dim: table.dim };
        await this.#database.verify(layer, () => this.#requireOpen());
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

  #layerNumbers(manifest: Manifest): Map<string, Uint32Array> {
    return new Map(
      manifest.tables.map((table) => [
        table.name,
        Uint32Array.from(
          table.shards,
          ([base]) => this.#database.complete(base!.contentId)!.number,
        ),
      ]),
    );
  }

  async #removeUnwanted(): Promise<void> {
    const needed = new Set<string>();
    for (const { manifest } of this.#wanted.values()) {
      for (const table of manifest.tables) {
        for (const layer of table.shards.flat()) needed.add(layer.contentId);
      }
    }
    for (const { contentId, rows } of this.#database.layers()) {
      if (needed.has(contentId)) continue;
      await this.#database.remove(contentId);
      this.#options.logger?.info({ contentId, rows }, 'layer removed');
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
    for (let g = 0; g < groups.length; g++) {
      const { rows, outcomes, count } = groups[g]!;
      const table = tables[g]!;
      const { dim } = table;
      const absent = defaultRowOf(table);
      const words = new Uint32Array(rows.buffer, rows.byteOffset, rows.length);
      for (let i = 0; i < count; i++, at++) {
        const unique = keys.uniqueOf[at]!;
        const value = values[unique];
        if (value === undefined) {
          rows.set(absent, i * dim);
          outcomes[i] = OUTCOME_UNSEEN;
          unseen++;
          continue;
        }
        const layer = keys.words[3 * unique]!;
        const low = keys.words[3 * unique + 1]!;
        const high = keys.words[3 * unique + 2]!;
        if (!readLocalRow(value, words, i * dim, dim, layer, low, high)) {
          throw damaged(this.#database.folder, `a row of table ${table.name}`);
        }
        outcomes[i] = OUTCOME_HIT;
      }
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

/** @throws CubeError UNSUPPORTED for content that this build cannot keep */
function requireReadable(manifest: Manifest): void {
  for (const { name, dtype, shards } of manifest.tables) {
    const what =
      dtype !== 'f32'
        ? `rows of ${dtype}`
        : shards.some((layers) => layers.length > 1)
          ? 'delta layers'
          : '';
    if (what === '') continue;
    throw new CubeError(
      'UNSUPPORTED',
      `${versionName(manifest)}: table ${name} has ${what}, which the local store of this build cannot keep`,
    );
  }
}

function expired(
  manifest: Manifest,
  groups: readonly LookupGroup[],
  tables: readonly TableRef[],
): LookupSummary {
  let unavailable = 0;
  for (let g = 0; g < groups.length; g++) {
    const { rows, outcomes, count } = groups[g]!;
    const row = defaultRowOf(tables[g]!);
    for (let i = 0; i < count; i++) rows.set(row, i * row.length);
    outcomes.fill(OUTCOME_UNAVAILABLE, 0, count);
    unavailable += count;
  }
  const reason = 'no time was left to ask';
  return { version: manifest.version, unseen: 0, unavailable, ...(unavailable > 0 && { reason }) };
}
