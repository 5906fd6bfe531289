/** Keys that do not count in bags (an EmbeddingBag's padding_idx): they are taken out before anything is looked up. */
import { CubeError } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/features.ts';
import type { SlotSpec } from '../../lib/core/slots.ts';

/** Words (low, high) of the padding key of a slot, by its position. */
export type Paddings = ReadonlyMap<number, readonly [number, number]>;

/** @throws CubeError UNSUPPORTED when a slot is padding in one input of the graph and not, or another, in a second */
export function paddingsOf({ embeddings, features }: SlotSpec): Paddings {
  const positions = new Map(features?.slots.map(({ name }, i) => [name, i]));
  const ids = new Map<number, number | undefined>();
  for (const { input, slots, bags, paddingId } of embeddings) {
    // Where rows are not pooled, the table has zeros for the padding.
    const own = bags === undefined ? undefined : paddingId;
    for (const slot of slots) {
      const position = positions.get(slot)!;
      if (ids.has(position) && ids.get(position) !== own) {
        throw new CubeError(
          'UNSUPPORTED',
          `slot ${slot}: the input ${input} takes it with padding ${own ?? 'of no id'}, another with ${ids.get(position) ?? 'none'}`,
        );
      }
      ids.set(position, own);
    }
  }
  const paddings = new Map<number, readonly [number, number]>();
  for (const [position, id] of ids) {
    if (id !== undefined) paddings.set(position, [id % 2 ** 32, Math.floor(id / 2 ** 32)]);
  }
  return paddings;
}

/** The rows without their padding. @param slotNum bags in a row */
export function dropPadding(rows: KeyedRows, slotNum: number, paddings: Paddings): KeyedRows {
  if (paddings.size === 0) return rows;
  const { rowCount, dense, keys, ends } = rows;
  const kept = new Uint32Array(keys.length);
  const keptEnds = new Uint32Array(rowCount * slotNum);
  let to = 0;
  for (let bag = 0, at = 0; bag < keptEnds.length; bag++) {
    const padding = paddings.get(bag % slotNum);
    const end = 2 * (ends === undefined ? bag + 1 : ends[bag]!);
    for (; at < end; at += 2) {
      if (keys[at] === padding?.[0] && keys[at + 1] === padding?.[1]) continue;
      kept[to++] = keys[at]!;
      kept[to++] = keys[at + 1]!;
    }
    keptEnds[bag] = to / 2;
  }
  return { rowCount, dense, keys: kept.subarray(0, to), ends: keptEnds };
}
