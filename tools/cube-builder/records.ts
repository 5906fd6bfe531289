/**
 * What the input becomes between reading and building: records of 32-bit words, one after another in input order.
 *
 *     word 0 key, low half    1 key, high half    2 tag    3 … the row or value, zero-padded to whole words
 *
 * The tag has the payload's bytes in its low 26 bits, and two flags: the key is deleted (no payload then), and the record
 * belongs to the old side of a comparison.
 */
import { CubeError } from '../../lib/core/errors.ts';

export const RECORD_HEAD_WORDS = 3;
export const DELETED: number = 0x8000_0000;
export const OLD_SIDE: number = 0x4000_0000;
const LENGTH_MASK = 0x03ff_ffff;

/** Bytes of the row or value behind a tag. */
export function payloadBytes(tag: number): number {
  return tag & LENGTH_MASK;
}

/** Words of a whole record. */
export function recordWords(tag: number): number {
  return RECORD_HEAD_WORDS + (((tag & LENGTH_MASK) + 3) >>> 2);
}

/** Records of one key range, in input order: in memory, or in a file. */
export interface RecordRun {
  readonly count: number;
  readonly words: number;
  /** Whole records each; together `words` long. */
  readonly pieces?: readonly Uint32Array[];
  readonly path?: string;
}

/** Words of one value: up to its 64 MiB the length fits the tag. */
export function requirePayload(bytes: number, what: string): void {
  if (bytes <= LENGTH_MASK) return;
  throw new CubeError('TOO_LARGE', `${what}: ${bytes} bytes, at most ${LENGTH_MASK}`);
}
