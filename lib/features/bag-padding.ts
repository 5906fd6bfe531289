/** Padding keys of bags (an EmbeddingBag's padding_idx): they are removed before the lookup. */
import { CubeError } from '../core/errors.ts';
import type { KeyedRows } from '../core/feature-rows.ts';
import type { SlotSpec } from '../core/slots.ts';

/** Words (low, high) of the padding key, by slot position. */
export type PaddingKeys = ReadonlyMap<number, readonly [number, number]>;

/** @throws CubeError UNSUPPORTED when two graph inputs give one slot different padding ids */
export function readPaddingKeys({ embeddings, features }: SlotSpec): PaddingKeys {
  const positions = new Map(features?.slots.map(({ name }, i) => [name, i]));
  const ids = new Map<number, number | undefined>();
  for (const { input, slots, bags, paddingId } of embeddings) {
    // Without pooling, the table itself has a row of zeros for the padding.
    const id = bags === undefined ? undefined : paddingId;
    for (const slot of slots) {
      const position = positions.get(slot);
      if (position === undefined) continue;
      if (ids.has(position) && ids.get(position) !== id) {
        throw new CubeError(
          'UNSUPPORTED',
          `slot ${slot}: the padding id is ${id ?? 'none'} for the graph input ${input} and ` +
            `${ids.get(position) ?? 'none'} for another; give both the same padding`,
        );
      }
      ids.set(position, id);
    }
  }
  const paddings = new Map<number, readonly [number, number]>();
  for (const [position, id] of ids) {
    if (id !== undefined) paddings.set(position, [id % 2 ** 32, Math.floor(id / 2 ** 32)]);
  }
  return paddings;
}

/**
 * Removes the padding keys. @param slotNum bags in a row @returns the rows themselves when no slot
 * has padding
 */
export function removePadding(rows: KeyedRows, slotNum: number, paddings: PaddingKeys): KeyedRows {
  if (paddings.size === 0) return rows;
  const { rowCount, dense, keys, ends } = rows;
  const kept = new Uint32Array(keys.length);
  const keptEnds = new Uint32Array(rowCount * slotNum);
  let to = 0;
  for (let bag = 0, word = 0; bag < keptEnds.length; bag++) {
    const padding = paddings.get(bag % slotNum);
    const end = 2 * (ends === undefined ? bag + 1 : ends[bag]!);
    for (; word < end; word += 2) {
      if (keys[word] === padding?.[0] && keys[word + 1] === padding?.[1]) continue;
      kept[to++] = keys[word]!;
      kept[to++] = keys[word + 1]!;
    }
    keptEnds[bag] = to / 2;
  }
  return { rowCount, dense, keys: kept.subarray(0, to), ends: keptEnds };
}
