/**
 * One shard's answer, checked before a byte of it is used: the version asked for, the groups asked for, rows of the
 * manifest's tables, and exactly the bytes that these need. What does not match is the failure of that replica.
 */

import {
  bitmapBytes,
  decodeLookupResponse,
  groupBytes,
  type LookupResponseHead,
} from '../../proto/lookup.ts';
import { CubeError } from '../core/errors.ts';
import type { TableRef } from '../core/manifest.ts';
import type { LookupGroup } from './lookup-group.ts';
import { gatherPart, type RequestPart, type Scatter } from './scatter.ts';

/** What a request asked, to check and place its answer. */
export interface Asked {
  readonly version: string;
  readonly parts: readonly RequestPart[];
  readonly tables: readonly TableRef[];
  readonly groups: readonly LookupGroup[];
  readonly scatter: Scatter;
}

/** @throws CubeError INTERNAL when the answer is not one to what was asked */
export function checkAnswer(
  asked: Pick<Asked, 'version' | 'parts' | 'tables'>,
  payload: Uint8Array,
  attachment: Uint8Array,
): void {
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
    const { name, dim } = tables[group]!;
    const answer = head.groups[i]!;
    if (answer.count !== count || answer.dtype !== 'f32' || answer.rowBytes !== 4 * dim) {
      const got = `${answer.count} rows of ${answer.rowBytes} bytes ${answer.dtype}`;
      refuse(`table ${name}: answered ${got}, asked for ${count} of dim ${dim} f32`);
    }
    bytes += groupBytes(count, 4 * dim);
  }
  if (attachment.length !== bytes) {
    refuse(`answered ${attachment.length} bytes of rows, expected ${bytes}`);
  }
}

/** Writes a checked answer to the caller's arrays. @returns the number of unseen keys */
export function gatherAnswer(asked: Asked, attachment: Uint8Array): number {
  const bytes = aligned(attachment);
  let unseen = 0;
  let at = 0;
  for (const part of asked.parts) {
    const { dim } = asked.tables[part.group]!;
    const rowsAt = at + bitmapBytes(part.count);
    const found = bytes.subarray(at, rowsAt);
    const rows = new Float32Array(bytes.buffer, bytes.byteOffset + rowsAt, part.count * dim);
    const target = asked.groups[part.group]!;
    unseen += gatherPart(part, asked.scatter.order, found, rows, dim, target);
    at += groupBytes(part.count, 4 * dim);
  }
  return unseen;
}

let scratch = new Uint8Array(64 << 10);
const SCRATCH_BYTES_MAX = 4 << 20;

/**
 * Rows are read as floats, which needs an address that is a multiple of 4; inside a frame they may have any. The copy
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
