/**
 * Codec of the packed lookup (lookup.proto), both directions. Over baidu_std the messages are only
 * heads: keys and rows travel as the attachment, so no code here runs per key.
 */
import { CubeError } from '../lib/core/errors.ts';
import { TABLE_DTYPES, type TableDtype } from '../lib/core/manifest.ts';
import { OutputBuffer, varintBytes } from './output-buffer.ts';
import { NameCache, WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

export const LOOKUP_SERVICE = 'hypercube.LookupService';
export const LOOKUP_METHOD = 'lookup';
/** The same as a stream of requests and responses, over gRPC. */
export const LOOKUP_STREAM_METHOD = 'lookupStream';
export const KEY_BYTES = 8;
/** Values of dtype bytes follow one u32 length per key; 0 for a missing key. */
export const VALUE_LENGTH_BYTES = 4;
/** Maximum tables in a request; limits what one head may allocate. */
export const LOOKUP_GROUPS_MAX = 4096;

// Field numbers of lookup.proto. Nothing outside this file states them.
const REQUEST_BUNDLE = 1;
const REQUEST_VERSION = 2;
const REQUEST_SHARD_INDEX = 3;
const REQUEST_SHARD_NUM = 4;
const REQUEST_GROUPS = 5;
const REQUEST_KEYS = 6;
const REQUEST_TABLES_DIGEST = 7;
const REQUEST_ROWS_AS = 8;
const REQUEST_GROUP_TABLE = 1;
const REQUEST_GROUP_COUNT = 2;
const RESPONSE_VERSION = 1;
const RESPONSE_GROUPS = 2;
const RESPONSE_ROWS = 3;
const RESPONSE_GROUP_DTYPE = 1;
const RESPONSE_GROUP_ROW_BYTES = 2;
const RESPONSE_GROUP_COUNT = 3;
const RESPONSE_GROUP_HITS = 4;
const RESPONSE_GROUP_BYTES = 5;

/** The tag byte of a field below 16. */
function tagByte(field: number, wireType: number): number {
  return (field << 3) | wireType;
}

const TAG_REQUEST_GROUP: number = tagByte(REQUEST_GROUPS, WIRE_BYTES);
const TAG_REQUEST_GROUP_TABLE: number = tagByte(REQUEST_GROUP_TABLE, WIRE_BYTES);
const TAG_REQUEST_GROUP_COUNT: number = tagByte(REQUEST_GROUP_COUNT, WIRE_VARINT);
const TAG_RESPONSE_GROUP: number = tagByte(RESPONSE_GROUPS, WIRE_BYTES);
const TAG_RESPONSE_ROWS: number = tagByte(RESPONSE_ROWS, WIRE_BYTES);
const TAG_RESPONSE_GROUP_DTYPE: number = tagByte(RESPONSE_GROUP_DTYPE, WIRE_VARINT);
const TAG_RESPONSE_GROUP_ROW_BYTES: number = tagByte(RESPONSE_GROUP_ROW_BYTES, WIRE_VARINT);
const TAG_RESPONSE_GROUP_COUNT: number = tagByte(RESPONSE_GROUP_COUNT, WIRE_VARINT);
const TAG_RESPONSE_GROUP_HITS: number = tagByte(RESPONSE_GROUP_HITS, WIRE_VARINT);
const TAG_RESPONSE_GROUP_BYTES: number = tagByte(RESPONSE_GROUP_BYTES, WIRE_VARINT);

interface LookupRequestGroup {
  readonly table: string;
  readonly count: number;
}

/** Row format of a response: as the table stores rows, or converted to f32 by the server. */
export const ROWS_STORED = 0;
export const ROWS_F32 = 1;

export interface LookupRequestHead {
  readonly bundle: string;
  /** Empty: the server's active version. */
  readonly version: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly groups: readonly LookupRequestGroup[];
  /** Digest of the rows that the version name stands for; absent or empty: not checked. */
  readonly tablesDigest?: string;
  /**
   * ROWS_STORED (default) or ROWS_F32. Values of dtype bytes are returned as they are in both
   * formats.
   */
  readonly rowsAs?: number;
}

export interface LookupResponseGroup {
  /** Dtype of the returned rows. */
  readonly dtype: TableDtype;
  /** 0 for dtype bytes. */
  readonly rowBytes: number;
  readonly count: number;
  readonly hits: number;
  /**
   * Bytes of the rows part before its padding: count · rowBytes, or lengths and values of dtype
   * bytes.
   */
  readonly bytes: number;
}

export interface LookupResponseHead {
  readonly version: string;
  readonly groups: readonly LookupResponseGroup[];
}

/** Bytes of a group's bitmap of found keys: whole u64 words. */
export function bitmapBytes(count: number): number {
  return Math.ceil(count / 64) * 8;
}

/** Bytes of a group in a response: bitmap, then rows of one size padded to a multiple of 8. */
export function fixedRowsResponseBytes(count: number, rowBytes: number): number {
  return groupResponseBytes(count, count * rowBytes);
}

/**
 * The same for any rows part. For dtype bytes it has `VALUE_LENGTH_BYTES` · count bytes of lengths
 * before the values.
 */
export function groupResponseBytes(count: number, rowsBytes: number): number {
  return bitmapBytes(count) + Math.ceil(rowsBytes / 8) * 8;
}

/**
 * @param keys stored in the message (HTTP, gRPC); omit over baidu_std, where they are the
 * attachment
 */
export function encodeLookupRequest(head: LookupRequestHead, keys?: Uint8Array): Uint8Array {
  const writer = new WireWriter();
  writer.string(REQUEST_BUNDLE, head.bundle);
  if (head.version !== '') writer.string(REQUEST_VERSION, head.version);
  writer.uint(REQUEST_SHARD_INDEX, head.shardIndex).uint(REQUEST_SHARD_NUM, head.shardNum);
  for (const { table, count } of head.groups) {
    writer.message(REQUEST_GROUPS, (group) =>
      group.string(REQUEST_GROUP_TABLE, table).uint(REQUEST_GROUP_COUNT, count),
    );
  }
  if (keys !== undefined) writer.bytes(REQUEST_KEYS, keys);
  if (head.tablesDigest) writer.string(REQUEST_TABLES_DIGEST, head.tablesDigest);
  if (head.rowsAs) writer.uint(REQUEST_ROWS_AS, head.rowsAs);
  return writer.finish();
}

/** The bytes of a group of a request before its count, which a client makes once per table. */
export function encodeRequestGroupHead(table: string): Uint8Array {
  const head = new OutputBuffer(table.length + 16);
  head.appendString(TAG_REQUEST_GROUP_TABLE, table);
  head.appendByte(TAG_REQUEST_GROUP_COUNT);
  return head.writtenBytes().slice();
}

/** Appends a group to a request head. @param groupHead of its table, by `encodeRequestGroupHead` */
export function appendRequestGroup(
  output: OutputBuffer,
  groupHead: Uint8Array,
  count: number,
): void {
  output.appendByte(TAG_REQUEST_GROUP);
  output.appendVarint(groupHead.length + varintBytes(count));
  output.appendRange(groupHead, 0, groupHead.length);
  output.appendVarint(count);
}

/**
 * A request head decoded into fields that the next `decode` overwrites. A server reuses one decoder
 * and allocates nothing for names that it has seen before.
 */
export class LookupRequestDecoder implements Omit<LookupRequestHead, 'groups'> {
  bundle = '';
  version = '';
  tablesDigest = '';
  rowsAs: number = ROWS_STORED;
  shardIndex = 0;
  shardNum = 0;
  groupCount = 0;
  readonly tables: string[] = [];
  readonly counts: number[] = [];
  /** Position of the keys in the decoded bytes; -1 when they are not in the message. */
  keysStart = -1;
  keysEnd = -1;
  readonly #names = new NameCache();

  /** @throws CubeError INVALID_ARGUMENT, or TOO_LARGE when it has too many groups */
  decode(bytes: Uint8Array, start = 0, end: number = bytes.length): this {
    this.bundle = '';
    this.version = '';
    this.tablesDigest = '';
    this.rowsAs = ROWS_STORED;
    this.shardIndex = 0;
    this.shardNum = 0;
    this.groupCount = 0;
    this.keysStart = -1;
    this.keysEnd = -1;
    const reader = new WireReader(bytes, start, end);
    while (reader.next()) this.#field(reader);
    return this;
  }

  #field(reader: WireReader): void {
    const { field, wireType } = reader;
    if (wireType === WIRE_BYTES) {
      if (field === REQUEST_BUNDLE) this.bundle = this.#name(reader);
      else if (field === REQUEST_VERSION) this.version = this.#name(reader);
      else if (field === REQUEST_GROUPS) this.#group(reader.message());
      else if (field === REQUEST_TABLES_DIGEST) this.tablesDigest = this.#name(reader);
      else if (field === REQUEST_KEYS) {
        const keys = reader.message();
        this.keysStart = keys.position;
        this.keysEnd = keys.end;
      } else reader.skip();
    } else if (wireType === WIRE_VARINT) {
      if (field === REQUEST_SHARD_INDEX) this.shardIndex = reader.uint32();
      else if (field === REQUEST_SHARD_NUM) this.shardNum = reader.uint32();
      else if (field === REQUEST_ROWS_AS) this.#rowsAs(reader.uint32());
      else reader.skip();
    } else reader.skip();
  }

  /** Refuses an unknown format: the client would read its rows as other numbers. */
  #rowsAs(value: number): void {
    if (value !== ROWS_STORED && value !== ROWS_F32) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `rows_as ${value} is unknown (0: as stored, 1: f32); update this server`,
      );
    }
    this.rowsAs = value;
  }

  #group(reader: WireReader): void {
    if (this.groupCount === LOOKUP_GROUPS_MAX) {
      throw new CubeError(
        'TOO_LARGE',
        `a lookup has at most ${LOOKUP_GROUPS_MAX} groups; split the call`,
      );
    }
    let table = '';
    let count = 0;
    while (reader.next()) {
      const { field, wireType } = reader;
      if (field === REQUEST_GROUP_TABLE && wireType === WIRE_BYTES) table = this.#name(reader);
      else if (field === REQUEST_GROUP_COUNT && wireType === WIRE_VARINT) count = reader.uint32();
      else reader.skip();
    }
    this.tables[this.groupCount] = table;
    this.counts[this.groupCount] = count;
    this.groupCount++;
  }

  #name(reader: WireReader): string {
    const view = reader.message();
    return this.#names.getName(view.bytes, view.position, view.end);
  }
}

