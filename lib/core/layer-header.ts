/**
 * The header page of a layer file (docs/formats/layer.md): its codec, and every check that needs
 * only the page. A header that decodes is safe to use: its ranges lie inside the file, its counts
 * agree with its sizes, and no number in it can make a reader allocate or address more.
 */
import { CubeError } from './errors.ts';
import { xxh64 } from './hash.ts';
import {
  alignUp,
  BLOCK_BYTES,
  computeBlockCount,
  computeRowStride,
  computeStride,
  DELETED_STRIDE,
  DIM_MAX,
  getKeySegments,
  getRowSegments,
  HEADER_BYTES,
  LAYER_LAYOUTS,
  type LayerHeader,
  type LayerKind,
  type LayerSegment,
  NO_CONTENT_ID,
  SECTION_ALIGNMENT,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  SHARD_NUM_MAX,
} from './layer-format.ts';
import { TABLE_DTYPES } from './manifest.ts';
import { NAME_PATTERN } from './names.ts';
import { computeRowBytes } from './row-codec.ts';

const LAYER_FORMAT_VERSION = 1;
const MAGIC = Uint8Array.of(0x48, 0x43, 0x55, 0x42, 0x45, 0x0d, 0x0a, 0x1a);
const HASH_MIX = 1;
const CONTENT_ID_BYTES = 16;
const TABLE_NAME_BYTES_MAX = 128;
const SEGMENT_ENTRY_BYTES = 32;

const KINDS: readonly LayerKind[] = ['base', 'delta'];

/** Fields of a header whose values are of type T. */
type FieldsOfType<T> = {
  [K in keyof LayerHeader]: LayerHeader[K] extends T ? K : never;
}[keyof LayerHeader];

/** What every field of the page has; docs/formats/layer.md prints all three. */
interface FieldBase {
  readonly offset: number;
  readonly type: string;
  readonly meaning: string;
}

/** A field of the header page; `holds` says where its value comes from. */
export type LayerHeaderField = FieldBase &
  (
    | { readonly holds: 'number'; readonly name: FieldsOfType<number> }
    | { readonly holds: 'bigint'; readonly name: FieldsOfType<bigint> }
    | { readonly holds: 'choice'; readonly name: ChoiceField; readonly choices: readonly string[] }
    | { readonly holds: 'constant'; readonly name: string; readonly value: number }
    | { readonly holds: 'length'; readonly name: 'segmentCount' | 'tableNameBytes' }
    /** Read and written by code of its own. */
    | { readonly holds: 'other'; readonly name: string }
  );

type ChoiceField = 'kind' | 'layout' | 'dtype';

function u32(offset: number, name: FieldsOfType<number>, meaning: string): LayerHeaderField {
  return { holds: 'number', offset, type: 'u32', name, meaning };
}

/** A u64 that counts something: at most 2^53. */
function count(offset: number, name: FieldsOfType<number>, meaning: string): LayerHeaderField {
  return { holds: 'number', offset, type: 'u64', name, meaning };
}

function u64(offset: number, name: FieldsOfType<bigint>, meaning: string): LayerHeaderField {
  return { holds: 'bigint', offset, type: 'u64', name, meaning };
}

function choice(offset: number, name: ChoiceField, choices: readonly string[]): LayerHeaderField {
  const meaning = choices.map((value, i) => `${i} ${value}`).join(', ');
  return { holds: 'choice', offset, type: 'u32', name, choices, meaning };
}

function constant(offset: number, name: string, value: number, note = ''): LayerHeaderField {
  return { holds: 'constant', offset, type: 'u32', name, value, meaning: `${value}${note}` };
}

function other(offset: number, type: string, name: string, meaning: string): LayerHeaderField {
  return { holds: 'other', offset, type, name, meaning };
}

/**
 * The header page, in the order of its offsets: the encoder, the decoder and the table of
 * docs/formats/layer.md follow this one. `tools/dev/layer-page.mjs` writes the table.
 */
