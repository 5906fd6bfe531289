/** What somebody asks for, from flags or from a spec file. */
import type { TableDtype } from '../../lib/core/manifest.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import type { InputSpec } from './sources/row-source.ts';

/** Files, or a table as a version has it. */
export type TableOrigin = InputSpec | StoredTables;

export interface StoredTables {
  readonly version: string;
  /** That one alone. */
  readonly table?: string | undefined;
}

export interface TableRequest {
  readonly input: TableOrigin;
  /** Compare with this: the delta is what turns it into `input`. */
  readonly old?: TableOrigin | undefined;
  /** Files of keys that are deleted after everything else. */
  readonly deletes?: readonly string[] | undefined;
  /** Of the parent's table, else f32. */
  readonly dtype?: TableDtype | undefined;
  readonly search?: QuantizationSearch | undefined;
  readonly layout?: 'indexed' | undefined;
  /** dim numbers, one for all of them, or none for zeros. */
  readonly defaultRow?: readonly number[] | undefined;
  readonly onDuplicate?: 'last' | 'error' | undefined;
}

export interface BuildRequest {
  readonly bundle: string;
  readonly version: string;
  /** compact: bases of what the parent's chains hold. */
  readonly jobMode: 'base' | 'delta' | 'compact';
  /** The version that a delta goes on, or that is merged. */
  readonly parent: string | undefined;
  /** The parent's when absent. */
  readonly shardNum: number | undefined;
  readonly tables: readonly TableRequest[];
  readonly golden: string | undefined;
  readonly onlyShards: string | undefined;
  readonly publish: boolean;
  readonly chainMax: number;
  readonly memoryBytes: number;
  readonly threads: number;
}