/** Decodes a head to an object of its own, with the keys when they are in the message. */
export function decodeLookupRequest(
  bytes: Uint8Array,
): LookupRequestHead & { keys: Uint8Array | undefined } {
  const decoder = new LookupRequestDecoder().decode(bytes);
  const { bundle, version, shardIndex, shardNum, keysStart, keysEnd } = decoder;
  return {
    bundle,
    version,
    shardIndex,
    shardNum,
    groups: decoder.tables.map((table, i) => ({ table, count: decoder.counts[i]! })),
    ...(decoder.tablesDigest === '' ? {} : { tablesDigest: decoder.tablesDigest }),
    ...(decoder.rowsAs === ROWS_STORED ? {} : { rowsAs: decoder.rowsAs }),
    keys: keysStart < 0 ? undefined : bytes.subarray(keysStart, keysEnd),
  };
}

/** The encoded version field, which a server makes once per loaded version. */
export function encodeVersionField(version: string): Uint8Array {
  return new WireWriter().string(RESPONSE_VERSION, version).finish().slice();
}

/** Maximum bytes of a group in a response head as `writeResponseGroup` writes it. */
const GROUP_BYTES_MAX = 2 + 2 + 6 + 6 + 6 + 6;

/**
 * Appends one group of a response head before its hits are known. The hits are a varint of five
 * bytes (legal though not shortest), so that `setGroupHits` can set them after the lookup.
 * @param rowsBytes bytes of the rows part before its padding
 * @returns position of the hits
 */
