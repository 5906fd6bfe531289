/**
 * Bags in the form of graph inputs (of an EmbeddingBag): one list with the ids of all rows, and the
 * offset of each row's bag in it. Offsets come from requests and are checked here.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { REQUEST_VALUES_MAX } from '../../lib/core/limits.ts';
import type { BagSpec } from '../../lib/core/slots.ts';
import type { InputTensor } from './input-tensor.ts';

/** The ids of one input for all rows. */
export interface IdColumns {
  /** Ids as pairs of 32-bit words (low, high). */
  readonly words: Uint32Array;
  /** Ids per row when the input has no bags. */
  readonly columns: number;
  /** The end of each row's bag; undefined when the input has no bags. */
  readonly ends: Uint32Array | undefined;
}

/**
 * The number of bags that the offsets describe. @throws CubeError INVALID_ARGUMENT naming the input
 */
export function countBags(offsets: InputTensor, spec: BagSpec): number {
  const { shape } = offsets;
  if (spec.offsetsRow === undefined ? shape.length !== 1 : shape.length !== 2) {
    const expected = spec.offsetsRow === undefined ? '[rows]' : '[lists, rows]';
    offsets.fail(`shape: expected ${expected}, got [${shape}]`);
  }
  const [lists = 0] = shape;
  if (spec.offsetsRow !== undefined && spec.offsetsRow >= lists) {
    offsets.fail(`shape: expected more than ${spec.offsetsRow} lists, got [${shape}]`);
  }
  return Math.max((shape.at(-1) ?? 0) - Number(spec.includesLast), 0);
}

/** @param count ids in the list @throws CubeError INVALID_ARGUMENT naming the offset */
export function computeBagEnds(offsets: InputTensor, spec: BagSpec, count: number): Uint32Array {
  const width = offsets.shape.at(-1) ?? 0;
  const start = width * (spec.offsetsRow ?? 0);
  const words = offsets.keys().subarray(2 * start, 2 * (start + width));
  const ends = new Uint32Array(countBags(offsets, spec));
  let before = 0;
  for (let i = 0; i < width; i++) {
    const offset = words[2 * i + 1] === 0 ? words[2 * i]! : Number.POSITIVE_INFINITY;
    const least = i === 0 ? 0 : before;
    const most = i === 0 ? 0 : count;
    if (offset < least || offset > most) {
      offsets.fail(
        `value ${start + i}: expected an offset in ${least}..${most} in the list of ids`,
      );
    }
    if (i > 0) ends[i - 1] = offset;
    before = offset;
  }
  if (!spec.includesLast) ends[ends.length - 1] = count;
  else if (before !== count)
    offsets.fail(`its last offset is ${before}, but the list has ${count} ids`);
  return ends;
}

/** Joins the inputs row by row. @throws CubeError TOO_LARGE */
export function joinIds(
  inputs: readonly IdColumns[],
  rowCount: number,
): { readonly keys: Uint32Array; readonly ends: Uint32Array } {
  const total = inputs.reduce((sum, { words }) => sum + words.length, 0);
  if (total > 2 * REQUEST_VALUES_MAX) {
    const text =
      `${total / 2} ids in one request, the limit is ${REQUEST_VALUES_MAX}: send ` +
      'several requests';
    throw new CubeError('TOO_LARGE', text);
  }
  const keys = new Uint32Array(total);
  const slotNum = inputs.reduce((sum, { columns }) => sum + columns, 0);
  const ends = new Uint32Array(rowCount * slotNum);
  let to = 0;
  let bag = 0;
  for (let row = 0; row < rowCount; row++) {
    for (const { words, columns, ends: bagEnds } of inputs) {
      for (let column = 0; column < columns; column++) {
        const at = row * columns + column;
        const start = bagEnds === undefined ? at : at === 0 ? 0 : bagEnds[at - 1]!;
        const end = bagEnds === undefined ? at + 1 : bagEnds[at]!;
        for (let word = 2 * start; word < 2 * end; word++) keys[to++] = words[word]!;
        ends[bag++] = to / 2;
      }
    }
  }
  return { keys, ends };
}
