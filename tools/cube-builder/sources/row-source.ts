/**
 * The interface of all input formats: the rows of a table in batches of columns. A source knows
 * the width of its rows before the first batch, keeps the input order (the last row of a duplicate
 * key wins), and has one batch in memory, independent of the file size.
 */

/** Maximum rows and bytes of a batch; a single row or value may be larger. */
export const BATCH_ROWS_MAX: number = 64 << 10;
export const BATCH_BYTES_MAX: number = 8 << 20;

/** The arrays belong to the source and are valid until the next batch is requested. */
export interface RowBatch {
  /** Number of rows; 0 if the batch only deletes keys. */
  readonly count: number;
  /** 2n words (low, high). */
  readonly keys: Uint32Array;
  /** n · dim floats. */
  readonly rows: Float32Array;
  /** 2m words: keys to delete after the rows of this batch. */
  readonly deletedKeys?: Uint32Array;
}

/** A batch of values of any length (dtype bytes). */
export interface ValueBatch {
  readonly count: number;
  readonly keys: Uint32Array;
  /** The values, concatenated. */
  readonly values: Uint8Array;
  /** n end offsets of the values in `values`. */
  readonly ends: Uint32Array;
  readonly deletedKeys?: Uint32Array;
}

export interface SourceFile {
  readonly path: string;
  readonly bytes: number;
  readonly mtimeMs: number;
}

/** Copies only the fields of SourceFile, without those of the readers. */
export function toSourceFiles(files: readonly SourceFile[]): SourceFile[] {
  return files.map(({ path, bytes, mtimeMs }) => ({ path, bytes, mtimeMs }));
}

/** The rows of one table. */
export interface RowSource {
  /** Name of the table, already valid. */
  readonly name: string;
  /** Floats per row; 0 for values of any length, which come in `ValueBatch`es. */
  readonly dim: number;
  /** Number of rows, if known in advance. */
  readonly rows?: number;
  /** Bytes of rows and keys, if known. */
  readonly bytes?: number;
  /** All files that are read, in order; none for standard input. */
  readonly files: readonly SourceFile[];
  /**
   * Reads the rows from the start; may be called again, except for standard input.
   * @throws CubeError with the file and the position in it
   */
  batches(): AsyncIterable<RowBatch | ValueBatch>;
}

export const INPUT_FORMATS = [
  'pruned',
  'npy',
  'npz',
  'seqfile',
  'cube-dict',
  'parquet',
  'csv',
  'tsv',
  'jsonl',
  'safetensors',
] as const;

export type InputFormat = (typeof INPUT_FORMATS)[number];

/** Encodings of binary values (SequenceFile, Cube dict, Parquet, base64 in JSON lines). */
export const VALUE_FORMATS = ['f32', 'f16', 'bf16', 'cube-i8', 'bytes'] as const;

export type ValueFormat = (typeof VALUE_FORMATS)[number];

/** Input paths and how to read them. All fields but the paths have defaults from the files. */
export interface InputSpec {
  /** Files, folders and globs, or only "-" for standard input. */
  readonly paths: readonly string[];
  /** When absent, detected by content and extension; required for standard input. */
  readonly format?: InputFormat | undefined;
  /** Table name; when absent, the name of the file, folder or array. */
  readonly table?: string | undefined;
  /** Only these arrays or tensors of a file; all when absent. */
  readonly arrays?: readonly string[] | undefined;
  /** Name, or number from 0, of the key column (in JSON lines, the key field). */
  readonly keyColumn?: string | undefined;
  /** If set, keys are text and are hashed as features of the slot with this index. */
  readonly signKey?: number | undefined;
  /** Columns that form the row; all but the key column when absent. */
  readonly valueColumns?: readonly string[] | undefined;
  /** Whether the first line of CSV and TSV has column names; detected when absent. */
  readonly header?: boolean | undefined;
  /** f32 when absent. */
  readonly valueFormat?: ValueFormat | undefined;
  /** Floats per row; required if the input has no rows, else checked. */
  readonly dim?: number | undefined;
  /** The input is a delta: a Cube dict may lack the files of its base. */
  readonly delta?: boolean | undefined;
}