export const LAYER_HEADER_FIELDS: readonly LayerHeaderField[] = [
  other(
    0,
    '8 bytes',
    'magic',
    '`48 43 55 42 45 0D 0A 1A` ("HCUBE\\r\\n" and 0x1A). A transfer in text mode damages it',
  ),
  constant(8, 'formatVersion', LAYER_FORMAT_VERSION),
  constant(12, 'headerBytes', HEADER_BYTES),
  other(16, 'u64', 'headerChecksum', 'xxh64 (seed 0) of the page with this field zero'),
  other(
    24,
    '16 bytes',
    'contentId',
    'first 16 bytes of SHA-256 over the sections (bytes 4096 … fileBytes) and then the ' +
      'header page with contentId and headerChecksum zero',
  ),
  other(
    40,
    '16 bytes',
    'parentContentId',
    'delta: content id of the parent, never zero; base: zero',
  ),
  choice(56, 'kind', KINDS),
  choice(60, 'layout', LAYER_LAYOUTS),
  choice(64, 'dtype', TABLE_DTYPES),
  u32(68, 'dim', 'elements of a row, 1 … 2^20; 0 for bytes'),
  u32(72, 'rowBytes', 'bytes of a stored row (see Rows); 0 for bytes'),
  u32(
    76,
    'stride',
    'bytes from one entry to the next. Slots of inline: 8 + rowBytes rounded up to 8; slots of ' +
      'the index of indexed: 16; rows of dense: rowBytes',
  ),
  u32(80, 'shardIndex', 'index of the shard, from 0'),
  u32(
    84,
    'shardNum',
    'number of shards. Every key k, deleted ones included, has k mod shardNum = shardIndex',
  ),
  count(88, 'rowCount', 'rows; delta: added or replaced rows'),
  count(96, 'deletedCount', 'delta: deleted keys'),
  u64(
    104,
    'emptyKey',
    'inline, indexed: the key that marks an empty slot, neither the key of a row nor ' +
      'deleted; dense: 0',
  ),
  u64(112, 'firstKey', 'dense: key of row 0'),
  u64(120, 'keyStep', 'dense: key of row i = firstKey + i·keyStep'),
  count(128, 'homeSlots', 'inline, indexed: home slots of each searched segment'),
  count(
    136,
    'rowsPerSegment',
    'dense, indexed rows: rows of each segment of rows except the last; 0 for inline and ' +
      'for bytes',
  ),
  constant(144, 'hashMix', HASH_MIX, ': the function mix, below'),
  {
    holds: 'length',
    offset: 148,
    type: 'u32',
    name: 'segmentCount',
    meaning: 'segments of both kinds; 0 when rowCount is 0',
  },
  constant(152, 'alignment', SECTION_ALIGNMENT, ': sections start at multiples of it'),
  constant(156, 'blockBytes', BLOCK_BYTES),
  count(160, 'blockCount', 'blocks, each with a checksum'),
  count(168, 'checksumsOffset', 'offset of the block checksum section'),
  u64(176, 'checksumsChecksum', 'xxh64 (seed 0) of the block checksum section'),
  count(
    184,
    'deletedOffset',
    'offset of the deleted keys; 0 if no key is deleted; then deletedSlots and ' +
      'deletedHomeSlots are 0 too',
  ),
  count(192, 'deletedSlots', 'slots of the deleted keys, 8 bytes each'),
  count(200, 'fileBytes', 'length of the file'),
  u32(
    208,
    'rowSegmentCount',
    'indexed: how many of the segments, the last ones, hold rows or values',
  ),
  count(216, 'deletedHomeSlots', 'home slots of the deleted keys'),
  {
    holds: 'length',
    offset: 256,
    type: 'u32',
    name: 'tableNameBytes',
    meaning: 'length of tableName, 1 … 128',
  },
  other(260, 'bytes', 'tableName', 'ASCII, followed by zeros'),
  other(
    512,
    '112 × 32 bytes',
    'segments',
    '{u64 offset, u64 bytes, u64 rows, u64 slots} each; unused entries are zero',
  ),
];

const OFFSETS: ReadonlyMap<string, number> = new Map(
  LAYER_HEADER_FIELDS.map(({ name, offset }) => [name, offset]),
);

function getOffset(name: string): number {
  const offset = OFFSETS.get(name);
  if (offset === undefined) throw new Error(`the layer header has no field ${name}`);
  return offset;
}

