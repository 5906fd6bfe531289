/** The request for a build, made from command-line options or a spec file. */
import type { TableDtype } from '../../lib/core/manifest.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import type { InputSpec } from './sources/row-source.ts';
import type { ExpectedScoresRequest } from './verify-version.ts';

/** Input files, or tables of a version in the repository. */
export type TableOrigin = InputSpec | StoredTables;

export interface StoredTables {
  readonly version: string;
  /** Only this table; all tables when absent. */
  readonly table?: string | undefined;
}

export interface TableRequest {
  readonly input: TableOrigin;
  /** Compare with these rows: the delta contains the changes from `old` to `input`. */
  readonly old?: TableOrigin | undefined;
  /** Files with keys to delete; applied after all other input. */
  readonly deletes?: readonly string[] | undefined;
  /** When absent: the dtype of the parent's table, else that of the stored rows, else f32. */
  readonly dtype?: TableDtype | undefined;
  readonly search?: QuantizationSearch | undefined;
  readonly layout?: 'indexed' | undefined;
  /** `dim` numbers, one number for all elements, or none for zeros. */
  readonly defaultRow?: readonly number[] | undefined;
  readonly onDuplicate?: 'last' | 'error' | undefined;
}

export interface BuildRequest {
  readonly bundle: string;
  readonly version: string;
  /** compact: merge the parent's layer chains into bases. */
  readonly jobMode: 'base' | 'delta' | 'compact';
  /** Parent version of a delta, or the version to merge. */
  readonly parent: string | undefined;
  /** When absent, the parent's shard count. */
  readonly shardNum: number | undefined;
  readonly tables: readonly TableRequest[];
  readonly golden: string | undefined;
  readonly expect: ExpectedScoresRequest;
  readonly onlyShards: string | undefined;
  readonly publish: boolean;
  readonly chainMax: number;
  readonly memoryBytes: number;
  readonly threads: number;
}
