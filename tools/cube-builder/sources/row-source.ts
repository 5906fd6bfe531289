/**
 * What every input format gives: a table's rows in batches of columns. A source says its width before the first batch
 * is read, keeps the order of its input (a key that comes twice: the last one is meant), and holds one batch in memory,
 * whatever the size of its files.
 */

/** Rows of a batch at most, and bytes unless one row or value alone is larger. */
export const BATCH_ROWS_MAX: number = 64 << 10;
export const BATCH_BYTES_MAX: number = 8 << 20;

/** The arrays are the source's: valid until the next batch is asked for. */
export interface RowBatch {
  /** Rows; 0 when the batch only deletes. */
  readonly count: number;
  /** 2n words (low, high). */
  readonly keys: Uint32Array;
  /** n · dim. */
  readonly rows: Float32Array;
  /** 2m words: keys deleted after this batch's rows. */
  readonly deletedKeys?: Uint32Array;
}

/** The same for values of any length (dtype bytes). */
export interface ValueBatch {
  readonly count: number;
  readonly keys: Uint32Array;
  /** One value after another. */
  readonly values: Uint8Array;
  /** n: where each value ends in `values`. */
  readonly ends: Uint32Array;
  readonly deletedKeys?: Uint32Array;
}

export interface SourceFile {
  readonly path: string;
  readonly bytes: number;
  readonly mtimeMs: number;
}

/** The files as they are kept and compared; readers' own fields stay behind. */
export function sourceFiles(files: readonly SourceFile[]): SourceFile[] {
  return files.map(({ path, bytes, mtimeMs }) => ({ path, bytes, mtimeMs }));
}

/** The rows of one table. */
export interface RowSource {
  /** The table's name, a legal one. */
  readonly name: string;
  /** Floats of a row; 0: values of any length, the batches are `ValueBatch`es. */
  readonly dim: number;
  /** Rows, where the input says so before it is read. */
  readonly rows?: number;
  /** Bytes of rows and keys, where known. */
  readonly bytes?: number;
  /** Every file that is read, in order; none for standard input. */
  readonly files: readonly SourceFile[];
  /**
   * The rows from the start; may be asked for again, except of standard input.
   * @throws CubeError naming the file and the place in it
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

/** What the bytes of a byte-valued record are (SequenceFile, Cube dict, Parquet binary, base64 in JSON lines). */
export const VALUE_FORMATS = ['f32', 'f16', 'bf16', 'cube-i8', 'bytes'] as const;

export type ValueFormat = (typeof VALUE_FORMATS)[number];

/** What to read and how; everything but the paths may be left to what the files say. */
export interface InputSpec {
  /** Files, folders, globs, or "-" alone for standard input. */
  readonly paths: readonly string[];
  /** Detected by content and extension when absent; must be given for standard input. */
  readonly format?: InputFormat | undefined;
  /** The table's name; when absent, the name of the file, folder or array. */
  readonly table?: string | undefined;
  /** Only these arrays or tensors of files that hold several; all when absent. */
  readonly arrays?: readonly string[] | undefined;
  /** Name, or number from 0, of the column (the field of a JSON line) that holds the key. */
  readonly keyColumn?: string | undefined;
  /** The keys are text, features of the slot with this index: their hash is the key. */
  readonly signKey?: number | undefined;
  /** Columns that make the row; all but the key column when absent. */
  readonly valueColumns?: readonly string[] | undefined;
  /** Whether CSV and TSV begin with a line of names; seen from the first line when absent. */
  readonly header?: boolean | undefined;
  /** f32 when absent. */
  readonly valueFormat?: ValueFormat | undefined;
  /** Floats of a row: checked where the input says, needed where it has no rows at all. */
  readonly dim?: number | undefined;
  /** The input is a delta: a Cube dict directory may lack the files of its base. */
  readonly delta?: boolean | undefined;
}
