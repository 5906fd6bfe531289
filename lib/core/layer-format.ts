/**
 * The header page of a layer file (docs/formats/layer.md): its fields, its codec, and every check that needs no more
 * than the page. A header that decodes is safe to act on: its ranges lie inside the file, its counts agree with its
 * sizes, and no number in it can make a reader allocate or address beyond them.
 */
import { CubeError } from './errors.ts';
import { xxh64 } from './hash.ts';
import { NAME_PATTERN } from './names.ts';

const LAYER_FORMAT_VERSION = 1;
export const HEADER_BYTES = 4096;
export const SECTION_ALIGNMENT = 4096;
export const BLOCK_BYTES: number = 1 << 20;
export const SEGMENT_BYTES_MAX: number = 2 ** 31;
export const SEGMENT_COUNT_MAX = 112;
export const DIM_MAX: number = 1 << 20;
export const SHARD_NUM_MAX = 65_536;
const MAGIC = Uint8Array.of(0x48, 0x43, 0x55, 0x42, 0x45, 0x0d, 0x0a, 0x1a);
const HASH_MIX = 1;
const TABLE_NAME_AT = 260;
const SEGMENTS_AT = 512;

const KINDS = ['base', 'delta'] as const;
const LAYOUTS = ['inline', 'indexed', 'dense'] as const;
const DTYPES = ['f32', 'f16', 'bf16', 'i8', 'bytes'] as const;

export type LayerLayout = 'inline' | 'dense';

export interface LayerSegment {
  readonly offset: number;
  readonly bytes: number;
  readonly rows: number;
  /** Inline: slots, home and overflow. Dense: equal to rows. */
  readonly slots: number;
}

/** What this version of the software reads and writes: a base, f32, inline or dense. */
export interface LayerHeader {
  /** 32 hex digits. */
  readonly contentId: string;
  readonly table: string;
  readonly layout: LayerLayout;
  readonly dtype: 'f32';
  readonly dim: number;
  readonly rowBytes: number;
  readonly stride: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly rowCount: number;
  readonly emptyKey: bigint;
  readonly firstKey: bigint;
  readonly keyStep: bigint;
  readonly homeSlots: number;
  readonly rowsPerSegment: number;
  readonly segments: readonly LayerSegment[];
  readonly blockCount: number;
  readonly checksumsOffset: number;
  readonly checksumsChecksum: bigint;
  readonly fileBytes: number;
}

export function alignUp(bytes: number, alignment: number): number {
  return Math.ceil(bytes / alignment) * alignment;
}

/** Bytes from one slot or row to the next. */
export function strideOf(layout: LayerLayout, rowBytes: number): number {
  return layout === 'inline' ? alignUp(8 + rowBytes, 8) : alignUp(rowBytes, 4);
}

/** max(1, ceil(5 · rows / (4 · segments))): a load of at most 0.8. */
export function homeSlotsOf(rowCount: number, segmentCount: number): number {
  return Math.max(1, Math.ceil((5 * rowCount) / (4 * segmentCount)));
}

export function blockCountOf(checksumsOffset: number): number {
  return Math.ceil((checksumsOffset - HEADER_BYTES) / BLOCK_BYTES);
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
  u32(60, LAYOUTS.indexOf(header.layout));
  u32(64, DTYPES.indexOf(header.dtype));
  u32(68, header.dim);
  u32(72, header.rowBytes);
  u32(76, header.stride);
  u32(80, header.shardIndex);
  u32(84, header.shardNum);
  u64(88, header.rowCount);
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
  u64(200, header.fileBytes);
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
  for (let i = 0; i < 16; i++) {
    page[24 + i] = Number.parseInt(header.contentId.slice(2 * i, 2 * i + 2), 16);
  }
  new DataView(page.buffer).setBigUint64(16, xxh64(page), true);
  return page;
}

/** Reads fields of a page, refusing numbers that no honest writer makes. */
class HeaderReader {
  readonly #view: DataView;
  readonly #source: string;