const CHECKSUM_OFFSET = getOffset('headerChecksum');
const CONTENT_ID_OFFSET = getOffset('contentId');
const PARENT_OFFSET = getOffset('parentContentId');
const TABLE_NAME_OFFSET = getOffset('tableName');
const SEGMENTS_OFFSET = getOffset('segments');

function setContentId(page: Uint8Array, offset: number, contentId: string): void {
  for (let i = 0; i < CONTENT_ID_BYTES; i++) {
    page[offset + i] = Number.parseInt(contentId.slice(2 * i, 2 * i + 2), 16);
  }
}

function readContentId(page: Uint8Array, offset: number): string {
  const bytes = page.subarray(offset, offset + CONTENT_ID_BYTES);
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
}

/** @returns undefined for a field that code of its own writes */
function getFieldValue(field: LayerHeaderField, header: LayerHeader): number | bigint | undefined {
  switch (field.holds) {
    case 'number':
    case 'bigint':
      return header[field.name];
    case 'choice':
      return field.choices.indexOf(header[field.name]);
    case 'constant':
      return field.value;
    case 'length':
      // A name has ASCII characters only: as many bytes.
      return field.name === 'segmentCount' ? header.segments.length : header.table.length;
    case 'other':
      return undefined;
  }
}

/** The page with contentId and headerChecksum zero: the content id covers it after the sections. */
export function encodeUnsignedHeader(header: LayerHeader): Uint8Array {
  const page = new Uint8Array(HEADER_BYTES);
  const view = new DataView(page.buffer);
  for (const field of LAYER_HEADER_FIELDS) {
    const value = getFieldValue(field, header);
    if (value === undefined) continue;
    if (field.type === 'u32') view.setUint32(field.offset, Number(value), true);
    else view.setBigUint64(field.offset, BigInt(value), true);
  }
  page.set(MAGIC, 0);
  if (header.kind === 'delta') setContentId(page, PARENT_OFFSET, header.parentContentId);
  page.set(new TextEncoder().encode(header.table), TABLE_NAME_OFFSET);
  header.segments.forEach(({ offset, bytes, rows, slots }, i) => {
    const entry = SEGMENTS_OFFSET + SEGMENT_ENTRY_BYTES * i;
    [offset, bytes, rows, slots].forEach((value, k) => {
      view.setBigUint64(entry + 8 * k, BigInt(value), true);
    });
  });
  return page;
}

export function encodeHeader(header: LayerHeader): Uint8Array {
  const page = encodeUnsignedHeader(header);
  setContentId(page, CONTENT_ID_OFFSET, header.contentId);
  new DataView(page.buffer).setBigUint64(CHECKSUM_OFFSET, xxh64(page), true);
  return page;
}

/** Reads fields of a page and refuses numbers that no writer makes. */
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
      `${this.#source}: ${text} is not supported by this version of the software`,
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
  if (!MAGIC.every((byte, i) => page[i] === byte)) {
    reader.corrupt('not a layer file: it does not begin with the bytes of one');
  }
  const version = reader.u32(getOffset('formatVersion'));
  if (version !== LAYER_FORMAT_VERSION) {
    reader.unsupported(`format version ${version} (known: ${LAYER_FORMAT_VERSION})`);
  }
  // Uint8Array copies; slice() of a Buffer would not.
  const zeroed = new Uint8Array(page.subarray(0, HEADER_BYTES));
  zeroed.fill(0, CHECKSUM_OFFSET, CHECKSUM_OFFSET + 8);
  if (xxh64(zeroed) !== reader.u64(CHECKSUM_OFFSET))
    reader.corrupt('the header checksum does not match');
}

function decodeName(page: Uint8Array, reader: HeaderReader): string {
  const length = reader.u32(getOffset('tableNameBytes'));
  reader.require(length >= 1 && length <= TABLE_NAME_BYTES_MAX, `table name of ${length} bytes`);
  const name = String.fromCharCode(...page.subarray(TABLE_NAME_OFFSET, TABLE_NAME_OFFSET + length));
  reader.require(NAME_PATTERN.test(name), 'the table name has illegal characters');
  return name;
}

