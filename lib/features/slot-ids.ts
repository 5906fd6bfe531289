/** Copies the ids that the graph itself takes: the keys of slots that have one value each. */
import type { KeyedRows } from '../core/feature-rows.ts';

/** Where bag i of a request ends; bag -1 ends at 0. */
export function findBagEnd(ends: Uint32Array | undefined, i: number): number {
  if (ends === undefined) return i + 1;
  return i < 0 ? 0 : ends[i]!;
}

/** @param slots positions in the keys of a row, one for each column of `target` */
export function copySlotIds(
  target: BigInt64Array,
  slots: Int32Array,
  from: { rows: KeyedRows; start: number; count: number; keyNum: number },
): void {
  const { rows, start, count, keyNum } = from;
  const { keys, ends } = rows;
  const words = new Uint32Array(target.buffer, target.byteOffset, 2 * target.length);
  let to = 0;
  for (let row = start; row < start + count; row++) {
    for (let column = 0; column < slots.length; column++) {
      const at = 2 * findBagEnd(ends, row * keyNum + slots[column]! - 1);
      words[to++] = keys[at]!;
      words[to++] = keys[at + 1]!;
    }
  }
}
