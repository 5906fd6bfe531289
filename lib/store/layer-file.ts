/**
 * Layer files on disk, written atomically and read as verified batches of rows.
 * docs/formats/layer.md defines the bytes; lib/core defines their meaning.
 */
import { CubeError } from '../core/errors.ts';
import { planLayer } from '../core/layer-builder.ts';
import { DELETED_STRIDE, getDeletedSegment, getKeySegments } from '../core/layer-format.ts';
import type { LayerInput } from '../core/layer-input.ts';
import { LayerReader } from './layer-reader.ts';
import {
  IndexedRowReader,
  type RowBatch,
  readDenseRows,
  readSlotKeys,
  readSlotRows,
} from './row-batches.ts';
import { SectionWriter, type WrittenLayer } from './section-writer.ts';

export type { RowBatch } from './row-batches.ts';
export type { WrittenLayer } from './section-writer.ts';

const BATCH_ROWS = 65_536;
const BATCH_BYTES = 8 << 20;

/**
 * Builds and writes a layer. Equal content gives an equal file with the same name; an existing file
 * is kept.
 * @param target returns the final path for a content id
 * @param segmentBytesMax a smaller segment size than the format allows, for tests
 * @throws CubeError INVALID_ARGUMENT naming a key that is duplicate, also deleted, or of another
 *   shard
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
 * All rows of a layer (upserts of a delta) in file order, in batches of at most 65,536. The caller
 * owns the arrays. Every byte is verified against its block's checksum.
 * @throws CubeError CORRUPT when the file is damaged, or its rows do not match its header and index
 */
export function* readLayerRows(path: string): Generator<RowBatch> {
  const reader = new LayerReader(path);
  try {
    const { header } = reader;
    let rows = 0;
    for (const batch of header.layout === 'indexed'
      ? readIndexedRows(reader)
      : readInlineAndDenseRows(reader)) {
      rows += batch.count;
      if (batch.count > 0) yield batch;
    }
    if (rows !== header.rowCount) {
      throw new CubeError(
        'CORRUPT',
        `${path}: has ${rows} rows, its header says ${header.rowCount}; build it again`,
      );
    }
  } finally {
    reader.close();
  }
}

/**
 * The deleted keys of a delta in file order, as words (low, high), in batches of at most 65,536.
 */
export function* readDeletedKeys(path: string): Generator<Uint32Array> {
  const reader = new LayerReader(path);
  try {
    const segment = getDeletedSegment(reader.header);
    if (segment === undefined) return;
    for (const piece of reader.slots(segment, BATCH_ROWS, DELETED_STRIDE)) {
      const keys = readSlotKeys(piece, reader.header.emptyKey);
      if (keys.length > 0) yield keys;
    }
  } finally {
    reader.close();
  }
}

/** For layouts that store rows beside their keys. */
function* readInlineAndDenseRows(reader: LayerReader): Generator<RowBatch> {
  const { header } = reader;
  const perPiece = Math.max(1, Math.min(BATCH_ROWS, Math.floor(BATCH_BYTES / header.stride)));
  let rowsBefore = 0;
  for (const segment of header.segments) {
    for (const piece of reader.slots(segment, perPiece)) {
      if (header.layout === 'dense') {
        const batch = readDenseRows(header, piece, rowsBefore);
        rowsBefore += batch.count;
        yield batch;
      } else yield readSlotRows(piece, header.stride, header.rowBytes, header.emptyKey);
    }
  }
}

/** Uses separate readers for the index and the rows, because each buffers its current block. */
function* readIndexedRows(index: LayerReader): Generator<RowBatch> {
  const { header } = index;
  const rows = new LayerReader(index.path);
  try {
    const stored = new IndexedRowReader(rows);
    const rowBytes = Math.max(header.stride, header.rowBytes);
    const perPiece = Math.max(1, Math.min(BATCH_ROWS, Math.floor(BATCH_BYTES / rowBytes)));
    for (const segment of getKeySegments(header)) {
      for (const piece of index.slots(segment, perPiece)) {
        const { keys, rows: places } = readSlotRows(piece, header.stride, 8, header.emptyKey);
        yield* stored.readBatches(
          keys,
          new Uint32Array(places.buffer, 0, keys.length),
          BATCH_BYTES,
        );
      }
    }
  } finally {
    rows.close();
  }
}
