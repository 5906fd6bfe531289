/**
 * The packed lookup's messages (lookup.proto), both directions. Over baidu_std the messages are only heads: keys
 * and rows travel as the attachment, so nothing here runs per key.
 */
import { CubeError } from '../lib/core/errors.ts';
import { TABLE_DTYPES, type TableDtype } from '../lib/core/manifest.ts';
import { NameCache } from './name-cache.ts';
import type { OutputBuffer } from './output-buffer.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader, WireWriter } from './wire.ts';

export const LOOKUP_SERVICE = 'hypercube.LookupService';
export const LOOKUP_METHOD = 'lookup';
/** The same as a stream of requests and answers, over gRPC. */
export const LOOKUP_STREAM_METHOD = 'lookupStream';
export const KEY_BYTES = 8;
/** A u32 per key before the values of dtype bytes; 0 for a missing key. */
export const VALUE_LENGTH_BYTES = 4;
/** A request names at most this many tables: bounds what one head may allocate. */
export const LOOKUP_GROUPS_MAX = 4096;

interface LookupRequestGroup {
  readonly table: string;
  readonly count: number;
}

/** How rows are answered: as the table stores them, or converted to f32 by the server. */
export const ROWS_STORED = 0;
export const ROWS_F32 = 1;

export interface LookupRequestHead {
  readonly bundle: string;
  /** Empty: the server's active version. */
  readonly version: string;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly groups: readonly LookupRequestGroup[];
  /** Of the rows meant by the version; absent or empty: not checked. */
  readonly tablesDigest?: string;
  /** ROWS_STORED (also when absent) or ROWS_F32; values of dtype bytes are answered as they are in any case. */
  readonly rowsAs?: number;
}

export interface LookupResponseGroup {
  /** Of the rows as answered. */
  readonly dtype: TableDtype;
  /** 0 for dtype bytes. */
  readonly rowBytes: number;
  readonly count: number;
  readonly hits: number;
  /** Of the rows part before its padding: count · rowBytes, or the lengths and values of dtype bytes. */
  readonly bytes: number;
}

export interface LookupResponseHead {
  readonly version: string;
  readonly groups: readonly LookupResponseGroup[];
}

/** Bytes of a group's found bitmap: whole u64 words. */
export function bitmapBytes(count: number): number {
  return Math.ceil(count / 64) * 8;
}

/** Bytes of a group's answer: bitmap, then rows of one size padded to a multiple of 8. */
export function groupBytes(count: number, rowBytes: number): number {
  return groupBytesOf(count, count * rowBytes);
}

/** The same of any rows part: for dtype bytes it has `VALUE_LENGTH_BYTES` · count of lengths before the values. */
export function groupBytesOf(count: number, rowsBytes: number): number {
  return bitmapBytes(count) + Math.ceil(rowsBytes / 8) * 8;
}

/** @param keys put inside the message (HTTP, gRPC); over baidu_std they are the attachment: leave it out */
export function encodeLookupRequest(head: LookupRequestHead, keys?: Uint8Array): Uint8Array {
  const writer = new WireWriter();
  writer.string(1, head.bundle);
  if (head.version !== '') writer.string(2, head.version);
  writer.uint(3, head.shardIndex).uint(4, head.shardNum);
  for (const group of head.groups) {
    writer.message(5, (inner) => inner.string(1, group.table).uint(2, group.count));
  }
  if (keys !== undefined) writer.bytes(6, keys);
  if (head.tablesDigest) writer.string(7, head.tablesDigest);
  if (head.rowsAs) writer.uint(8, head.rowsAs);
  return writer.finish();
}

/**
 * A request head decoded into fields that the next `decode` overwrites: a server keeps one and allocates nothing
 * for the names it has seen before.
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
  /** The keys inside the message: positions in the decoded bytes, -1 when it has none. */
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
    if (field === 1 && wireType === WIRE_BYTES) this.bundle = this.#name(reader);
    else if (field === 2 && wireType === WIRE_BYTES) this.version = this.#name(reader);
    else if (field === 3 && wireType === WIRE_VARINT) this.shardIndex = reader.uint32();
    else if (field === 4 && wireType === WIRE_VARINT) this.shardNum = reader.uint32();
    else if (field === 5 && wireType === WIRE_BYTES) this.#group(reader.message());
    else if (field === 6 && wireType === WIRE_BYTES) {
      const keys = reader.message();
      this.keysStart = keys.position;
      this.keysEnd = keys.end;
    } else if (field === 7 && wireType === WIRE_BYTES) this.tablesDigest = this.#name(reader);
    else if (field === 8 && wireType === WIRE_VARINT) this.#rowsAs(reader.uint32());
    else reader.skip();
  }

  /** An unknown wish is refused: rows of another kind than asked for would be read as numbers all the same. */
  #rowsAs(value: number): void {
    if (value !== ROWS_STORED && value !== ROWS_F32) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `rows_as ${value} is not known here (0: as stored, 1: f32); update this server`,
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
      if (reader.field === 1 && reader.wireType === WIRE_BYTES) table = this.#name(reader);
      else if (reader.field === 2 && reader.wireType === WIRE_VARINT) count = reader.uint32();
      else reader.skip();
    }
    this.tables[this.groupCount] = table;
    this.counts[this.groupCount] = count;
    this.groupCount++;
  }

  #name(reader: WireReader): string {
    const view = reader.message();
    return this.#names.name(view.bytes, view.position, view.end);
  }
}

