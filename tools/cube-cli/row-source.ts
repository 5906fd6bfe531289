/** Where rows are looked up: layer files, a version's files, or servers. */
import type { Manifest, TableDtype } from '../../lib/core/manifest.ts';

/**
 * deleted: a delta deletes it, and no newer layer has it again · other-shard: it cannot be in this layer file ·
 * unavailable: nobody answered for its shard, and nothing is known
 */
export type Outcome = 'hit' | 'unseen' | 'deleted' | 'other-shard' | 'unavailable';

export interface SourceTable {
  readonly name: string;
  /** Undefined of a server that does not say, as 0 of dtype bytes. */
  readonly dim: number | undefined;
  readonly dtype: TableDtype | undefined;
  readonly shardNum: number;
}

export interface FoundKey {
  readonly outcome: Outcome;
  readonly shard: number;
  /** Of a hit. */
  readonly row?: Uint8Array;
  /** The layer that has it, or deletes it, where files are read. */
  readonly layer?: string;
}

export interface FoundKeys {
  readonly keys: readonly FoundKey[];
  /** What the bytes of rows are. */
  readonly rowsAs: TableDtype;
  /** That answered. */
  readonly version: string;
  /** Why keys are unavailable, or answers are not of one version. */
  readonly trouble: string | undefined;
}

export interface RowSource {
  /** Of the version that is looked up, where there is one. */
  readonly manifest: Manifest | undefined;
  readonly tables: readonly SourceTable[];
  /** @param asStored rows in the table's own dtype, where servers would convert them */
  lookup(table: SourceTable, keys: Uint32Array, asStored: boolean): Promise<FoundKeys>;
  close(): void;
}
