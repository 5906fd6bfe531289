/**
 * The header page of a layer file (docs/formats/layer.md): its codec, and every check that needs no more than the page.
 * A header that decodes is safe to act on: its ranges lie inside the file, its counts agree with its sizes, and no
 * number in it can make a reader allocate or address beyond them.
 */
import { CubeError } from './errors.ts';
import { xxh64 } from './hash.ts';
import {
  alignUp,
  BLOCK_BYTES,
  blockCountOf,
  DELETED_STRIDE,
  DIM_MAX,
  HEADER_BYTES,
  keySegments,
  type LayerHeader,
  type LayerKind,
  type LayerLayout,
  type LayerSegment,
  NO_CONTENT_ID,
  rowSegments,
  rowStrideOf,
  SECTION_ALIGNMENT,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  SHARD_NUM_MAX,
  strideOf,
} from './layer-format.ts';
import { TABLE_DTYPES } from './manifest.ts';
import { NAME_PATTERN } from './names.ts';
import { rowBytesOf } from './row-codec.ts';

const LAYER_FORMAT_VERSION = 1;
const MAGIC = Uint8Array.of(0x48, 0x43, 0x55, 0x42, 0x45, 0x0d, 0x0a, 0x1a);
const HASH_MIX = 1;
const CONTENT_ID_AT = 24;
const PARENT_AT = 40;
const TABLE_NAME_AT = 260;
const SEGMENTS_AT = 512;

const KINDS: readonly LayerKind[] = ['base', 'delta'];
const LAYOUTS: readonly LayerLayout[] = ['inline', 'indexed', 'dense'];

function setContentId(page: Uint8Array, at: number, contentId: string): void {
  for (let i = 0; i < 16; i++) {
    page[at + i] = Number.parseInt(contentId.slice(2 * i, 2 * i + 2), 16);
  }
}

function contentIdAt(page: Uint8Array, at: number): string {
  return Array.from(page.subarray(at, at + 16), (b) => b.toString(16).padStart(2, '0')).join('');
}

/** The page with contentId and headerChecksum zero: what the content id covers after the sections. */
export function encodeUnsignedHeader(header: LayerHeader): Uint8Array {
  const page = new Uint8Array(HEADER_BYTES);
  const view = new DataView(page.buffer);
  const u32 = (at: number, value: number): void => view.setUint32(at, value, true);
  const u64 = (at: number, value: number | bigint): void =>
    view.setBigUint64(at, BigInt(value), true);
  page.set(MAGIC, 0);
  u32(8, LAYER_FORMAT_VERSION);
  u32(12, HEADER_BYTES);
  if (header.kind === 'delta') setContentId(page, PARENT_AT, header.parentContentId);
  u32(56, KINDS.indexOf(header.kind));
  u32(60, LAYOUTS.indexOf(header.layout));
  u32(64, TABLE_DTYPES.indexOf(header.dtype));
  u32(68, header.dim);
  u32(72, header.rowBytes);
  u32(76, header.stride);
  u32(80, header.shardIndex);
  u32(84, header.shardNum);
  u64(88, header.rowCount);
  u64(96, header.deletedCount);
  u64(104, header.emptyKey);
  u64(112, header.firstKey);
  u64(120, header.keyStep);
  u64(128, header.homeSlots);
  u64(136, header.rowsPerSegment);
  u32(144, HASH_MIX);
  u32(148, header.segments.length);
  u32(152, SECTION_ALIGNMENT);
  u32(156, BLOCK_BYTES);
  u64(160, header.blockCount);
  u64(168, header.checksumsOffset);
  u64(176, header.checksumsChecksum);
  u64(184, header.deletedOffset);
  u64(192, header.deletedSlots);
  u64(200, header.fileBytes);
  u32(208, header.rowSegmentCount);
  u64(216, header.deletedHomeSlots);
  const name = new TextEncoder().encode(header.table);
  u32(256, name.length);
  page.set(name, TABLE_NAME_AT);
  header.segments.forEach((segment, i) => {
    const at = SEGMENTS_AT + 32 * i;
    u64(at, segment.offset);
    u64(at + 8, segment.bytes);
    u64(at + 16, segment.rows);
    u64(at + 24, segment.slots);
  });
  return page;
}

