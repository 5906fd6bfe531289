/**
 * A table from files of records (key and row one after another): the files in order, as one. The first record is read
 * beforehand, because a source says its width before its first batch.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { BatchBuilder } from './batch-builder.ts';
import {
  type InputSpec,
  type RowBatch,
  type RowSource,
  type SourceFile,
  sourceFiles,
  type ValueBatch,
} from './row-source.ts';

/** Adds a file's records to the batch, and yields whenever it is full. Its end is the file's. */
export type ReadRecords = (batch: BatchBuilder) => AsyncGenerator<void>;

export interface RecordFile {
  /** The files it is made of. */
  readonly files: readonly SourceFile[];
  /** Records, where known beforehand. */
  readonly rows?: number | undefined;
  readonly read: ReadRecords;
}

/** @throws CubeError when the first record is damaged, or there is none and `spec.dim` is not given */
export async function openRecords(
  name: string,
  parts: readonly RecordFile[],
  spec: InputSpec,
): Promise<RowSource> {
  const valueFormat = spec.valueFormat ?? 'f32';
  const dim = valueFormat === 'bytes' ? 0 : await findDim(name, parts, spec);
  const files = parts.flatMap((part) => part.files);
  const counts = parts.map((part) => part.rows);
  const isKnown = counts.every((count) => count !== undefined);
  const rows = isKnown ? counts.reduce((sum, count) => sum + count, 0) : undefined;
  return {
    name,
    dim,
    ...(rows === undefined ? {} : { rows }),
    ...(rows === undefined || dim === 0 ? {} : { bytes: rows * (8 + 4 * dim) }),
    files: sourceFiles(files),
    batches: () => readAll(parts, new BatchBuilder({ valueFormat, dim })),
  };
}

async function* readAll(
  parts: readonly RecordFile[],
  batch: BatchBuilder,
): AsyncGenerator<RowBatch | ValueBatch> {
  for (const { read } of parts) {
    for await (const _ of read(batch)) yield batch.take();
  }
  if (!batch.empty) yield batch.take();
}

async function findDim(
  name: string,
  parts: readonly RecordFile[],
  { valueFormat = 'f32', dim: wanted = 0, paths }: InputSpec,
): Promise<number> {
  const batch = new BatchBuilder({ valueFormat, dim: wanted, rowsMax: 1 });
  for (const { read } of parts) {
    for await (const _ of read(batch)) {
      if (batch.count > 0) return batch.dim;
      batch.take();
    }
    if (batch.count > 0) return batch.dim;
  }
  if (wanted > 0) return wanted;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `table ${name}: no row in ${paths.join(', ')}, so nothing says how wide its rows are (--dim)`,
  );
}