export function writeResponseGroup(
  output: OutputBuffer,
  dtype: TableDtype,
  rowBytes: number,
  count: number,
  rowsBytes: number,
): number {
  const lengthAt = output.reserve(GROUP_BYTES_MAX) + 1;
  output.truncate(lengthAt + 1);
  output.bytes[lengthAt - 1] = TAG_RESPONSE_GROUP;
  output.appendByte(TAG_RESPONSE_GROUP_DTYPE);
  output.appendByte(TABLE_DTYPES.indexOf(dtype));
  output.appendByte(TAG_RESPONSE_GROUP_ROW_BYTES);
  output.appendVarint(rowBytes);
  output.appendByte(TAG_RESPONSE_GROUP_COUNT);
  output.appendVarint(count);
  output.appendByte(TAG_RESPONSE_GROUP_HITS);
  const hitsAt = output.reserve(5);
  output.appendByte(TAG_RESPONSE_GROUP_BYTES);
  output.appendVarint(rowsBytes);
  output.bytes[lengthAt] = output.length - lengthAt - 1;
  setGroupHits(output, hitsAt, 0);
  return hitsAt;
}

/** Begins the rows inside a response (HTTP, gRPC): `rowsBytes` bytes of rows follow. */
export function beginResponseRows(output: OutputBuffer, rowsBytes: number): void {
  output.appendByte(TAG_RESPONSE_ROWS);
  output.appendVarint(rowsBytes);
}

