/**
 * Bags as graphs have them (an EmbeddingBag's inputs): one list of the ids of all rows, and where in it each row's bag begins.
 * What they say is checked here: offsets of a request may lie.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { REQUEST_VALUES_MAX } from '../../lib/core/limits.ts';
import type { BagSpec } from '../../lib/core/slots.ts';
import type { InputTensor } from './tensors.ts';

/** The ids of one input, all rows. */
export interface IdsColumns {
  /** Words (low, high). */
  readonly words: Uint32Array;
  /** In a row, where it has no bags. */
  readonly columns: number;
  /** Where each row's bag ends. */
  readonly ends: Uint32Array | undefined;
}

/** Rows that the offsets speak of. @throws CubeError INVALID_ARGUMENT naming the input */
export function bagCount(offsets: InputTensor, spec: BagSpec): number {
  const { shape } = offsets;
  if (spec.offsetsRow === undefined ? shape.length !== 1 : shape.length !== 2) {
    const wanted = spec.offsetsRow === undefined ? '[rows]' : '[lists, rows]';
    offsets.fail(`shape: expected ${wanted}, got [${shape}]`);
  }
  if (spec.offsetsRow !== undefined && spec.offsetsRow >= shape[0]!) {
    offsets.fail(`shape: expected more than ${spec.offsetsRow} lists, got [${shape}]`);
  }
  return Math.max(shape.at(-1)! - Number(spec.includesLast), 0);
}

/** @param count ids in the list @throws CubeError INVALID_ARGUMENT naming the offset */
export function bagEnds(offsets: InputTensor, spec: BagSpec, count: number): Uint32Array {
  const width = offsets.shape.at(-1)!;
  const start = width * (spec.offsetsRow ?? 0);
  const words = offsets.keys().subarray(2 * start, 2 * (start + width));
  const ends = new Uint32Array(bagCount(offsets, spec));
  let before = 0;
  for (let i = 0; i < width; i++) {
    const offset = words[2 * i + 1] === 0 ? words[2 * i]! : Number.POSITIVE_INFINITY;
    const least = i === 0 ? 0 : before;
    const most = i === 0 ? 0 : count;
    if (offset < least || offset > most) {
      offsets.fail(`value ${start + i}: expected a place in ${least}..${most} of the list of ids`);
    }
    if (i > 0) ends[i - 1] = offset;
    before = offset;
  }
  if (!spec.includesLast) ends[ends.length - 1] = count;
  else if (before !== count) offsets.fail(`its last place is ${before}, the list has ${count} ids`);
  return ends;
}

/** Row by row the ids of each input. @throws CubeError TOO_LARGE */
export function joinIds(
  inputs: readonly IdsColumns[],
  rowCount: number,
): { readonly keys: Uint32Array; readonly ends: Uint32Array } {
  const total = inputs.reduce((sum, { words }) => sum + words.length, 0);
  if (total > 2 * REQUEST_VALUES_MAX) {
    const text = `${total / 2} ids in one request, the limit is ${REQUEST_VALUES_MAX}: send it in several`;
    throw new CubeError('TOO_LARGE', text);
  }
  const keys = new Uint32Array(total);
  const slotNum = inputs.reduce((sum, { columns }) => sum + columns, 0);
  const ends = new Uint32Array(rowCount * slotNum);
  let to = 0;
  let bag = 0;
  for (let row = 0; row < rowCount; row++) {
    for (const { words, columns, ends: own } of inputs) {
      for (let column = 0; column < columns; column++) {
        const at = row * columns + column;
        const start = own === undefined ? at : at === 0 ? 0 : own[at - 1]!;
        const end = own === undefined ? at + 1 : own[at]!;
        for (let word = 2 * start; word < 2 * end; word++) keys[to++] = words[word]!;
        ends[bag++] = to / 2;
      }
    }
  }
  return { keys, ends };
}
