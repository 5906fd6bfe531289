/** The interface of a source of rows: a layer file, the files of a version, or servers. */
import type { Manifest, TableDtype } from '../../lib/core/manifest.ts';

/**
 * - hit: the key has a row
 * - unseen: no layer contains the key
 * - deleted: a delta deletes the key, and no newer layer contains it; known only from files
 * - other-shard: the key belongs to another shard than the layer file
 * - unavailable: no server answered for the key's shard
 */
export type Outcome = 'hit' | 'unseen' | 'deleted' | 'other-shard' | 'unavailable';

export interface SourceTable {
  readonly name: string;
  /** Undefined when a server does not report it; 0 with dtype bytes. */
  readonly dim: number | undefined;
  /** Undefined when a server does not report it. */
  readonly dtype: TableDtype | undefined;
  readonly shardNum: number;
}

export interface FoundKey {
  readonly outcome: Outcome;
  readonly shard: number;
  /** Present for a hit. */
  readonly row?: Uint8Array;
  /** Content id of the layer that contains or deletes the key; only from files. */
  readonly layer?: string;
}

export interface FoundKeys {
  readonly keys: readonly FoundKey[];
  /** Encoding of the rows. */
  readonly rowDtype: TableDtype;
  /** Version that answered; several are joined by commas, none is ''. */
  readonly version: string;
  /** Why keys are unavailable, or that servers answered from different versions. */
  readonly warning: string | undefined;
}

export interface RowSource {
  /** Manifest of the version, if the source is a version. */
  readonly manifest: Manifest | undefined;
  readonly tables: readonly SourceTable[];
  /** @param asStored return rows in the table's dtype; otherwise servers convert them to f32 */
  lookup(table: SourceTable, keys: Uint32Array, asStored: boolean): Promise<FoundKeys>;
  close(): void;
}
