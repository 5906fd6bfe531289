/** Values of any length, gathered from several shards: their places are known only when all lengths are. */

import { CubeError } from '../core/errors.ts';
import type { Values } from './lookup-group.ts';
import type { RequestPart } from './scatter.ts';

/** Value i of a part is bytes[starts[i] … ends[i]). */
interface Piece {
  readonly part: RequestPart;
  readonly starts: Uint32Array;
  readonly ends: Uint32Array;
  readonly bytes: Uint8Array;
}

const VALUES_BYTES_MAX = 0xffff_ffff;

/** The values of one group of one lookup. */
export class ValueTarget {
  readonly outcomes: Uint8Array;
  readonly #lengths: Uint32Array;
  readonly #pieces: Piece[] = [];

  constructor(count: number, outcomes: Uint8Array) {
    this.outcomes = outcomes;
    this.#lengths = new Uint32Array(count);
  }

  /** Takes the values of one part. @param piece copied, up to the part's count */
  add(order: Uint32Array, { part, starts, ends, bytes }: Piece): void {
    const { count, start } = part;
    for (let i = 0; i < count; i++) this.#lengths[order[start + i]!] = ends[i]! - starts[i]!;
    this.#pieces.push({
      part,
      starts: starts.slice(0, count),
      ends: ends.slice(0, count),
      // Not `slice`: of a Buffer that is a view.
      bytes: new Uint8Array(bytes),
    });
  }

  /** All values in the order of the keys. @throws CubeError TOO_LARGE when they are more than 4 GiB */
  assemble(order: Uint32Array): Values {
    const ends = new Uint32Array(this.#lengths.length);
    let total = 0;
    for (let i = 0; i < ends.length; i++) {
      total += this.#lengths[i]!;
      if (total > VALUES_BYTES_MAX) {
        throw new CubeError(
          'TOO_LARGE',
          'the values have more than 4 GiB; look fewer keys up at once',
        );
      }
      ends[i] = total;
    }
    const values = new Uint8Array(total);
    for (const piece of this.#pieces) place(piece, order, ends, values);
    return { values, ends };
  }
}

/** Values up to this size are copied in a loop, which beats `set(subarray)`. */
const LOOP_COPY_BYTES = 128;

function place(piece: Piece, order: Uint32Array, ends: Uint32Array, values: Uint8Array): void {
  const { part, bytes } = piece;
  for (let i = 0; i < part.count; i++) {
    const index = order[part.start + i]!;
    const start = piece.starts[i]!;
    const end = piece.ends[i]!;
    let to = index === 0 ? 0 : ends[index - 1]!;
    if (end - start > LOOP_COPY_BYTES) values.set(bytes.subarray(start, end), to);
    else for (let from = start; from < end; from++) values[to++] = bytes[from]!;
  }
}
