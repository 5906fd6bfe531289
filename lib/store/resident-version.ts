/** A version of one shard in memory: its tables and its use of memory and disk. */
import type { Manifest, TableRef } from '../core/manifest.ts';
import type { ResidentLayer } from './resident-layer.ts';
import { ChainTable, type ResidentTable } from './resident-table.ts';

export interface ResidentVersion {
  readonly bundle: string;
  readonly version: string;
  readonly manifest: Manifest;
  readonly shardIndex: number;
  /** Rows of this shard in all layers of all tables, including rows that a later layer replaces. */
  readonly rows: number;
  /** Memory of its layers, including shared ones. */
  readonly bytes: number;
  /** Size of rows on disk. */
  readonly bytesOnDisk: number;
  table(name: string): ResidentTable | undefined;
  layers(): LayerUsage[];
}

/** Resource usage of one layer. */
export interface LayerUsage {
  readonly table: string;
  readonly contentId: string;
  readonly kind: 'base' | 'delta';
  readonly layout: string;
  readonly rows: number;
  readonly deleted: number;
  /** Memory, including the thread areas. */
  readonly bytes: number;
  readonly bytesOnDisk: number;
  /** Number of resident versions that use the layer. */
  readonly versions: number;
}

/** A table and its layers, base first. */
export interface TableLayers {
  readonly table: TableRef;
  readonly layers: readonly ResidentLayer[];
}

function sumOverLayers(
  layers: readonly ResidentLayer[],
  of: (layer: ResidentLayer) => number,
): number {
  return layers.reduce((total, layer) => total + of(layer), 0);
}

export class ChainVersion implements ResidentVersion {
  readonly bundle: string;
  readonly version: string;
  readonly manifest: Manifest;
  readonly shardIndex: number;
  readonly rows: number;
  readonly bytes: number;
  readonly bytesOnDisk: number;
  readonly tables: readonly TableLayers[];
  /** Layers of all tables. */
  readonly allLayers: readonly ResidentLayer[];
  readonly #tables: ReadonlyMap<string, ChainTable>;

  /** @param thread index of the thread area that lookups use */
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
    this.allLayers = tables.flatMap(({ layers }) => layers);
    this.rows = sumOverLayers(this.allLayers, ({ header }) => header.rowCount);
    this.bytes = sumOverLayers(this.allLayers, ({ bytes }) => bytes);
    this.bytesOnDisk = sumOverLayers(this.allLayers, ({ bytesOnDisk }) => bytesOnDisk);
    this.#tables = new Map(
      tables.map(({ table, layers }) => [table.name, new ChainTable(table, layers, thread)]),
    );
  }

  table(name: string): ResidentTable | undefined {
    return this.#tables.get(name);
  }

  layers(): LayerUsage[] {
    return this.allLayers.map(({ header, bytes, bytesOnDisk, references }) => ({
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
