/** A resident version with what answering needs at hand: tables, encoded fields, traffic counters, last use. */
import { tableOf } from '../lib/core/manifest.ts';
import { tablesDigest } from '../lib/core/tables-digest.ts';
import type { ResidentTable } from '../lib/store/resident-table.ts';
import type { ResidentVersion } from '../lib/store/resident-version.ts';
import { dictHitPrefix } from '../proto/dict.ts';
import { encodeVersionField } from '../proto/lookup.ts';

/** Counted per bundle and table, so that it survives the versions. */
export interface TableTraffic {
  readonly bundle: string;
  readonly table: string;
  keys: number;
  hits: number;
  /** Of rows answered. */
  bytes: number;
}

export interface HeldTable {
  readonly resident: ResidentTable;
  readonly traffic: TableTraffic;
  /** What stands before each hit in Cube's seek response. */
  readonly hitPrefix: Uint8Array;
}

export class HeldVersion {
  readonly resident: ResidentVersion;
  readonly tablesDigest: string;
  /** Field 1 of a packed lookup's response. */
  readonly versionField: Uint8Array;
  /** Calls answered: counted by the services, read by `observeUse`. */
  lookups = 0;
  lastUsedMs: number;
  #lookupsSeen = 0;
  readonly #tables = new Map<string, HeldTable>();

  constructor(
    resident: ResidentVersion,
    traffic: (table: string) => TableTraffic,
    loadedMs: number,
  ) {
    this.resident = resident;
    this.tablesDigest = tablesDigest(resident.manifest);
    this.versionField = encodeVersionField(resident.version);
    this.lastUsedMs = loadedMs;
    for (const { name } of resident.manifest.tables) {
      const table = resident.table(name);
      if (table === undefined) throw new Error(`table ${name} was not loaded`);
      const hitPrefix = dictHitPrefix(table.rowBytes);
      this.#tables.set(name, { resident: table, traffic: traffic(name), hitPrefix });
    }
  }

  /** @throws CubeError NOT_FOUND naming the tables there are */
  table(name: string): HeldTable {
    const table = this.#tables.get(name);
    if (table === undefined) {
      tableOf(this.resident.manifest, name);
      throw new Error(`table ${name} was not loaded`);
    }
    return table;
  }

  get tableNames(): string[] {
    return [...this.#tables.keys()];
  }

  observeUse(nowMs: number): void {
    if (this.lookups === this.#lookupsSeen) return;
    this.#lookupsSeen = this.lookups;
    this.lastUsedMs = nowMs;
  }
}
