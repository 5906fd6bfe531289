/** A resident version with what answering needs at hand: tables, encoded fields, traffic counters, last use. */
import { type TableDtype, tableOf } from '../lib/core/manifest.ts';
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

export class HeldTable {
  readonly resident: ResidentTable;
  readonly traffic: TableTraffic;
  /** What stands before each hit in Cube's seek response, which answers rows as f32. */
  readonly hitPrefix: Uint8Array;

  constructor(resident: ResidentTable, traffic: TableTraffic) {
    this.resident = resident;
    this.traffic = traffic;
    this.hitPrefix = dictHitPrefix(4 * resident.dim);
  }

  /** 0 for values, which have no one size. */
  answeredRowBytes(asF32: boolean): number {
    return asF32 ? 4 * this.resident.dim : this.resident.rowBytes;
  }

  answeredDtype(asF32: boolean): TableDtype {
    const { dtype } = this.resident;
    return asF32 && dtype !== 'bytes' ? 'f32' : dtype;
  }
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
      this.#tables.set(name, new HeldTable(table, traffic(name)));
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