export function encodeHeader(header: LayerHeader): Uint8Array {
  const page = encodeUnsignedHeader(header);
  setContentId(page, CONTENT_ID_AT, header.contentId);
  new DataView(page.buffer).setBigUint64(16, xxh64(page), true);
  return page;
}

/** Reads fields of a page, refusing numbers that no honest writer makes. */
class HeaderReader {
  readonly page: Uint8Array;
  readonly #view: DataView;
  readonly #source: string;

  constructor(page: Uint8Array, source: string) {
    this.page = page;
    this.#view = new DataView(page.buffer, page.byteOffset, page.byteLength);
    this.#source = source;
  }

  corrupt(text: string): never {
    throw new CubeError('CORRUPT', `${this.#source}: ${text}; fetch or build it again`);
  }

  unsupported(text: string): never {
    throw new CubeError(
      'UNSUPPORTED',
      `${this.#source}: ${text} is not read by this version of the software`,
    );
  }

  u32(at: number): number {
    return this.#view.getUint32(at, true);
  }

  u64(at: number): bigint {
    return this.#view.getBigUint64(at, true);
  }

  /** A u64 that counts something: at most 2^53. */
  count(at: number, name: string): number {
    const value = this.u64(at);
    if (value > BigInt(Number.MAX_SAFE_INTEGER)) this.corrupt(`header field ${name} is ${value}`);
    return Number(value);
  }

  require(holds: boolean, text: string): void {
    if (!holds) this.corrupt(`header: ${text}`);
  }

  choice<const T extends string>(at: number, name: string, names: readonly T[]): T {
    return names[this.u32(at)] ?? this.corrupt(`header field ${name} is ${this.u32(at)}`);
  }
}

function checkSignature(page: Uint8Array, reader: HeaderReader): void {
  if (page.length < HEADER_BYTES) reader.corrupt(`ends inside the header (${page.length} bytes)`);
  if (!MAGIC.every((byte, i) => page[i] === byte)) reader.corrupt('not a layer file (wrong magic)');
  const version = reader.u32(8);
  if (version !== LAYER_FORMAT_VERSION) {
    reader.unsupported(`format version ${version} (known: ${LAYER_FORMAT_VERSION})`);
  }
  // A copy, which slice of a Buffer is not.
  const zeroed = new Uint8Array(page.subarray(0, HEADER_BYTES));
  zeroed.fill(0, 16, 24);
  if (xxh64(zeroed) !== reader.u64(16)) reader.corrupt('the header checksum does not match');
}

function decodeName(page: Uint8Array, reader: HeaderReader): string {
  const length = reader.u32(256);
  reader.require(length >= 1 && length <= 128, `table name of ${length} bytes`);
  const name = String.fromCharCode(...page.subarray(TABLE_NAME_AT, TABLE_NAME_AT + length));
  reader.require(NAME_PATTERN.test(name), 'the table name has illegal characters');
  return name;
}

function decodeSegments(reader: HeaderReader): LayerSegment[] {
  const count = reader.u32(148);
  reader.require(count <= SEGMENT_COUNT_MAX, `${count} segments`);
  return Array.from({ length: count }, (_, i) => {
    const at = SEGMENTS_AT + 32 * i;
    return {
      offset: reader.count(at, `segments[${i}].offset`),
      bytes: reader.count(at + 8, `segments[${i}].bytes`),
      rows: reader.count(at + 16, `segments[${i}].rows`),
      slots: reader.count(at + 24, `segments[${i}].slots`),
    };
  });
}