export function setGroupHits(output: OutputBuffer, hitsAt: number, hits: number): void {
  const bytes = output.bytes;
  bytes[hitsAt] = (hits & 0x7f) | 0x80;
  bytes[hitsAt + 1] = ((hits >>> 7) & 0x7f) | 0x80;
  bytes[hitsAt + 2] = ((hits >>> 14) & 0x7f) | 0x80;
  bytes[hitsAt + 3] = ((hits >>> 21) & 0x7f) | 0x80;
  bytes[hitsAt + 4] = hits >>> 28;
}

/** Decodes a response head, and the rows when they are in the message (HTTP, gRPC) as a view. */
export function decodeLookupResponse(
  bytes: Uint8Array,
): LookupResponseHead & { rows: Uint8Array | undefined } {
  const reader = new WireReader(bytes);
  const groups: LookupResponseGroup[] = [];
  let version = '';
  let rows: Uint8Array | undefined;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (wireType !== WIRE_BYTES) reader.skip();
    else if (field === RESPONSE_VERSION) version = reader.string();
    else if (field === RESPONSE_GROUPS) groups.push(decodeGroup(reader.message()));
    else if (field === RESPONSE_ROWS) rows = reader.view();
    else reader.skip();
  }
  return { version, groups, rows };
}

/** Reads one group and checks that its numbers agree, so that a reader can rely on them. */
function decodeGroup(reader: WireReader): LookupResponseGroup {
  let dtypeNumber = 0;
  let rowBytes = 0;
  let count = 0;
  let hits = 0;
  let bytes = -1;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (wireType !== WIRE_VARINT) reader.skip();
    else if (field === RESPONSE_GROUP_DTYPE) dtypeNumber = reader.uint32();
    else if (field === RESPONSE_GROUP_ROW_BYTES) rowBytes = reader.uint32();
    else if (field === RESPONSE_GROUP_COUNT) count = reader.uint32();
    else if (field === RESPONSE_GROUP_HITS) hits = reader.uint32();
    else if (field === RESPONSE_GROUP_BYTES) bytes = reader.uint32();
    else reader.skip();
  }
  const dtype = TABLE_DTYPES[dtypeNumber];
  if (dtype === undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `lookup response: dtype ${dtypeNumber} is unknown; update this client`,
    );
  }
  if (bytes < 0) bytes = count * rowBytes;
  const agree =
    hits <= count &&
    (dtype === 'bytes'
      ? rowBytes === 0 && bytes >= count * VALUE_LENGTH_BYTES
      : bytes === count * rowBytes);
  if (!agree) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `lookup response: ${hits} hits of ${count} keys do not agree with ` +
        `${dtype} rows of ${rowBytes} bytes in ${bytes} bytes`,
    );
  }
  return { dtype, rowBytes, count, hits, bytes };
}

/**
 * Decodes the values of dtype bytes of a group: value i is values[ends[i − 1] … ends[i]), from 0
 * for the first.
 * @param rowsPart the group's rows without bitmap and padding
 * @throws CubeError INVALID_ARGUMENT when the lengths do not match the number of bytes
 */
export function decodeValues(
  rowsPart: Uint8Array,
  count: number,
): { ends: Uint32Array; values: Uint8Array } {
  const valuesAt = count * VALUE_LENGTH_BYTES;
  const ends = new Uint32Array(rowsPart.length < valuesAt ? 0 : count);
  const view = new DataView(rowsPart.buffer, rowsPart.byteOffset, rowsPart.byteLength);
  let end = 0;
  for (let i = 0; i < ends.length; i++) {
    end += view.getUint32(i * VALUE_LENGTH_BYTES, true);
    if (end > rowsPart.length) break;
    ends[i] = end;
  }
  if (rowsPart.length !== valuesAt + end) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `lookup response: the lengths of ${count} values do not add up to ${rowsPart.length} bytes`,
    );
  }
  return { ends, values: rowsPart.subarray(valuesAt) };
}