/** The head as an object of its own, and the keys when they are inside the message. */
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

/** The encoded version field, which a server makes once per resident version. */
export function encodeVersionField(version: string): Uint8Array {
  return new WireWriter().string(1, version).finish().slice();
}

/** Bytes of a group in a response head as `writeResponseGroup` writes it, at most. */
const GROUP_BYTES_MAX = 2 + 2 + 6 + 6 + 6 + 6;

/**
 * Appends one group of a response head before its hits are known. The hits are a varint of fixed length (five
 * bytes, legal though not shortest), so that they can be set when the lookup is done: `setGroupHits`.
 * @param rowsBytes of the rows part before its padding
 * @returns where the hits are
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
  output.bytes[lengthAt - 1] = 0x12;
  output.appendByte(0x08);
  output.appendByte(TABLE_DTYPES.indexOf(dtype));
  output.appendByte(0x10);
  output.appendVarint(rowBytes);
  output.appendByte(0x18);
  output.appendVarint(count);
  output.appendByte(0x20);
  const hitsAt = output.reserve(5);
  output.appendByte(0x28);
  output.appendVarint(rowsBytes);
  output.bytes[lengthAt] = output.length - lengthAt - 1;
  setGroupHits(output, hitsAt, 0);
  return hitsAt;
}

export function setGroupHits(output: OutputBuffer, hitsAt: number, hits: number): void {
  const bytes = output.bytes;
  bytes[hitsAt] = (hits & 0x7f) | 0x80;
  bytes[hitsAt + 1] = ((hits >>> 7) & 0x7f) | 0x80;
  bytes[hitsAt + 2] = ((hits >>> 14) & 0x7f) | 0x80;
  bytes[hitsAt + 3] = ((hits >>> 21) & 0x7f) | 0x80;
  bytes[hitsAt + 4] = hits >>> 28;
}

/** A response head, and the rows when they are inside the message (HTTP, gRPC): a view. */
export function decodeLookupResponse(
  bytes: Uint8Array,
): LookupResponseHead & { rows: Uint8Array | undefined } {
  const reader = new WireReader(bytes);
  const groups: LookupResponseGroup[] = [];
  let version = '';
  let rows: Uint8Array | undefined;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (field === 1 && wireType === WIRE_BYTES) version = reader.string();
    else if (field === 2 && wireType === WIRE_BYTES) groups.push(decodeGroup(reader.message()));
    else if (field === 3 && wireType === WIRE_BYTES) rows = reader.view();
    else reader.skip();
  }
  return { version, groups, rows };
}

/** Reads one group; its numbers agree with each other afterwards, so that a reader can act on them. */
function decodeGroup(reader: WireReader): LookupResponseGroup {
  let dtypeNumber = 0;
  let rowBytes = 0;
  let count = 0;
  let hits = 0;
  let bytes = -1;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (wireType !== WIRE_VARINT) reader.skip();
    else if (field === 1) dtypeNumber = reader.uint32();
    else if (field === 2) rowBytes = reader.uint32();
    else if (field === 3) count = reader.uint32();
    else if (field === 4) hits = reader.uint32();
    else if (field === 5) bytes = reader.uint32();
    else reader.skip();
  }
  const dtype = TABLE_DTYPES[dtypeNumber];
  if (dtype === undefined) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `lookup response: dtype ${dtypeNumber} is not known here; update this client`,
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
      `lookup response: ${hits} hits of ${count} keys, rows of ${rowBytes} bytes ${dtype} in ${bytes} bytes cannot be`,
    );
  }
  return { dtype, rowBytes, count, hits, bytes };
}

/**
 * The values of dtype bytes of a group: value i is values[ends[i − 1] … ends[i]) (from 0 for the first).
 * @param rowsPart the group's rows without bitmap and padding
 * @throws CubeError INVALID_ARGUMENT when the lengths do not make up the bytes
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
      `lookup response: ${count} values in ${rowsPart.length} bytes do not have the lengths they say`,
    );
  }
  return { ends, values: rowsPart.subarray(valuesAt) };
}
