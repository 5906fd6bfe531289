/**
 * Layer files on disk: written whole or not at all, and read as verified batches of rows. The bytes are
 * docs/formats/layer.md's; what they mean is lib/core's.
 */
import { CubeError } from '../core/errors.ts';
import { planLayer } from '../core/layer-builder.ts';
import { DELETED_STRIDE, deletedSegment, keySegments } from '../core/layer-format.ts';
import type { LayerInput } from '../core/layer-input.ts';
import { LayerReader } from './layer-reader.ts';
import { keysOfSlots, type RowBatch, rowsOfDense, rowsOfSlots, StoredRows } from './row-batches.ts';
import { SectionWriter, type WrittenLayer } from './section-writer.ts';

export type { RowBatch } from './row-batches.ts';
export type { WrittenLayer } from './section-writer.ts';

const BATCH_ROWS = 65_536;
const BATCH_BYTES = 8 << 20;

/**
 * Builds and writes a layer. The same content gives the same file under the same name; one that is there already is
 * kept.
 * @param target the final path of a content id
 * @param segmentBytesMax smaller segments than the format allows, for tests
 * @throws CubeError INVALID_ARGUMENT naming a key that comes twice, is deleted too, or belongs to another shard
 */
export function writeLayer(
  layer: LayerInput,
  target: (contentId: string) => string,
  segmentBytesMax?: number,
): WrittenLayer {
  const plan = planLayer(layer, segmentBytesMax);
  const writer = new SectionWriter(target);
  try {
    for (let section = 0; section < plan.sectionCount; section++) {
      writer.pad();
      writer.write(plan.sectionBytes(section));
    }
    return writer.finish(plan.header);
  } catch (error) {
    writer.abort();
    throw error;
  }
}

/**
 * All rows (of a delta: its upserts) of a layer in file order, in batches of at most 65,536; the arrays are the caller's.
 * Every byte was verified against its block's checksum.
 * @throws CubeError CORRUPT when the file is damaged, or its rows are not as its header and index say
 */
export function* readLayerRows(path: string): Generator<RowBatch> {
  const reader = new LayerReader(path);
  try {
    const { header } = reader;
    let rows = 0;
    for (const batch of header.layout === 'indexed' ? indexedRows(reader) : storedRows(reader)) {
      rows += batch.count;
      if (batch.count > 0) yield batch;
    }
    if (rows !== header.rowCount) {
      throw new CubeError(
        'CORRUPT',
        `${path}: holds ${rows} rows, its header says ${header.rowCount}; build it again`,
      );
    }
  } finally {
    reader.close();
  }
}

/** The deleted keys of a delta in file order, as words (low, high), in batches of at most 65,536. */
export function* readDeletedKeys(path: string): Generator<Uint32Array> {
  const reader = new LayerReader(path);
  try {
    const segment = deletedSegment(reader.header);
    if (segment === undefined) return;
    for (const piece of reader.slots(segment, BATCH_ROWS, DELETED_STRIDE)) {
      const keys = keysOfSlots(piece, reader.header.emptyKey);
      if (keys.length > 0) yield keys;
    }
  } finally {
    reader.close();
  }
}

/** Of the layouts that store rows where their keys are. */
function* storedRows(reader: LayerReader): Generator<RowBatch> {
  const { header } = reader;
  const perPiece = Math.max(1, Math.min(BATCH_ROWS, Math.floor(BATCH_BYTES / header.stride)));
  let rowsBefore = 0;
  for (const segment of header.segments) {
    for (const piece of reader.slots(segment, perPiece)) {
      if (header.layout === 'dense') {
        const batch = rowsOfDense(header, piece, rowsBefore);
        rowsBefore += batch.count;
        yield batch;
      } else yield rowsOfSlots(piece, header.stride, header.rowBytes, header.emptyKey);
    }
  }
}

/** The index is read by one reader, the rows by another: each holds the block that it is in. */
function* indexedRows(index: LayerReader): Generator<RowBatch> {
  const { header } = index;
  const rows = new LayerReader(index.path);
  try {
    const stored = new StoredRows(rows);
    const rowBytes = Math.max(header.stride, header.rowBytes);
    const perPiece = Math.max(1, Math.min(BATCH_ROWS, Math.floor(BATCH_BYTES / rowBytes)));
    for (const segment of keySegments(header)) {
      for (const piece of index.slots(segment, perPiece)) {
        const { keys, rows: places } = rowsOfSlots(piece, header.stride, 8, header.emptyKey);
        yield* stored.batches(keys, new Uint32Array(places.buffer, 0, keys.length), BATCH_BYTES);
      }
    }
  } finally {
    rows.close();
  }
}
