/**
 * Chooses the layout of a shard and computes the header from the sizes of its sections: what a
 * writer knows before it hashes any byte.
 */
import { CubeError } from './errors.ts';
import {
  alignUp,
  computeBlockCount,
  computeRowStride,
  computeStride,
  DELETED_STRIDE,
  HEADER_BYTES,
  INLINE_ROW_BYTES_MAX,
  type LayerHeader,
  type LayerKind,
  type LayerLayout,
  type LayerSegment,
  NO_CONTENT_ID,
  SECTION_ALIGNMENT,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  type SegmentSize,
} from './layer-format.ts';
import type { TableDtype } from './manifest.ts';
import { computeRowBytes } from './row-codec.ts';

/** Table and shard of a layer, and its parent. */
export interface LayerIdentity {
  readonly table: string;
  readonly dtype: TableDtype;
  /** 0 for dtype bytes. */
  readonly dim: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** Delta: contentId of the parent; base: ''. */
  readonly parentContentId: string;
}

/** Properties that follow from the keys. */
export interface LayerShape {
  readonly layout: LayerLayout;
  readonly rowCount: number;
  readonly deletedCount: number;
  /** 0 for dense, as are the numbers of home slots. */
  readonly emptyKey: bigint;
  readonly homeSlots: number;
  readonly deletedHomeSlots: number;
  /** 0 unless dense, as is the step. */
  readonly firstKey: bigint;
  readonly keyStep: bigint;
  /** Dense, and indexed rows of one size; otherwise 0. */
  readonly rowsPerSegment: number;
}

export interface SectionSizes {
  /** Searched or dense segments. */
  readonly keys: readonly SegmentSize[];
  /** Segments of an index's rows or values. */
  readonly rows: readonly SegmentSize[];
  readonly deletedSlots: number;
}

/** The default layout of a shard. */
export function chooseLayout(
  kind: LayerKind,
  dtype: TableDtype,
  rowBytes: number,
  isProgression: boolean,
): LayerLayout {
  if (dtype === 'bytes') return 'indexed';
  if (isProgression && kind === 'base') return 'dense';
  return rowBytes <= INLINE_ROW_BYTES_MAX ? 'inline' : 'indexed';
}

export function computeRowsPerSegment(stride: number, segmentBytesMax: number): number {
  return Math.max(1, Math.floor(segmentBytesMax / stride));
}

/** The sizes of segments of `count` rows, one after another. */
export function computeRowSegmentSizes(count: number, rowsPerSegment: number): SegmentSize[] {
  return Array.from({ length: Math.ceil(count / rowsPerSegment) }, (_, i) => {
    const rows = Math.min(rowsPerSegment, count - i * rowsPerSegment);
    return { rows, slots: rows };
  });
}

export function failTooManySegments(table: string, count: number): never {
  throw new CubeError(
    'TOO_LARGE',
    `table ${table}: a shard of ${count} rows needs more than ${SEGMENT_COUNT_MAX} segments; ` +
      'use more shards',
  );
}

/**
 * Computes the header; checksums and content id are still zero.
 * @throws CubeError TOO_LARGE when there are more segments or deleted keys than a layer can have
 */
export function buildLayerHeader(
  subject: LayerIdentity,
  content: LayerShape,
  sizes: SectionSizes,
): LayerHeader {
  const { table, dtype, dim, parentContentId } = subject;
  const rowBytes = computeRowBytes(dtype, dim);
  const stride = computeStride(content.layout, rowBytes);
  const all = [...sizes.keys, ...sizes.rows];
  if (all.length > SEGMENT_COUNT_MAX) failTooManySegments(table, content.rowCount);
  let end = HEADER_BYTES;
  const segments = all.map((size, i): LayerSegment => {
    const offset = alignUp(end, SECTION_ALIGNMENT);
    const bytes =
      size.slots * (i < sizes.keys.length ? stride : computeRowStride({ dtype, rowBytes }));
    end = offset + bytes;
    return { ...size, offset, bytes };
  });
  const { deletedSlots } = sizes;
  const deletedOffset = deletedSlots === 0 ? 0 : alignUp(end, SECTION_ALIGNMENT);
  if (deletedSlots * DELETED_STRIDE > SEGMENT_BYTES_MAX) {
    throw new CubeError(
      'TOO_LARGE',
      `table ${table}: ${content.deletedCount} deleted keys in a shard; use more shards`,
    );
  }
  if (deletedSlots > 0) end = deletedOffset + deletedSlots * DELETED_STRIDE;
  const checksumsOffset = alignUp(end, SECTION_ALIGNMENT);
  const blockCount = computeBlockCount(checksumsOffset);
  return {
    ...subject,
    ...content,
    kind: parentContentId === '' ? 'base' : 'delta',
    rowBytes,
    stride,
    segments,
    rowSegmentCount: sizes.rows.length,
    deletedOffset,
    deletedSlots,
    blockCount,
    checksumsOffset,
    fileBytes: checksumsOffset + 8 * blockCount,
    contentId: NO_CONTENT_ID,
    checksumsChecksum: 0n,
  };
}
