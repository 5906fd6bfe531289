/** Values of any length, gathered from several shards: their places are known only when all lengths are. */

import { CubeError } from '../core/errors.ts';
import type { Values } from './lookup-group.ts';
import type { RequestPart } from './scatter.ts';

interface Piece {
  readonly part: RequestPart;
  readonly ends: Uint32Array;
  readonly values: Uint8Array;
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

  /** Takes the values of one part. @param values copied */
  add(part: RequestPart, order: Uint32Array, ends: Uint32Array, values: Uint8Array): void {
    for (let i = 0, start = 0; i < part.count; i++) {
      this.#lengths[order[part.start + i]!] = ends[i]! - start;
      start = ends[i]!;
    }
    this.#pieces.push({ part, ends, values: values.slice() });
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
    for (const { part, ends: pieceEnds, values: piece } of this.#pieces) {
      for (let i = 0, start = 0; i < part.count; i++) {
        const index = order[part.start + i]!;
        values.set(piece.subarray(start, pieceEnds[i]!), index === 0 ? 0 : ends[index - 1]!);
        start = pieceEnds[i]!;
      }
    }
    return { values, ends };
  }
}