function decodeSegments(reader: HeaderReader): LayerSegment[] {
  const count = reader.u32(getOffset('segmentCount'));
  reader.require(count <= SEGMENT_COUNT_MAX, `${count} segments`);
  return Array.from({ length: count }, (_, i) => {
    const at = SEGMENTS_OFFSET + SEGMENT_ENTRY_BYTES * i;
    return {
      offset: reader.count(at, `segments[${i}].offset`),
      bytes: reader.count(at + 8, `segments[${i}].bytes`),
      rows: reader.count(at + 16, `segments[${i}].rows`),
      slots: reader.count(at + 24, `segments[${i}].slots`),
    };
  });
}

/**
 * Checks that sections follow each other inside the file and have the sizes that their counts
 * imply.
 */
function checkSections(header: LayerHeader, reader: HeaderReader): void {
  const { segments, stride, rowCount, rowSegmentCount } = header;
  const keyed = segments.length - rowSegmentCount;
  const counts = keyed >= 0 && (rowCount === 0) === (segments.length === 0);
  reader.require(
    counts && (header.layout === 'indexed' || rowSegmentCount === 0),
    'segmentCount does not agree with the layout or rowCount',
  );
  if (header.layout === 'indexed' && rowCount > 0) {
    reader.require(
      keyed > 0 && rowSegmentCount > 0,
      'rowSegmentCount does not agree with segmentCount',
    );
  }
  let end = HEADER_BYTES;
  for (const [i, { offset, bytes, slots }] of segments.entries()) {
    const slotBytes = i < keyed ? stride : computeRowStride(header);
    reader.require(offset === alignUp(end, SECTION_ALIGNMENT), `segment ${i} starts at ${offset}`);
    reader.require(bytes <= SEGMENT_BYTES_MAX, `segment ${i} has ${bytes} bytes`);
    reader.require(bytes === slots * slotBytes, `segment ${i}: bytes ≠ slots · stride`);
    end = offset + bytes;
  }
  end = checkDeleted(header, end, reader);
  const { checksumsOffset, blockCount, fileBytes } = header;
  reader.require(
    checksumsOffset === alignUp(end, SECTION_ALIGNMENT),
    'checksumsOffset is not after the last section',
  );
  reader.require(
    blockCount === computeBlockCount(checksumsOffset),
    'blockCount does not agree with checksumsOffset',
  );
  reader.require(
    fileBytes === checksumsOffset + 8 * blockCount,
    'fileBytes does not agree with blockCount',
  );
}

/**
 * @param end end of the section before @returns the end of the deleted keys, or `end` without any
 */
