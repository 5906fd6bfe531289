/**
 * A cache of rows in front of a store that is asked over the network: embedding features follow a power law, so a small part of the
 * rows answers most of the keys.
 *
 * Invariants: a row is cached under the layers that decide its key (the chain of its shard), which never change: versions
 * share what they have in common and nothing else, and nothing has to be thrown away. That a key is in no layer is kept
 * too, with each version's own default row; that nobody answered is never kept. The bytes given are an upper bound.
 */
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
import { shardOf } from '../../lib/core/keys.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { tablesDigest } from '../../lib/core/tables-digest.ts';
import type { EmbeddingStore, HotRowsStats } from './embedding-store.ts';
import { RowCache } from './row-cache.ts';

/** Fewer rows than this are no cache. */
const CAPACITY_MIN = 64;

/** What is cached of a version: the chain number of each shard of each table. */
interface CachedVersion {
  readonly manifest: Manifest;
  readonly chains: ReadonlyMap<string, Uint32Array>;
}

/** A group on its way: the keys that the cache does not have are asked for as a group of their own. */
interface SplitGroup {
  readonly target: LookupGroup;
  readonly table: TableRef;
  readonly chains: Uint32Array;
  readonly cache: RowCache;
  readonly missing: LookupGroup;
  /** Which of the target's keys each missing one is. */
  readonly places: Uint32Array;
}

export class HotRowsStore implements EmbeddingStore {
  readonly kind: EmbeddingStore['kind'];
  readonly #store: EmbeddingStore;
  readonly #bytes: number;
  /** By width of the rows. */
  #caches: ReadonlyMap<number, RowCache> = new Map();
  /** By bundle, version and what its tables hold. */
  readonly #versions = new Map<string, CachedVersion>();
  /** By the contentIds of the layers. */
  #chains = new Map<string, number>();
  #nextChain = 1;
  #hits = 0;
  #misses = 0;
  #closed = false;

  /** @param store owned from here on: `close` closes it */
  constructor(store: EmbeddingStore, bytes: number) {
    this.kind = store.kind;
    this.#store = store;
    this.#bytes = bytes;
  }