/** Sections lie one after the other inside the file, and their sizes are what their counts say. */
function checkSections(header: LayerHeader, reader: HeaderReader): void {
  const { segments, stride, rowCount, rowSegmentCount } = header;
  const keyed = segments.length - rowSegmentCount;
  const counts = keyed >= 0 && (rowCount === 0) === (segments.length === 0);
  reader.require(counts && (header.layout === 'indexed' || rowSegmentCount === 0), 'segmentCount');
  if (header.layout === 'indexed' && rowCount > 0) {
    reader.require(keyed > 0 && rowSegmentCount > 0, 'rowSegmentCount');
  }
  let end = HEADER_BYTES;
  for (const [i, { offset, bytes, slots }] of segments.entries()) {
    const slotBytes = i < keyed ? stride : rowStrideOf(header);
    reader.require(offset === alignUp(end, SECTION_ALIGNMENT), `segment ${i} starts at ${offset}`);
    reader.require(bytes <= SEGMENT_BYTES_MAX, `segment ${i} has ${bytes} bytes`);
    reader.require(bytes === slots * slotBytes, `segment ${i}: bytes ≠ slots · stride`);
    end = offset + bytes;
  }
  end = checkDeleted(header, end, reader);
  const { checksumsOffset, blockCount, fileBytes } = header;
  reader.require(checksumsOffset === alignUp(end, SECTION_ALIGNMENT), 'checksumsOffset');
  reader.require(blockCount === blockCountOf(checksumsOffset), 'blockCount');
  reader.require(fileBytes === checksumsOffset + 8 * blockCount, 'fileBytes');
}

/** @param end of the section before. @returns the end of the deleted keys, when there are any */
function checkDeleted(header: LayerHeader, end: number, reader: HeaderReader): number {
  const { kind, deletedCount, deletedOffset, deletedSlots, deletedHomeSlots } = header;
  if (deletedCount === 0) {
    const none = deletedOffset === 0 && deletedSlots === 0 && deletedHomeSlots === 0;
    reader.require(none, 'a section of deleted keys without keys');
    return end;
  }
  reader.require(kind === 'delta', 'a base has no deleted keys');
  reader.require(
    deletedOffset === alignUp(end, SECTION_ALIGNMENT),
    `deletedOffset ${deletedOffset}`,
  );
  const bytes = deletedSlots * DELETED_STRIDE;
  reader.require(bytes <= SEGMENT_BYTES_MAX, `${deletedSlots} slots of deleted keys`);
  reader.require(
    deletedHomeSlots >= 1 && deletedHomeSlots < deletedSlots && deletedCount < deletedSlots,
    `deleted keys: ${deletedHomeSlots} home slots of ${deletedSlots}`,
  );
  return deletedOffset + bytes;
}

function requireSum(
  segments: readonly LayerSegment[],
  header: LayerHeader,
  reader: HeaderReader,
): void {
  const rows = segments.reduce((sum, segment) => sum + segment.rows, 0);
  reader.require(rows === header.rowCount, 'rowCount is not the sum of the segments');
}

/** Segments that are searched: inline, or an index. */
function checkSearched(header: LayerHeader, reader: HeaderReader): void {
  const segments = keySegments(header);
  requireSum(segments, header, reader);
  for (const [i, { rows, slots }] of segments.entries()) {
    const { homeSlots } = header;
    reader.require(homeSlots >= 1 && homeSlots < slots, `segment ${i}: homeSlots ${homeSlots}`);
    reader.require(rows < slots, `segment ${i}: more rows than slots`);
  }
}

/** Segments of rows one after the other: a dense layer's, or of an index. */
function checkRows(
  segments: readonly LayerSegment[],
  header: LayerHeader,
  reader: HeaderReader,
): void {
  const { rowsPerSegment } = header;
  requireSum(segments, header, reader);
  for (const [i, { rows, slots }] of segments.entries()) {
    const last = i === segments.length - 1;
    reader.require(
      rows === slots && rows >= 1 && (last ? rows <= rowsPerSegment : rows === rowsPerSegment),
      `a segment of rows has ${rows}`,
    );
  }
}

/** Segments of values: each takes at least one unit. */
function checkValues(header: LayerHeader, reader: HeaderReader): void {
  requireSum(rowSegments(header), header, reader);
  for (const { rows, slots } of rowSegments(header)) {
    reader.require(
      rows >= 1 && rows <= slots,
      `a segment of ${slots} · 8 bytes has ${rows} values`,
    );
  }
}

function checkDense(header: LayerHeader, reader: HeaderReader): void {
  const { firstKey, keyStep, rowCount, segments } = header;
  reader.require(rowCount >= 1 && keyStep >= 1n, 'a dense layer has rows and a step');
  const lastKey = firstKey + BigInt(rowCount - 1) * keyStep;
  reader.require(lastKey < 1n << 64n, 'the last key is beyond 64 bits');
  checkRows(segments, header, reader);
}

