/**
 * A table from files of records (key and row), read in order. The first record is read when the
 * table is opened, because a source must know the width of its rows.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { BatchBuilder } from './batch-builder.ts';
import {
  type InputSpec,
  type RowBatch,
  type RowSource,
  type SourceFile,
  toSourceFiles,
  type ValueBatch,
} from './row-source.ts';

/** Adds the records of a file to the batch, and yields whenever the batch is full. */
export type ReadRecords = (batch: BatchBuilder) => AsyncGenerator<void>;

export interface RecordFile {
  /** The files that contain the records. */
  readonly files: readonly SourceFile[];
  /** Number of records, if known in advance. */
  readonly rows?: number | undefined;
  readonly read: ReadRecords;
}

/** @throws CubeError if the first record is damaged, or there is none and no `spec.dim` */
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
    files: toSourceFiles(files),
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
  if (!batch.isEmpty) yield batch.take();
}

async function findDim(
  name: string,
  parts: readonly RecordFile[],
  { valueFormat = 'f32', dim: requestedDim = 0, paths }: InputSpec,
): Promise<number> {
  const batch = new BatchBuilder({ valueFormat, dim: requestedDim, rowsMax: 1 });
  for (const { read } of parts) {
    for await (const _ of read(batch)) {
      if (batch.count > 0) return batch.dim;
      batch.take();
    }
    if (batch.count > 0) return batch.dim;
  }
  if (requestedDim > 0) return requestedDim;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `table ${name}: no row in ${paths.join(', ')}; give the numbers per row with --dim`,
  );
}
