/**
 * One shard's answer, checked before a byte of it is used: the version asked for, the groups asked for, rows of the
 * manifest's tables, and exactly the bytes that these need. What does not match is the failure of that replica.
 */

import {
  bitmapBytes,
  decodeLookupResponse,
  decodeValues,
  groupBytesOf,
  type LookupResponseGroup,
  type LookupResponseHead,
} from '../../proto/lookup.ts';
import { CubeError } from '../core/errors.ts';
import type { PlannedTable } from './planned-table.ts';
import { gatherOutcomes, gatherRows, type RequestPart, type RowTarget } from './scatter.ts';
import type { ValueTarget } from './value-target.ts';

/** What a request asked, to check and place its answer. */
export interface Asked {
  readonly version: string;
  readonly parts: readonly RequestPart[];
  /** By group. */
  readonly tables: readonly PlannedTable[];
  /** Position → index of the key in its group. */
  readonly order: Uint32Array;
}

/**
 * Checks all of an answer, then writes its rows to the targets.
 * @param targets by group
 * @returns the number of unseen keys
 * @throws CubeError INTERNAL, with nothing written, when the answer is not one to what was asked
 */
export function takeRows(
  asked: Asked,
  targets: readonly RowTarget[],
  payload: Uint8Array,
  attachment: Uint8Array,
): number {
  const { parts, tables, order } = asked;
  const head = checkAnswer(asked, payload, attachment);
  const bytes = aligned(attachment);
  let unseen = 0;
  let at = 0;
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i]!;
    const target = targets[part.group]!;
    const rowsAt = at + bitmapBytes(part.count);
    const elements = tables[part.group]!.rowBytes / 4;
    const Elements = target.rows instanceof Float32Array ? Float32Array : Uint32Array;
    const buffer = bytes.buffer as ArrayBuffer;
    const rows = new Elements(buffer, bytes.byteOffset + rowsAt, part.count * elements);
    unseen += gatherOutcomes(part, order, bytes.subarray(at, rowsAt), target.outcomes);
    gatherRows(part, order, rows, elements, target.rows);
    at += groupBytesOf(part.count, head.groups[i]!.bytes);
  }
  return unseen;
}

/** The same of tables of dtype bytes. */
export function takeValues(
  asked: Asked,
  targets: readonly ValueTarget[],
  payload: Uint8Array,
  attachment: Uint8Array,
): number {
  const { parts, order } = asked;
  const head = checkAnswer(asked, payload, attachment);
  const found: Uint8Array[] = [];
  const values: ReturnType<typeof decodeValues>[] = [];
  for (let i = 0, at = 0; i < parts.length; i++) {
    const { count, bytes } = head.groups[i]!;
    const valuesAt = at + bitmapBytes(count);
    found.push(attachment.subarray(at, valuesAt));
    values.push(valuesOf(attachment.subarray(valuesAt, valuesAt + bytes), count));
    at += groupBytesOf(count, bytes);
  }
  let unseen = 0;
  for (let i = 0; i < parts.length; i++) {
    const part = parts[i]!;
    const target = targets[part.group]!;
    unseen += gatherOutcomes(part, order, found[i]!, target.outcomes);
    const { ends, values: bytes } = values[i]!;
    const starts = new Uint32Array(ends.length);
    starts.set(ends.subarray(0, ends.length - 1), ends.length === 0 ? 0 : 1);
    target.add(order, { part, starts, ends, bytes });
  }
  return unseen;
}

/** @throws CubeError INTERNAL when the answer is not one to what was asked */
export function checkAnswer(
  asked: Pick<Asked, 'version' | 'parts' | 'tables'>,
  payload: Uint8Array,
  attachment: Uint8Array,
): LookupResponseHead {
  const head = decodeHead(payload);
  const { version, parts, tables } = asked;
  if (head.version !== version) {
    refuse(`answered from version ${JSON.stringify(head.version)}, asked for ${version}`);
  }
  if (head.groups.length !== parts.length) {
    refuse(`answered ${head.groups.length} groups, asked for ${parts.length}`);
  }
  let bytes = 0;
  for (let i = 0; i < parts.length; i++) {
    const { group, count } = parts[i]!;
    const answer = head.groups[i]!;
    checkGroup(tables[group]!, count, answer);
    bytes += groupBytesOf(count, answer.bytes);
  }
  if (attachment.length !== bytes) {
    refuse(`answered ${attachment.length} bytes of rows, expected ${bytes}`);
  }
  for (let i = 0, at = 0; i < parts.length; i++) {
    const { hits, count, bytes: rowsBytes } = head.groups[i]!;
    const found = bitsIn(attachment, at, count);
    if (found !== hits) refuse(`answered ${hits} hits, but ${found} are marked as found`);
    at += groupBytesOf(count, rowsBytes);
  }
  return head;
}

function checkGroup(table: PlannedTable, count: number, answer: LookupResponseGroup): void {
  const { name, dim, dtype, rowBytes } = table;
  if (answer.count === count && answer.dtype === dtype && answer.rowBytes === rowBytes) return;
  const got = `${answer.count} rows of ${answer.rowBytes} bytes ${answer.dtype}`;
  refuse(`table ${name}: answered ${got}, asked for ${count} of dim ${dim} ${dtype}`);
}

/** Bits set among the first `count` from byte `at` on. */
function bitsIn(bytes: Uint8Array, at: number, count: number): number {
  let bits = 0;
  const whole = count >>> 3;
  for (let i = 0; i < whole; i++) bits += bitsOf(bytes[at + i]!);
  const rest = count & 7;
  return rest === 0 ? bits : bits + bitsOf(bytes[at + whole]! & ((1 << rest) - 1));
}

function bitsOf(byte: number): number {
  let bits = byte - ((byte >>> 1) & 0x55);
  bits = (bits & 0x33) + ((bits >>> 2) & 0x33);
  return (bits + (bits >>> 4)) & 0x0f;
}

function valuesOf(rowsPart: Uint8Array, count: number): ReturnType<typeof decodeValues> {
  try {
    return decodeValues(rowsPart, count);
  } catch (error) {
    return refuse((error as Error).message);
  }
}

let scratch = new Uint8Array(64 << 10);
const SCRATCH_BYTES_MAX = 4 << 20;

/**
 * Rows are read as words of 4 bytes, which needs an address that is a multiple of 4; inside a frame they may have any. The copy
 * is valid until the next call: gathering is synchronous.
 */
function aligned(bytes: Uint8Array): Uint8Array {
  if (bytes.byteOffset % 4 === 0) return bytes;
  if (bytes.length > SCRATCH_BYTES_MAX) return new Uint8Array(bytes);
  if (bytes.length > scratch.length) scratch = new Uint8Array(2 * bytes.length);
  scratch.set(bytes);
  return scratch.subarray(0, bytes.length);
}

function decodeHead(payload: Uint8Array): LookupResponseHead {
  try {
    return decodeLookupResponse(payload);
  } catch (error) {
    return refuse(`answered something else than a lookup: ${(error as Error).message}`);
  }
}

function refuse(what: string): never {
  throw new CubeError('INTERNAL', what);
}