function checkLayout(header: LayerHeader, reader: HeaderReader): void {
  checkSections(header, reader);
  if (header.layout === 'dense') checkDense(header, reader);
  else checkSearched(header, reader);
  if (header.layout !== 'indexed') return;
  if (header.dtype === 'bytes') checkValues(header, reader);
  else checkRows(rowSegments(header), header, reader);
}

function checkShape(header: LayerHeader, reader: HeaderReader): void {
  const { kind, dtype, dim, rowBytes, stride, layout, shardIndex, shardNum } = header;
  if (reader.u32(144) !== HASH_MIX) reader.unsupported(`hash mix ${reader.u32(144)}`);
  const dimFits = dtype === 'bytes' ? dim === 0 : dim >= 1 && dim <= DIM_MAX;
  reader.require(dimFits, `dim ${dim} for dtype ${dtype}`);
  reader.require(rowBytes === rowBytesOf(dtype, dim), `rowBytes ${rowBytes} for dim ${dim}`);
  reader.require(dtype !== 'bytes' || layout === 'indexed', `dtype bytes in layout ${layout}`);
  reader.require(kind === 'base' || layout !== 'dense', 'a dense delta');
  const parent = contentIdAt(reader.page, PARENT_AT);
  reader.require(
    (kind === 'base') === (parent === NO_CONTENT_ID),
    'the parent of a base, or none of a delta',
  );
  reader.require(stride === strideOf(layout, rowBytes), `stride ${stride}`);
  reader.require(shardNum >= 1 && shardNum <= SHARD_NUM_MAX, `shardNum ${shardNum}`);
  reader.require(shardIndex < shardNum, `shard ${shardIndex} of ${shardNum}`);
  reader.require(
    reader.u32(12) === HEADER_BYTES &&
      reader.u32(152) === SECTION_ALIGNMENT &&
      reader.u32(156) === BLOCK_BYTES,
    'headerBytes, alignment or blockBytes',
  );
}

/**
 * Reads and checks a header page in the order magic, version, checksum, sizes and ranges.
 * @param source what to call the file in errors
 * @throws CubeError CORRUPT or UNSUPPORTED
 */
export function decodeHeader(page: Uint8Array, source: string): LayerHeader {
  const reader = new HeaderReader(page, source);
  checkSignature(page, reader);
  const kind = reader.choice(56, 'kind', KINDS);
  const header: LayerHeader = {
    contentId: contentIdAt(page, CONTENT_ID_AT),
    kind,
    parentContentId: kind === 'delta' ? contentIdAt(page, PARENT_AT) : '',
    table: decodeName(page, reader),
    layout: reader.choice(60, 'layout', LAYOUTS),
    dtype: reader.choice(64, 'dtype', TABLE_DTYPES),
    dim: reader.u32(68),
    rowBytes: reader.u32(72),
    stride: reader.u32(76),
    shardIndex: reader.u32(80),
    shardNum: reader.u32(84),
    rowCount: reader.count(88, 'rowCount'),
    emptyKey: reader.u64(104),
    firstKey: reader.u64(112),
    keyStep: reader.u64(120),
    homeSlots: reader.count(128, 'homeSlots'),
    rowsPerSegment: reader.count(136, 'rowsPerSegment'),
    segments: decodeSegments(reader),
    rowSegmentCount: reader.u32(208),
    deletedCount: reader.count(96, 'deletedCount'),
    deletedOffset: reader.count(184, 'deletedOffset'),
    deletedSlots: reader.count(192, 'deletedSlots'),
    deletedHomeSlots: reader.count(216, 'deletedHomeSlots'),
    blockCount: reader.count(160, 'blockCount'),
    checksumsOffset: reader.count(168, 'checksumsOffset'),
    checksumsChecksum: reader.u64(176),
    fileBytes: reader.count(200, 'fileBytes'),
  };
  checkShape(header, reader);
  checkLayout(header, reader);
  // What is not named is zero: a writer that uses more of the page means something that is not understood here.
  const known = encodeHeader(header);
  if (!known.every((byte, i) => i >>> 3 === 2 || byte === page[i])) {
    reader.unsupported('a header with fields of another version');
  }
  return header;
}
