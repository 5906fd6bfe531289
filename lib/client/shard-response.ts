/**
 * Reads one shard's response to a lookup. Everything is checked before a byte is used: the version
 * and groups of the request, rows of the manifest's tables, and exactly the bytes that these need.
 * A mismatch is a failure of that replica.
 */
import {
  bitmapBytes,
  decodeLookupResponse,
  decodeValues,
  groupResponseBytes,
  type LookupResponseGroup,
  type LookupResponseHead,
} from '../../proto/lookup.ts';
import { CubeError } from '../core/errors.ts';
import type { TableDtype } from '../core/manifest.ts';
import { type RequestPart, type RowOutput, writeOutcomes, writeRows } from './scatter-gather.ts';
import type { ValueOutput } from './value-output.ts';

/** A table as its rows are answered in one row format. */
export interface PlannedTable {
  readonly name: string;
  readonly dim: number;
  /** The dtype of the answered rows. */
  readonly dtype: TableDtype;
  /** 0 for dtype bytes. */
  readonly rowBytes: number;
  /** The row of an unavailable key: the default row; zeros where rows are answered as stored. */
  readonly fillRow: Float32Array | Uint32Array;
  /** The encoded group of a request up to its count: the table's name and the tag of the count. */
  readonly groupHead: Uint8Array;
}

/** The request that a response must match. */
export interface ExpectedResponse {
  readonly version: string;
  readonly parts: readonly RequestPart[];
  /** Index = group. */
  readonly tables: readonly PlannedTable[];
  /** Position → index of the key in its group. */
  readonly order: Uint32Array;
}

/**
 * Checks a whole response, then writes its rows to the outputs.
 * @param outputs index = group
 * @returns the number of unseen keys
 * @throws CubeError INTERNAL, with nothing written, when the response does not match the request
 */
export function readRows(
  expected: ExpectedResponse,
  outputs: readonly RowOutput[],
  payload: Uint8Array,
  attachment: Uint8Array,
): number {
  const { parts, tables, order } = expected;
  const head = checkResponse(expected, payload, attachment);
  const bytes = toAligned(attachment);
  let unseen = 0;
  let offset = 0;
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i]!;
    const output = outputs[part.group]!;
    const rowsOffset = offset + bitmapBytes(part.count);
    const elements = tables[part.group]!.rowBytes / 4;
    const Elements = output.rows instanceof Float32Array ? Float32Array : Uint32Array;
    const buffer = bytes.buffer as ArrayBuffer;
    const rows = new Elements(buffer, bytes.byteOffset + rowsOffset, part.count * elements);
    unseen += writeOutcomes(part, order, bytes.subarray(offset, rowsOffset), output.outcomes);
    writeRows(part, order, rows, elements, output.rows);
    offset += groupResponseBytes(part.count, head.groups[i]!.bytes);
  }
  return unseen;
}

/** As `readRows`, for tables of dtype bytes. */
export function readValues(
  expected: ExpectedResponse,
  outputs: readonly ValueOutput[],
  payload: Uint8Array,
  attachment: Uint8Array,
): number {
  const { parts, order } = expected;
  const head = checkResponse(expected, payload, attachment);
  const bitmaps: Uint8Array[] = [];
  const values: ReturnType<typeof decodeValues>[] = [];
  for (let i = 0, offset = 0; i < parts.length; i++) {
    const { count, bytes } = head.groups[i]!;
    const valuesOffset = offset + bitmapBytes(count);
    bitmaps.push(attachment.subarray(offset, valuesOffset));
    values.push(readGroupValues(attachment.subarray(valuesOffset, valuesOffset + bytes), count));
    offset += groupResponseBytes(count, bytes);
  }
  let unseen = 0;
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i]!;
    const output = outputs[part.group]!;
    unseen += writeOutcomes(part, order, bitmaps[i]!, output.outcomes);
    const { ends, values: bytes } = values[i]!;
    const starts = new Uint32Array(ends.length);
    starts.set(ends.subarray(0, ends.length - 1), ends.length === 0 ? 0 : 1);
    output.add(order, { part, starts, ends, bytes });
  }
  return unseen;
}