  constructor(page: Uint8Array, source: string) {
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
  const zeroed = page.slice(0, HEADER_BYTES);
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
  let end = HEADER_BYTES;
  let rows = 0;
  for (const [i, segment] of header.segments.entries()) {
    const { offset, bytes, slots } = segment;
    reader.require(offset === alignUp(end, SECTION_ALIGNMENT), `segment ${i} starts at ${offset}`);
    reader.require(bytes <= SEGMENT_BYTES_MAX, `segment ${i} has ${bytes} bytes`);
    reader.require(bytes === slots * header.stride, `segment ${i}: bytes ≠ slots · stride`);
    end = offset + bytes;
    rows += segment.rows;
  }
  reader.require(rows === header.rowCount, 'rowCount is not the sum of the segments');
  reader.require(
    (header.segments.length === 0) === (rows === 0),
    'segments without rows, or rows without segments',
  );
  const { checksumsOffset, blockCount, fileBytes } = header;
  reader.require(checksumsOffset === alignUp(end, SECTION_ALIGNMENT), 'checksumsOffset');
  reader.require(blockCount === blockCountOf(checksumsOffset), 'blockCount');
  reader.require(fileBytes === checksumsOffset + 8 * blockCount, 'fileBytes');
}

function checkInline(header: LayerHeader, reader: HeaderReader): void {
  for (const [i, { rows, slots }] of header.segments.entries()) {
    const { homeSlots } = header;
    reader.require(homeSlots >= 1 && homeSlots < slots, `segment ${i}: homeSlots ${homeSlots}`);
    reader.require(rows < slots, `segment ${i}: more rows than slots`);
  }
}

function checkDense(header: LayerHeader, reader: HeaderReader): void {
  const { firstKey, keyStep, rowCount, rowsPerSegment, segments } = header;
  reader.require(rowCount >= 1 && keyStep >= 1n, 'a dense layer has rows and a step');
  const lastKey = firstKey + BigInt(rowCount - 1) * keyStep;
  reader.require(lastKey < 1n << 64n, 'the last key is beyond 64 bits');
  for (const [i, { rows, slots }] of segments.entries()) {
    const last = i === segments.length - 1;
    reader.require(
      rows === slots && rows >= 1 && (last ? rows <= rowsPerSegment : rows === rowsPerSegment),
      `segment ${i} has ${rows} rows`,
    );
  }
}

/** kind, layout and dtype of this version, or UNSUPPORTED naming what is not. */
function decodeLayout(reader: HeaderReader): LayerLayout {
  const kind = reader.choice(56, 'kind', KINDS);
  const layout = reader.choice(60, 'layout', LAYOUTS);
  const dtype = reader.choice(64, 'dtype', DTYPES);
  if (kind !== 'base') reader.unsupported(`a layer of kind ${kind}`);
  if (layout === 'indexed') reader.unsupported(`layout ${layout}`);
  if (dtype !== 'f32') reader.unsupported(`dtype ${dtype}`);
  if (reader.u32(144) !== HASH_MIX) reader.unsupported(`hash mix ${reader.u32(144)}`);
  return layout;
}

function checkShape(header: LayerHeader, reader: HeaderReader): void {
  const { dim, rowBytes, stride, layout, shardIndex, shardNum } = header;
  reader.require(dim >= 1 && dim <= DIM_MAX, `dim ${dim}`);
  reader.require(rowBytes === 4 * dim, `rowBytes ${rowBytes} for dim ${dim}`);
  reader.require(stride === strideOf(layout, rowBytes), `stride ${stride}`);
  reader.require(shardNum >= 1 && shardNum <= SHARD_NUM_MAX, `shardNum ${shardNum}`);
  reader.require(shardIndex < shardNum, `shard ${shardIndex} of ${shardNum}`);
  reader.require(
    reader.u32(12) === HEADER_BYTES &&
      reader.u32(152) === SECTION_ALIGNMENT &&
      reader.u32(156) === BLOCK_BYTES,
    'headerBytes, alignment or blockBytes',
  );
  const noDeletes = reader.u64(96) === 0n && reader.u64(184) === 0n && reader.u64(192) === 0n;
  reader.require(noDeletes, 'a base has no deleted keys');
}

/**
 * Reads and checks a header page in the order magic, version, checksum, sizes and ranges.
 * @param source what to call the file in errors
 * @throws CubeError CORRUPT or UNSUPPORTED
 */
export function decodeHeader(page: Uint8Array, source: string): LayerHeader {
  const reader = new HeaderReader(page, source);
  checkSignature(page, reader);
  const header: LayerHeader = {
    contentId: Array.from(page.subarray(24, 40), (b) => b.toString(16).padStart(2, '0')).join(''),
    table: decodeName(page, reader),
    layout: decodeLayout(reader),
    dtype: 'f32',
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
    blockCount: reader.count(160, 'blockCount'),
    checksumsOffset: reader.count(168, 'checksumsOffset'),
    checksumsChecksum: reader.u64(176),
    fileBytes: reader.count(200, 'fileBytes'),
  };
  checkShape(header, reader);
  checkSections(header, reader);
  if (header.layout === 'inline') checkInline(header, reader);
  else checkDense(header, reader);
  return header;
}