  get hotRows(): HotRowsStats {
    const caches = [...this.#caches.values()];
    const sum = (of: (cache: RowCache) => number): number =>
      caches.reduce((total, cache) => total + of(cache), 0);
    return {
      hits: this.#hits,
      misses: this.#misses,
      rows: sum(({ size }) => size),
      capacity: sum(({ capacity }) => capacity),
      bytes: sum(({ bytes }) => bytes),
    };
  }

  /** @throws CubeError INVALID_ARGUMENT when the cache has too few bytes for rows of these widths */
  async prepare(manifest: Manifest): Promise<void> {
    await this.#store.prepare(manifest);
    const name = nameOf(manifest);
    if (this.#versions.has(name)) return;
    const chains = new Map<string, Uint32Array>();
    for (const { name: table, shards } of manifest.tables) {
      chains.set(
        table,
        Uint32Array.from(shards, (layers) => this.#chainOf(layers)),
      );
    }
    this.#makeRoom(manifest);
    this.#versions.set(name, { manifest, chains });
  }

  async lookup(
    manifest: Manifest,
    groups: readonly LookupGroup[],
    timeoutMs: number,
  ): Promise<LookupSummary> {
    if (this.#closed) throw new CubeError('STOPPING', 'this store is closed');
    const version = this.#versions.get(nameOf(manifest));
    if (version === undefined || timeoutMs <= 0) {
      return this.#store.lookup(manifest, groups, timeoutMs);
    }
    const tables = tablesOf(manifest, groups);
    const partials: SplitGroup[] = [];
    let unseen = 0;
    groups.forEach((target, g) => {
      const table = tables[g]!;
      const chains = version.chains.get(table.name)!;
      const cache = this.#caches.get(table.dim)!;
      const places = new Uint32Array(target.count);
      const known = copyKnown(target, table, chains, cache, places);
      unseen += known.unseen;
      this.#hits += target.count - known.missed;
      this.#misses += known.missed;
      if (known.missed === 0) return;
      const own = places.subarray(0, known.missed);
      const missing = groupOf(target, table.dim, own);
      partials.push({ target, table, chains, cache, missing, places: own });
    });
    if (partials.length === 0) return { version: manifest.version, unseen, unavailable: 0 };
    const asked = partials.map(({ missing }) => missing);
    const summary = await this.#store.lookup(manifest, asked, timeoutMs);
    for (const partial of partials) {
      copyBack(partial);
      if (summary.version === manifest.version) learn(partial);
    }
    return { ...summary, unseen: unseen + summary.unseen };
  }

  async retire(manifest: Manifest): Promise<void> {
    this.#versions.delete(nameOf(manifest));
    const named = new Set<string>();
    for (const { manifest: kept } of this.#versions.values()) {
      for (const { shards } of kept.tables) for (const layers of shards) named.add(idOf(layers));
    }
    this.#chains = new Map([...this.#chains].filter(([id]) => named.has(id)));
    await this.#store.retire(manifest);
  }

  async close(): Promise<void> {
    this.#closed = true;
    await this.#store.close();
  }

  #chainOf(layers: readonly LayerRef[]): number {
    const id = idOf(layers);
    const chain = this.#chains.get(id) ?? this.#nextChain++;
    this.#chains.set(id, chain);
    return chain;
  }

  /** Rows of every width that is in use have a cache, all with the same number of entries: keys of a batch are in all tables alike. */
  #makeRoom(wanted: Manifest): void {
    const { bundle, version } = wanted;
    const held = [...this.#versions.values()].map(({ manifest }) => manifest);
    const widths = new Set([wanted, ...held].flatMap(({ tables }) => tables.map(({ dim }) => dim)));
    if ([...widths].every((width) => this.#caches.has(width))) return;
    let entryBytes = 0;
    for (const width of widths) entryBytes += RowCache.entryBytes(width);
    const capacity = Math.floor(this.#bytes / entryBytes);
    if (capacity < CAPACITY_MIN) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `a cache of ${this.#bytes} bytes has room for ${capacity} rows of ${bundle} ${version}: give hotRows at least ${CAPACITY_MIN * entryBytes} bytes, or leave it out`,
      );
    }
    this.#caches = new Map([...widths].map((width) => [width, new RowCache(capacity, width)]));
  }
}

function nameOf(manifest: Manifest): string {
  return `${manifest.bundle}/${manifest.version}/${tablesDigest(manifest)}`;
}

function idOf(layers: readonly LayerRef[]): string {
  return layers.map(({ contentId }) => contentId).join('+');
}

/**
 * Answers the keys that the cache has.
 * @param places out: which keys it does not have
 */
function copyKnown(
  { keys, count, rows, outcomes }: LookupGroup,
  table: TableRef,
  chains: Uint32Array,
  cache: RowCache,
  places: Uint32Array,
): { unseen: number; missed: number } {
  const { dim } = table;
  const absent = defaultRowOf(table);
  let unseen = 0;
  let missed = 0;
  for (let i = 0; i < count; i++) {
    const low = keys[2 * i]!;
    const high = keys[2 * i + 1]!;
    const entry = cache.find(chains[shardOf(low, high, chains.length)]!, low, high);
    if (entry < 0) places[missed++] = i;
    else if (cache.isUnseen(entry)) {
      rows.set(absent, i * dim);
      outcomes[i] = OUTCOME_UNSEEN;
      unseen++;
    } else {
      cache.copyRow(entry, rows, i * dim);
      outcomes[i] = OUTCOME_HIT;
    }
  }
  return { unseen, missed };
}

/** The keys at those places as a group of their own. */
function groupOf({ table, keys }: LookupGroup, dim: number, places: Uint32Array): LookupGroup {
  const count = places.length;
  const own = new Uint32Array(2 * count);
  for (let i = 0; i < count; i++) {
    own[2 * i] = keys[2 * places[i]!]!;
    own[2 * i + 1] = keys[2 * places[i]! + 1]!;
  }
  const [rows, outcomes] = [new Float32Array(count * dim), new Uint8Array(count)];
  return { table, keys: own, count, rows, outcomes };
}

function copyBack({ target, table, missing, places }: SplitGroup): void {
  const { dim } = table;
  for (let i = 0; i < places.length; i++) {
    const place = places[i]!;
    target.outcomes[place] = missing.outcomes[i]!;
    for (let d = 0; d < dim; d++) target.rows[place * dim + d] = missing.rows[i * dim + d]!;
  }
}

/** Takes in what was answered: also that a key is in no layer, but not that nobody knew. */
function learn({ table, chains, cache, missing }: SplitGroup): void {
  const { keys, count, rows, outcomes } = missing;
  for (let i = 0; i < count; i++) {
    if (outcomes[i] === OUTCOME_UNAVAILABLE) continue;
    const low = keys[2 * i]!;
    const high = keys[2 * i + 1]!;
    const chain = chains[shardOf(low, high, chains.length)]!;
    const row = outcomes[i] === OUTCOME_HIT ? rows : undefined;
    cache.add(chain, low, high, row, i * table.dim);
  }
}
