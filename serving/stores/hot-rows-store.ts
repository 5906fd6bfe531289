/**
 * A cache of rows in front of a store that is reached over the network. Embedding features follow a
 * power law, so a small part of the rows answers most of the keys.
 *
 * Invariants
 * - A row is cached under the layers that decide its key (the chain of its shard). Layers never
 *   change, so versions share what they have in common and nothing else, and entries never need to
 *   be invalidated.
 * - The cache remembers that a key is in no layer; the default row is each version's own. It never
 *   remembers unavailable keys.
 * - The given bytes are an upper bound.
 */
import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { computeShard } from '../../lib/core/keys.ts';
import {
  getDefaultRow,
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
  resolveTables,
} from '../../lib/core/lookup-group.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { getTablesDigest } from '../../lib/core/manifest.ts';
import { versionKey } from '../../lib/core/names.ts';
import type { TraceSpan } from '../../lib/core/trace-span.ts';
import type { EmbeddingStore, RowCacheStats, ServerStats } from './embedding-store.ts';
import { RowCache } from './row-cache.ts';

/** A cache for fewer rows is refused. */
const CAPACITY_MIN = 64;

/** A version, and the chain number of each shard by table. */
interface CachedVersion {
  readonly manifest: Manifest;
  readonly chains: ReadonlyMap<string, Uint32Array>;
}

/** A group of which some keys are not in the cache: they form a group for the store. */
interface SplitGroup {
  readonly target: LookupGroup;
  readonly table: TableRef;
  readonly chains: Uint32Array;
  readonly cache: RowCache;
  readonly missing: LookupGroup;
  /** The index of each missing key in the target. */
  readonly positions: Uint32Array;
}

export class HotRowsStore implements EmbeddingStore {
  readonly kind: EmbeddingStore['kind'];
  readonly #store: EmbeddingStore;
  readonly #bytes: number;
  /** By width of the rows. */
  #caches: ReadonlyMap<number, RowCache> = new Map();
  /** By bundle, version and the digest of its tables. */
  readonly #versions = new Map<string, CachedVersion>();
  /** Chain numbers by the contentIds of the layers. */
  #chains = new Map<string, number>();
  #nextChain = 1;
  #hits = 0;
  #misses = 0;
  #isClosed = false;

  /** Takes ownership of the store: `close` closes it. */
  constructor(store: EmbeddingStore, bytes: number) {
    this.kind = store.kind;
    this.#store = store;
    this.#bytes = bytes;
  }

  get servers(): ServerStats | undefined {
    return this.#store.servers;
  }