function checkDeleted(header: LayerHeader, end: number, reader: HeaderReader): number {
  const { kind, deletedCount, deletedOffset, deletedSlots, deletedHomeSlots } = header;
  if (deletedCount === 0) {
    const none = deletedOffset === 0 && deletedSlots === 0 && deletedHomeSlots === 0;
    reader.require(none, 'deletedCount is 0, but there is a section of deleted keys');
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

function requireRowCount(
  segments: readonly LayerSegment[],
  header: LayerHeader,
  reader: HeaderReader,
): void {
  const rows = segments.reduce((sum, segment) => sum + segment.rows, 0);
  reader.require(rows === header.rowCount, 'rowCount is not the sum of the segments');
}

/** Checks searched segments: inline, or of an index. */
function checkSearched(header: LayerHeader, reader: HeaderReader): void {
  const segments = getKeySegments(header);
  requireRowCount(segments, header, reader);
  for (const [i, { rows, slots }] of segments.entries()) {
    const { homeSlots } = header;
    reader.require(homeSlots >= 1 && homeSlots < slots, `segment ${i}: homeSlots ${homeSlots}`);
    reader.require(rows < slots, `segment ${i}: more rows than slots`);
  }
}

/** Checks segments of rows: of a dense layer, or of an index. */
function checkRows(
  segments: readonly LayerSegment[],
  header: LayerHeader,
  reader: HeaderReader,
): void {
  const { rowsPerSegment } = header;
  requireRowCount(segments, header, reader);
  for (const [i, { rows, slots }] of segments.entries()) {
    const last = i === segments.length - 1;
    reader.require(
      rows === slots && rows >= 1 && (last ? rows <= rowsPerSegment : rows === rowsPerSegment),
      `a segment of rows has ${rows}`,
    );
  }
}

/** Checks segments of values: each value takes at least one unit. */
function checkValues(header: LayerHeader, reader: HeaderReader): void {
  requireRowCount(getRowSegments(header), header, reader);
  for (const { rows, slots } of getRowSegments(header)) {
    reader.require(
      rows >= 1 && rows <= slots,
      `a segment of ${slots} · 8 bytes has ${rows} values`,
    );
  }
}

function checkDense(header: LayerHeader, reader: HeaderReader): void {
  const { firstKey, keyStep, rowCount, segments } = header;
  reader.require(rowCount >= 1 && keyStep >= 1n, 'a dense layer without rows or without a step');
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
  else checkRows(getRowSegments(header), header, reader);
}

function checkShape(header: LayerHeader, reader: HeaderReader): void {
  const { kind, dtype, dim, rowBytes, stride, layout, shardIndex, shardNum } = header;
  const hashMix = reader.u32(getOffset('hashMix'));
  if (hashMix !== HASH_MIX) reader.unsupported(`hash mix ${hashMix}`);
  const dimFits = dtype === 'bytes' ? dim === 0 : dim >= 1 && dim <= DIM_MAX;
  reader.require(dimFits, `dim ${dim} for dtype ${dtype}`);
  reader.require(rowBytes === computeRowBytes(dtype, dim), `rowBytes ${rowBytes} for dim ${dim}`);
  reader.require(dtype !== 'bytes' || layout === 'indexed', `dtype bytes in layout ${layout}`);
  reader.require(kind === 'base' || layout !== 'dense', 'a dense delta');
  const parent = readContentId(reader.page, PARENT_OFFSET);
  reader.require(
    (kind === 'base') === (parent === NO_CONTENT_ID),
    'a base with a parent, or a delta without one',
  );
  reader.require(stride === computeStride(layout, rowBytes), `stride ${stride}`);
  reader.require(shardNum >= 1 && shardNum <= SHARD_NUM_MAX, `shardNum ${shardNum}`);
  reader.require(shardIndex < shardNum, `shard ${shardIndex} of ${shardNum}`);
  reader.require(
    reader.u32(getOffset('headerBytes')) === HEADER_BYTES &&
      reader.u32(getOffset('alignment')) === SECTION_ALIGNMENT &&
      reader.u32(getOffset('blockBytes')) === BLOCK_BYTES,
    'headerBytes, alignment or blockBytes is not that of format version 1',
  );
}

/** The fields of a header that are numbers, or choices by number, in the page. */
type DecodedFields = Omit<LayerHeader, 'contentId' | 'parentContentId' | 'table' | 'segments'>;

/** @throws CubeError CORRUPT for a number that no writer makes */
function decodeFields(reader: HeaderReader): DecodedFields {
  const fields: Record<string, number | bigint | string> = {};
  for (const field of LAYER_HEADER_FIELDS) {
    const { name, offset } = field;
    if (field.holds === 'choice') fields[name] = reader.choice(offset, name, field.choices);
    else if (field.holds === 'bigint') fields[name] = reader.u64(offset);
    else if (field.holds === 'number') {
      fields[name] = field.type === 'u32' ? reader.u32(offset) : reader.count(offset, name);
    }
  }
  return fields as unknown as DecodedFields;
}

/**
 * Reads and checks a header page, in this order: magic, version, checksum, sizes and ranges.
 * @param source name of the file in errors
 * @throws CubeError CORRUPT or UNSUPPORTED
 */
export function decodeHeader(page: Uint8Array, source: string): LayerHeader {
  const reader = new HeaderReader(page, source);
  checkSignature(page, reader);
  const { kind, ...fields } = decodeFields(reader);
  const header: LayerHeader = {
    ...fields,
    kind,
    contentId: readContentId(page, CONTENT_ID_OFFSET),
    parentContentId: kind === 'delta' ? readContentId(page, PARENT_OFFSET) : '',
    table: decodeName(page, reader),
    segments: decodeSegments(reader),
  };
  checkShape(header, reader);
  checkLayout(header, reader);
  // Bytes outside the named fields are zero: a writer that uses them follows a newer format.
  const known = encodeHeader(header);
  if (!known.every((byte, i) => i >>> 3 === CHECKSUM_OFFSET >>> 3 || byte === page[i])) {
    reader.unsupported('a header with fields of another version');
  }
  return header;
}
