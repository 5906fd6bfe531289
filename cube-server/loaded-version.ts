/**
 * A loaded version with everything a request needs: tables, encoded fields, counters and time of
 * last use.
 */
import { getTable, getTablesDigest, type TableDtype } from '../lib/core/manifest.ts';
import type { ResidentTable } from '../lib/store/resident-table.ts';
import type { ResidentVersion } from '../lib/store/resident-version.ts';
import { encodeDictHitPrefix } from '../proto/dict.ts';
import { encodeVersionField } from '../proto/lookup.ts';

/** Counters per bundle and table, which outlive versions. */
export interface TableCounters {
  readonly bundle: string;
  readonly table: string;
  keys: number;
  hits: number;
  /** Bytes of returned rows. */
  bytes: number;
}

export class LoadedTable {
  readonly resident: ResidentTable;
  readonly counters: TableCounters;
  /** Prefix of each hit in Cube's seek response, which returns rows as f32. */
  readonly hitPrefix: Uint8Array;

  constructor(resident: ResidentTable, counters: TableCounters) {
    this.resident = resident;
    this.counters = counters;
    this.hitPrefix = encodeDictHitPrefix(4 * resident.dim);
  }

  /** 0 for variable-length values. */
  getResponseRowBytes(asF32: boolean): number {
    return asF32 ? 4 * this.resident.dim : this.resident.rowBytes;
  }

  getResponseDtype(asF32: boolean): TableDtype {
    const { dtype } = this.resident;
    return asF32 && dtype !== 'bytes' ? 'f32' : dtype;
  }
}

export class LoadedVersion {
  readonly resident: ResidentVersion;
  readonly tablesDigest: string;
  /** Field 1 of a packed lookup's response. */
  readonly versionField: Uint8Array;
  /** Number of lookups; incremented by the services, read by `updateLastUsed`. */
  lookups = 0;
  lastUsedMs: number;
  #lookupsSeen = 0;
  readonly #tables = new Map<string, LoadedTable>();

  constructor(
    resident: ResidentVersion,
    counters: (table: string) => TableCounters,
    loadedMs: number,
  ) {
    this.resident = resident;
    this.tablesDigest = getTablesDigest(resident.manifest);
    this.versionField = encodeVersionField(resident.version);
    this.lastUsedMs = loadedMs;
    for (const { name } of resident.manifest.tables) {
      const table = resident.table(name);
      if (table === undefined) throw new Error(`table ${name} was not loaded`);
      this.#tables.set(name, new LoadedTable(table, counters(name)));
    }
  }

  /** @throws CubeError NOT_FOUND naming the existing tables */
  table(name: string): LoadedTable {
    const table = this.#tables.get(name);
    if (table === undefined) {
      getTable(this.resident.manifest, name);
      throw new Error(`table ${name} was not loaded`);
    }
    return table;
  }

  /** Layers of the longest chain of this shard: 1 without deltas. */
  get chainLength(): number {
    const { manifest, shardIndex } = this.resident;
    const chains = manifest.tables.map(({ shards }) => shards[shardIndex]?.length ?? 0);
    return Math.max(0, ...chains);
  }

  get tableNames(): string[] {
    return [...this.#tables.keys()];
  }

  updateLastUsed(nowMs: number): void {
    if (this.lookups === this.#lookupsSeen) return;
    this.#lookupsSeen = this.lookups;
    this.lastUsedMs = nowMs;
  }
}
