/**
 * From the sizes of a layer's sections to its header: which layout a shard gets, and where each section lies. What a
 * writer knows before any byte is hashed.
 */
import { CubeError } from './errors.ts';
import {
  alignUp,
  blockCountOf,
  DELETED_STRIDE,
  HEADER_BYTES,
  INLINE_ROW_BYTES_MAX,
  type LayerHeader,
  type LayerKind,
  type LayerLayout,
  type LayerSegment,
  NO_CONTENT_ID,
  rowStrideOf,
  SECTION_ALIGNMENT,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  type SegmentSize,
  strideOf,
} from './layer-format.ts';
import type { TableDtype } from './manifest.ts';
import { rowBytesOf } from './row-codec.ts';

/** What a layer is of. */
export interface LayerSubject {
  readonly table: string;
  readonly dtype: TableDtype;
  /** 0 for dtype bytes. */
  readonly dim: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** Of a delta: the contentId that it goes on top of; '' for a base. */
  readonly parentContentId: string;
}

/** What was decided from the keys. */
export interface LayerContent {
  readonly layout: LayerLayout;
  readonly rowCount: number;
  readonly deletedCount: number;
  /** 0 for dense, as are the home slots. */
  readonly emptyKey: bigint;
  readonly homeSlots: number;
  readonly deletedHomeSlots: number;
  /** 0 but for dense, as is the step. */
  readonly firstKey: bigint;
  readonly keyStep: bigint;
  /** Of dense and of indexed rows of one size; else 0. */
  readonly rowsPerSegment: number;
}

export interface SectionSizes {
  /** Searched or dense segments. */
  readonly keys: readonly SegmentSize[];
  /** Of an index's rows or values. */
  readonly rows: readonly SegmentSize[];
  readonly deletedSlots: number;
}

/** The layout of a shard that nobody asked for another of. */
export function layoutFor(
  kind: LayerKind,
  dtype: TableDtype,
  rowBytes: number,
  isProgression: boolean,
): LayerLayout {
  if (dtype === 'bytes') return 'indexed';
  if (isProgression && kind === 'base') return 'dense';
  return rowBytes <= INLINE_ROW_BYTES_MAX ? 'inline' : 'indexed';
}

export function rowsPerSegmentOf(stride: number, segmentBytesMax: number): number {
  return Math.max(1, Math.floor(segmentBytesMax / stride));
}

/** Segments of `count` rows one after the other. */
export function rowSegmentSizes(count: number, rowsPerSegment: number): SegmentSize[] {
  return Array.from({ length: Math.ceil(count / rowsPerSegment) }, (_, i) => {
    const rows = Math.min(rowsPerSegment, count - i * rowsPerSegment);
    return { rows, slots: rows };
  });
}

export function tooManySegments(table: string, count: number): never {
  throw new CubeError(
    'TOO_LARGE',
    `table ${table}: a shard of ${count} rows needs more than ${SEGMENT_COUNT_MAX} segments; use more shards`,
  );
}

/**
 * The header, its checksums and content id still zero.
 * @throws CubeError TOO_LARGE when there are more segments, or more deleted keys, than a layer can have
 */
export function layOut(
  subject: LayerSubject,
  content: LayerContent,
  sizes: SectionSizes,
): LayerHeader {
  const { table, dtype, dim, parentContentId } = subject;
  const rowBytes = rowBytesOf(dtype, dim);
  const stride = strideOf(content.layout, rowBytes);
  const all = [...sizes.keys, ...sizes.rows];
  if (all.length > SEGMENT_COUNT_MAX) tooManySegments(table, content.rowCount);
  let end = HEADER_BYTES;
  const segments = all.map((size, i): LayerSegment => {
    const offset = alignUp(end, SECTION_ALIGNMENT);
    const bytes = size.slots * (i < sizes.keys.length ? stride : rowStrideOf({ dtype, rowBytes }));
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
  const blockCount = blockCountOf(checksumsOffset);
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
