/**
 * Collects values of any length from several shards. Their offsets are known only once all lengths
 * are.
 */
import { CubeError } from '../core/errors.ts';
import type { Values } from '../core/lookup-group.ts';
import type { RequestPart } from './scatter-gather.ts';

/** The values of one part of a request: value i is bytes[starts[i] … ends[i]). */
interface ValueChunk {
  readonly part: RequestPart;
  readonly starts: Uint32Array;
  readonly ends: Uint32Array;
  readonly bytes: Uint8Array;
}

const VALUES_BYTES_MAX = 0xffff_ffff;

/** The values of one group of one lookup. */
export class ValueOutput {
  readonly outcomes: Uint8Array;
  readonly #lengths: Uint32Array;
  readonly #chunks: ValueChunk[] = [];

  constructor(count: number, outcomes: Uint8Array) {
    this.outcomes = outcomes;
    this.#lengths = new Uint32Array(count);
  }

  /** Copies the values of one part. */
  add(order: Uint32Array, { part, starts, ends, bytes }: ValueChunk): void {
    const { count, start } = part;
    for (let i = 0; i < count; i++) this.#lengths[order[start + i]!] = ends[i]! - starts[i]!;
    this.#chunks.push({
      part,
      starts: starts.slice(0, count),
      ends: ends.slice(0, count),
      // Not `slice`, which returns a view for a Buffer.
      bytes: new Uint8Array(bytes),
    });
  }

  /** Returns all values in the order of the keys. @throws CubeError TOO_LARGE above 4 GiB */
  assemble(order: Uint32Array): Values {
    const ends = new Uint32Array(this.#lengths.length);
    let total = 0;
    for (let i = 0; i < ends.length; i++) {
      total += this.#lengths[i]!;
      if (total > VALUES_BYTES_MAX) {
        throw new CubeError(
          'TOO_LARGE',
          'the values have more than 4 GiB; look up fewer keys at once',
        );
      }
      ends[i] = total;
    }
    const values = new Uint8Array(total);
    for (const chunk of this.#chunks) copyValues(chunk, order, ends, values);
    return { values, ends };
  }
}

/** Values up to this size are copied in a loop, which is faster than `set(subarray)`. */
const LOOP_COPY_BYTES = 128;

function copyValues(
  chunk: ValueChunk,
  order: Uint32Array,
  ends: Uint32Array,
  values: Uint8Array,
): void {
  const { part, bytes } = chunk;
  for (let i = 0; i < part.count; i++) {
    const index = order[part.start + i]!;
    const start = chunk.starts[i]!;
    const end = chunk.ends[i]!;
    let to = index === 0 ? 0 : ends[index - 1]!;
    if (end - start > LOOP_COPY_BYTES) values.set(bytes.subarray(start, end), to);
    else for (let from = start; from < end; from++) values[to++] = bytes[from]!;
  }
}
