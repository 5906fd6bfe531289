/**
 * The layer file of format version 1 (docs/formats/layer.md): terms, limits, and sizes that follow
 * from others. `layer-header.ts` reads and writes the header page.
 */
import type { TableDtype } from './manifest.ts';

export const HEADER_BYTES = 4096;
export const SECTION_ALIGNMENT = 4096;
export const BLOCK_BYTES: number = 1 << 20;
export const SEGMENT_BYTES_MAX: number = 2 ** 31;
export const SEGMENT_COUNT_MAX = 112;
export const DIM_MAX: number = 1 << 20;
export const SHARD_NUM_MAX = 65_536;
/** Longest value of dtype bytes: its location has 26 bits for the length. */
export const VALUE_BYTES_MAX: number = 2 ** 26 - 1;
/** Values of dtype bytes start at multiples of this, and each takes at least this much. */
export const VALUE_ALIGNMENT = 8;
/** The parentContentId of a base. */
export const NO_CONTENT_ID: string = '0'.repeat(32);
/** Bytes of a slot of the index: a key and a location. */
export const INDEX_STRIDE = 16;
/** Bytes of a slot of the deleted keys: a key. */
export const DELETED_STRIDE = 8;

/** Rows up to this many bytes are stored with their keys: one memory miss answers a key. */
export const INLINE_ROW_BYTES_MAX = 128;

export type LayerKind = 'base' | 'delta';
/** In the order of their numbers in a header. */
export const LAYER_LAYOUTS = ['inline', 'indexed', 'dense'] as const;
export type LayerLayout = (typeof LAYER_LAYOUTS)[number];

/** The size of one section of slots, rows or values. */
export interface SegmentSize {
  /** Rows or values; for an index: keys. */
  readonly rows: number;
  /**
   * Inline and index: slots, home and overflow. Rows (dense or of an index): equal to rows. Values:
   * units of VALUE_ALIGNMENT bytes.
   */
  readonly slots: number;
}

export interface LayerSegment extends SegmentSize {
  readonly offset: number;
  readonly bytes: number;
}

export interface LayerHeader {
  /** 32 hex digits. */
  readonly contentId: string;
  readonly kind: LayerKind;
  /** The contentId of the parent of a delta; '' for a base. */
  readonly parentContentId: string;
  readonly table: string;
  readonly layout: LayerLayout;
  readonly dtype: TableDtype;
  /** 0 for dtype bytes. */
  readonly dim: number;
  /** Bytes of a stored row, a multiple of 4; 0 for dtype bytes. */
  readonly rowBytes: number;
  /** Bytes from one slot (inline, index) or row (dense) to the next. */
  readonly stride: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly rowCount: number;
  readonly emptyKey: bigint;
  readonly firstKey: bigint;
  readonly keyStep: bigint;
  readonly homeSlots: number;
  /** Rows of each row segment but the last; 0 for inline and for dtype bytes. */
  readonly rowsPerSegment: number;
  /**
   * Inline and dense: all segments are alike. Indexed: the index, then `rowSegmentCount` segments
   * of rows or values.
   */
  readonly segments: readonly LayerSegment[];
  readonly rowSegmentCount: number;
  readonly deletedCount: number;
  /** 0 when no key is deleted, as are the two fields below. */
  readonly deletedOffset: number;
  readonly deletedSlots: number;
  readonly deletedHomeSlots: number;
  readonly blockCount: number;
  readonly checksumsOffset: number;
  readonly checksumsChecksum: bigint;
  readonly fileBytes: number;
}

export function alignUp(bytes: number, alignment: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}

/** Bytes from one slot or row to the next in the segments that map keys. */
export function computeStride(layout: LayerLayout, rowBytes: number): number {
  if (layout === 'indexed') return INDEX_STRIDE;
  return layout === 'inline' ? alignUp(8 + rowBytes, 8) : alignUp(rowBytes, 4);
}

/** Bytes from one row of an indexed layer to the next; for dtype bytes, the unit of locations. */
export function computeRowStride({
  dtype,
  rowBytes,
}: Pick<LayerHeader, 'dtype' | 'rowBytes'>): number {
  return dtype === 'bytes' ? VALUE_ALIGNMENT : alignUp(rowBytes, 4);
}

/** Bytes that a value of dtype bytes occupies in its segment. */
export function paddedValueBytes(length: number): number {
  return Math.max(VALUE_ALIGNMENT, alignUp(length, VALUE_ALIGNMENT));
}

/** max(1, ceil(5 · rows / (4 · segments))): a load of at most 0.8. */
export function computeHomeSlots(rowCount: number, segmentCount: number): number {
  return Math.max(1, Math.ceil((5 * rowCount) / (4 * segmentCount)));
}

export function computeBlockCount(checksumsOffset: number): number {
  return Math.ceil((checksumsOffset - HEADER_BYTES) / BLOCK_BYTES);
}

/** The deleted keys of a delta as a segment; undefined when there are none. */
export function getDeletedSegment(header: LayerHeader): LayerSegment | undefined {
  const { deletedCount, deletedOffset, deletedSlots } = header;
  if (deletedCount === 0) return undefined;
  const bytes = deletedSlots * DELETED_STRIDE;
  return { offset: deletedOffset, bytes, rows: deletedCount, slots: deletedSlots };
}

/** The segments that map keys: all but those of an index's rows. */
export function getKeySegments(header: LayerHeader): readonly LayerSegment[] {
  return header.segments.slice(0, header.segments.length - header.rowSegmentCount);
}

/** The segments of an index's rows or values; none for other layouts. */
export function getRowSegments(header: LayerHeader): readonly LayerSegment[] {
  return header.segments.slice(header.segments.length - header.rowSegmentCount);
}