  get hotRows(): RowCacheStats {
    const caches = [...this.#caches.values()];
    const sum = (count: (cache: RowCache) => number): number =>
      caches.reduce((total, cache) => total + count(cache), 0);
    return {
      hits: this.#hits,
      misses: this.#misses,
      rows: sum(({ size }) => size),
      capacity: sum(({ capacity }) => capacity),
      bytes: sum(({ bytes }) => bytes),
    };
  }

  /**
   * @throws CubeError INVALID_ARGUMENT when the cache has too few bytes for rows of these widths
   */
  async prepare(manifest: Manifest, signal?: AbortSignal): Promise<void> {
    await this.#store.prepare(manifest, signal);
    const id = makeVersionId(manifest);
    if (this.#versions.has(id)) return;
    const chains = new Map<string, Uint32Array>();
    for (const { name, shards } of manifest.tables) {
      const numbers = Uint32Array.from(shards, (layers) => this.#assignChain(layers));
      chains.set(name, numbers);
    }
    try {
      this.#makeRoom(manifest);
    } catch (error) {
      // Nobody retires a version whose preparation failed.
      await this.retire(manifest);
      throw error;
    }
    this.#versions.set(id, { manifest, chains });
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
    span?: TraceSpan,
  ): Promise<LookupSummary> {
    if (this.#isClosed) throw new CubeError('STOPPING', 'the store is closed');
    const version = this.#versions.get(makeVersionId(manifest));
    if (version === undefined || timeoutMs <= 0) {
      return this.#store.lookup(manifest, groups, timeoutMs, span);
    }
    const tables = resolveTables(manifest, groups);
    const splits: SplitGroup[] = [];
    let unseen = 0;
    groups.forEach((target, g) => {
      const table = tables[g]!;
      const chains = requireDefined(version.chains.get(table.name), 'the layers of a table');
      const cache = requireDefined(this.#caches.get(table.dim), 'the cache of a row width');
      const positions = new Uint32Array(target.count);
      const cached = copyCached(target, table, chains, cache, positions);
      unseen += cached.unseen;
      this.#hits += target.count - cached.missed;
      this.#misses += cached.missed;
      if (cached.missed === 0) return;
      const missed = positions.subarray(0, cached.missed);
      const missing = makeMissingGroup(target, table.dim, missed);
      splits.push({ target, table, chains, cache, missing, positions: missed });
    });
    if (splits.length === 0) return { version: manifest.version, unseen, unavailable: 0 };
    const missing = splits.map((split) => split.missing);
    const summary = await this.#store.lookup(manifest, missing, timeoutMs, span);
    for (const split of splits) {
      copyBack(split);
      if (summary.version === manifest.version) cacheAnswers(split);
    }
    return { ...summary, unseen: unseen + summary.unseen };
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#versions.delete(makeVersionId(manifest));
    const tables = [...this.#versions.values()].flatMap((version) => version.manifest.tables);
    const used = new Set(tables.flatMap(({ shards }) => shards.map(makeChainId)));
    this.#chains = new Map([...this.#chains].filter(([id]) => used.has(id)));
    await this.#store.retire(manifest);
  }

  async close(): Promise<void> {
    this.#isClosed = true;
    await this.#store.close();
  }

  /** The number of a chain, the same as before if it has one. */
  #assignChain(layers: readonly LayerRef[]): number {
    const id = makeChainId(layers);
    const chain = this.#chains.get(id) ?? this.#nextChain++;
    this.#chains.set(id, chain);
    return chain;
  }

  /**
   * Makes a cache for rows of each width in use, all with the same capacity: a batch has as many
   * keys for each table.
   */
  #makeRoom(added: Manifest): void {
    const { bundle, version } = added;
    const known = [...this.#versions.values()].map(({ manifest }) => manifest);
    const tables = [added, ...known].flatMap((manifest) => manifest.tables);
    const widths = new Set(tables.map(({ dim }) => dim));
    if ([...widths].every((width) => this.#caches.has(width))) return;
    let entryBytes = 0;
    for (const width of widths) entryBytes += RowCache.entryBytes(width);
    const capacity = Math.floor(this.#bytes / entryBytes);
    if (capacity < CAPACITY_MIN) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `a row cache of ${this.#bytes} bytes has room for ${capacity} ` +
          `rows of ${bundle} ${version}: ` +
          `give hotRows at least ${CAPACITY_MIN * entryBytes} bytes, or leave it out`,
      );
    }
    this.#caches = new Map([...widths].map((width) => [width, new RowCache(capacity, width)]));
  }
}

function makeVersionId(manifest: Manifest): string {
  return `${versionKey(manifest)}/${getTablesDigest(manifest)}`;
}

function makeChainId(layers: readonly LayerRef[]): string {
  return layers.map(({ contentId }) => contentId).join('+');
}

/**
 * Answers the keys that are in the cache.
 * @param positions out: the indices of the other keys
 */
function copyCached(
  { keys, count, rows, outcomes }: LookupGroup,
  table: TableRef,
  chains: Uint32Array,
  cache: RowCache,
  positions: Uint32Array,
): { unseen: number; missed: number } {
  const { dim } = table;
  const defaultRow = getDefaultRow(table);
  let unseen = 0;
  let missed = 0;
  for (let i = 0; i < count; i++) {
    const low = keys[2 * i]!;
    const high = keys[2 * i + 1]!;
    const entry = cache.find(chains[computeShard(low, high, chains.length)]!, low, high);
    if (entry < 0) positions[missed++] = i;
    else if (cache.isUnseen(entry)) {
      rows.set(defaultRow, i * dim);
      outcomes[i] = OUTCOME_UNSEEN;
      unseen++;
    } else {
      cache.copyRow(entry, rows, i * dim);
      outcomes[i] = OUTCOME_HIT;
    }
  }
  return { unseen, missed };
}

/** A group with the keys at these positions. */
function makeMissingGroup(
  { table, keys }: LookupGroup,
  dim: number,
  positions: Uint32Array,
): LookupGroup {
  const count = positions.length;
  const missing = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) {
    missing[2 * i] = keys[2 * positions[i]!]!;
    missing[2 * i + 1] = keys[2 * positions[i]! + 1]!;
  }
  const rows = new Float32Array(count * dim);
  return { table, keys: missing, count, rows, outcomes: new Uint8Array(count) };
}

function copyBack({ target, table, missing, positions }: SplitGroup): void {
  const { dim } = table;
  for (let i = 0; i < positions.length; i++) {
    const position = positions[i]!;
    target.outcomes[position] = missing.outcomes[i]!;
    for (let d = 0; d < dim; d++) target.rows[position * dim + d] = missing.rows[i * dim + d]!;
  }
}

/** Caches hits and unseen keys, but not unavailable ones. */
function cacheAnswers({ table, chains, cache, missing }: SplitGroup): void {
  const { keys, count, rows, outcomes } = missing;
  for (let i = 0; i < count; i++) {
    if (outcomes[i] === OUTCOME_UNAVAILABLE) continue;
    const low = keys[2 * i]!;
    const high = keys[2 * i + 1]!;
    const chain = chains[computeShard(low, high, chains.length)]!;
    const row = outcomes[i] === OUTCOME_HIT ? rows : undefined;
    cache.add(chain, low, high, row, i * table.dim);
  }
}
