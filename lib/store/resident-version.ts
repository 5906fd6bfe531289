/** A version whose shard can be looked up here: its tables, and what of the machine they take. */
import type { Manifest, TableRef } from '../core/manifest.ts';
import type { ResidentLayer } from './resident-layer.ts';
import { ChainTable, type ResidentTable } from './resident-table.ts';

export interface ResidentVersion {
  readonly bundle: string;
  readonly version: string;
  readonly manifest: Manifest;
  readonly shardIndex: number;
  /** Of this shard, over all tables: rows of all layers, also those that a later layer replaces. */
  readonly rows: number;
  /** Memory of its layers, shared ones included. */
  readonly bytes: number;
  /** Bytes of rows that stay in files. */
  readonly bytesOnDisk: number;
  table(name: string): ResidentTable | undefined;
  layers(): LayerReport[];
}

/** What one layer of a version takes. */
export interface LayerReport {
  readonly table: string;
  readonly contentId: string;
  readonly kind: 'base' | 'delta';
  readonly layout: string;
  readonly rows: number;
  readonly deleted: number;
  /** Of memory, the areas of the threads included. */
  readonly bytes: number;
  readonly bytesOnDisk: number;
  /** Resident versions that name it. */
  readonly versions: number;
}

/** A table and its layers, base first. */
export interface TableLayers {
  readonly table: TableRef;
  readonly layers: readonly ResidentLayer[];
}

function sum(layers: readonly ResidentLayer[], of: (layer: ResidentLayer) => number): number {
  return layers.reduce((total, layer) => total + of(layer), 0);
}

export class LoadedVersion implements ResidentVersion {
  readonly bundle: string;
  readonly version: string;
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly rows: number;
  readonly bytes: number;
  readonly bytesOnDisk: number;
  readonly tables: readonly TableLayers[];
  /** Of all tables. */
  readonly ownLayers: readonly ResidentLayer[];
  readonly #tables: ReadonlyMap<string, ChainTable>;

  /** @param thread whose areas of the memories its lookups use */
  constructor(
    manifest: Manifest,
    shardIndex: number,
    tables: readonly TableLayers[],
    thread: number,
  ) {
    this.bundle = manifest.bundle;
    this.version = manifest.version;
    this.manifest = manifest;
    this.shardIndex = shardIndex;
    this.tables = tables;
    this.ownLayers = tables.flatMap(({ layers }) => layers);
    this.rows = sum(this.ownLayers, ({ header }) => header.rowCount);
    this.bytes = sum(this.ownLayers, ({ bytes }) => bytes);
    this.bytesOnDisk = sum(this.ownLayers, ({ bytesOnDisk }) => bytesOnDisk);
    this.#tables = new Map(
      tables.map(({ table, layers }) => [table.name, new ChainTable(table, layers, thread)]),
    );
  }

  table(name: string): ResidentTable | undefined {
    return this.#tables.get(name);
  }

  layers(): LayerReport[] {
    return this.ownLayers.map(({ header, bytes, bytesOnDisk, references }) => ({
      table: header.table,
      contentId: header.contentId,
      kind: header.kind,
      layout: header.layout,
      rows: header.rowCount,
      deleted: header.deletedCount,
      bytes,
      bytesOnDisk,
      versions: references,
    }));
  }
}