/** @throws CubeError INTERNAL when the response does not match the request */
export function checkResponse(
  { version, parts, tables }: Pick<ExpectedResponse, 'version' | 'parts' | 'tables'>,
  payload: Uint8Array,
  attachment: Uint8Array,
): LookupResponseHead {
  const head = decodeHead(payload);
  if (head.version !== version) {
    rejectResponse(`answered from version ${JSON.stringify(head.version)}, expected ${version}`);
  }
  if (head.groups.length !== parts.length) {
    rejectResponse(`answered ${head.groups.length} groups, expected ${parts.length}`);
  }
  let bytes = 0;
  for (let i = 0; i < parts.length; i++) {
    const { group, count } = parts[i]!;
    const answered = head.groups[i]!;
    checkGroup(tables[group]!, count, answered);
    bytes += groupResponseBytes(count, answered.bytes);
  }
  if (attachment.length !== bytes) {
    rejectResponse(`answered ${attachment.length} bytes of rows, expected ${bytes}`);
  }
  for (let i = 0, offset = 0; i < parts.length; i++) {
    const { hits, count, bytes: rowsBytes } = head.groups[i]!;
    const found = countBits(attachment, offset, count);
    if (found !== hits) rejectResponse(`answered ${hits} hits, but its bitmap has ${found}`);
    offset += groupResponseBytes(count, rowsBytes);
  }
  return head;
}

function checkGroup(table: PlannedTable, count: number, answered: LookupResponseGroup): void {
  const { name, dim, dtype, rowBytes } = table;
  if (answered.count === count && answered.dtype === dtype && answered.rowBytes === rowBytes) {
    return;
  }
  const got = `${answered.count} rows of ${answered.rowBytes} bytes ${answered.dtype}`;
  rejectResponse(`table ${name}: answered ${got}, expected ${count} of dim ${dim} ${dtype}`);
}

/** Counts the set bits among the first `count` bits from byte `offset` on. */
function countBits(bytes: Uint8Array, offset: number, count: number): number {
  let bits = 0;
  const wholeBytes = count >>> 3;
  for (let i = 0; i < wholeBytes; i++) bits += countByteBits(bytes[offset + i]!);
  const rest = count & 7;
  if (rest === 0) return bits;
  return bits + countByteBits(bytes[offset + wholeBytes]! & ((1 << rest) - 1));
}

function countByteBits(byte: number): number {
  let bits = byte - ((byte >>> 1) & 0x55);
  bits = (bits & 0x33) + ((bits >>> 2) & 0x33);
  return (bits + (bits >>> 4)) & 0x0f;
}

function readGroupValues(bytes: Uint8Array, count: number): ReturnType<typeof decodeValues> {
  try {
    return decodeValues(bytes, count);
  } catch (error) {
    return rejectResponse((error as Error).message);
  }
}

let alignedScratch = new Uint8Array(64 << 10);
const SCRATCH_BYTES_MAX = 4 << 20;

/**
 * Rows are read as words of 4 bytes, at addresses that are multiples of 4; inside a frame they may
 * begin anywhere. Returns a copy where necessary, valid until the next call: responses are read
 * synchronously.
 */
function toAligned(bytes: Uint8Array): Uint8Array {
  if (bytes.byteOffset % 4 === 0) return bytes;
  if (bytes.length > SCRATCH_BYTES_MAX) return new Uint8Array(bytes);
  if (bytes.length > alignedScratch.length) alignedScratch = new Uint8Array(2 * bytes.length);
  alignedScratch.set(bytes);
  return alignedScratch.subarray(0, bytes.length);
}

function decodeHead(payload: Uint8Array): LookupResponseHead {
  try {
    return decodeLookupResponse(payload);
  } catch (error) {
    return rejectResponse(`the response is not a lookup response: ${(error as Error).message}`);
  }
}

function rejectResponse(message: string): never {
  throw new CubeError('INTERNAL', message);
}
