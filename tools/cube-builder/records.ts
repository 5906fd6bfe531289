/**
 * Records: the form of the input between reading and building, in input order. A record is a
 * sequence of 32-bit words:
 *
 *     word 0 key, low half    1 key, high half    2 tag    3 … row or value, zero-padded
 *
 * The low 26 bits of the tag are the number of payload bytes. Two flags mark a deleted key (no
 * payload) and a record of the old input of a comparison.
 */
import { CubeError } from '../../lib/core/errors.ts';

export const RECORD_HEAD_WORDS = 3;
export const DELETED_FLAG: number = 0x8000_0000;
export const OLD_INPUT_FLAG: number = 0x4000_0000;
const LENGTH_MASK = 0x03ff_ffff;

/** Payload bytes of the record with this tag. */
export function getPayloadBytes(tag: number): number {
  return tag & LENGTH_MASK;
}

/** Words of the record with this tag, head included. */
export function getRecordWords(tag: number): number {
  return RECORD_HEAD_WORDS + (((tag & LENGTH_MASK) + 3) >>> 2);
}

/** Records of one key range in input order, either in memory (`pieces`) or in a file (`path`). */
export interface RecordRun {
  readonly count: number;
  readonly words: number;
  /** Complete records; `words` long in total. */
  readonly pieces?: readonly Uint32Array[];
  readonly path?: string;
}

/** Checks that the length fits the tag. @throws CubeError TOO_LARGE for 64 MiB and more */
export function checkPayloadBytes(bytes: number, what: string): void {
  if (bytes <= LENGTH_MASK) return;
  throw new CubeError(
    'TOO_LARGE',
    `${what}: ${bytes} bytes, but at most ${LENGTH_MASK} are allowed`,
  );
}

/**
 * Arrays that are reused for every range. A dropped array stays in memory until the engine
 * collects it, which is late for memory outside its heap. An array is valid until `get` is
 * called again with the same name.
 */
export class ReusableArrays {
  readonly #arrays = new Map<string, Uint32Array>();

  /** @returns `length` words with undefined content */
  get(name: string, length: number): Uint32Array {
    let array = this.#arrays.get(name);
    if (array === undefined || array.length < length) {
      // Drop the old array before allocating; spare room avoids growing again for the next range.
      this.#arrays.delete(name);
      array = new Uint32Array(Math.ceil(length * 1.1));
      this.#arrays.set(name, array);
    }
    return array.subarray(0, length);
  }
}
