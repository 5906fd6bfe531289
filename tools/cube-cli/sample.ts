/**
 * Keys drawn at random from layer files, each live row as likely as any other, and the same ones for the same seed. A row lies in one
 * slot of one layer: slots are drawn, and those that are empty, or whose key a newer layer decides, are drawn again.
 */

import { keyWords } from '../../lib/client/key-words.ts';
import { xxh64 } from '../../lib/core/hash.ts';
import { INDEX_STRIDE, keySegments, type LayerHeader } from '../../lib/core/layer-format.ts';
import { readLayerRows } from '../../lib/store/layer-file.ts';
import { LayerReader } from '../../lib/store/layer-reader.ts';
import { headerOf } from './file-source.ts';
import type { TableFiles } from './table-files.ts';

/** Tables up to so many slots are read whole, and so are those in which drawing finds too little. */
const READ_SLOTS_MAX = 1 << 18;
const ROUNDS_MAX = 64;

/** Numbers in 0 … below − 1 that follow from a seed. */
class Draw {
  readonly #seed: bigint;
  readonly #counter = new BigUint64Array(1);

  constructor(seed: number) {
    this.#seed = BigInt(seed);
  }

  below(limit: number): number {
    this.#counter[0]! += 1n;
    const hash = xxh64(new Uint8Array(this.#counter.buffer), this.#seed);
    return Math.floor((Number(hash >> 11n) / 2 ** 53) * limit);
  }
}

/** A layer with slots to draw from. */
interface SlotRange {
  readonly shard: number;
  /** Of its chain. */
  readonly number: number;
  readonly path: string;
  readonly header: LayerHeader;
  readonly slots: number;
}

/** @returns distinct keys of live rows, in the order drawn: as many as asked, or all there are */
export function sampleKeys(table: TableFiles, count: number, seed: number): Uint32Array {
  const ranges = slotRanges(table);
  const total = ranges.reduce((sum, { slots }) => sum + slots, 0);
  const draw = new Draw(seed);
  const drawn = total <= READ_SLOTS_MAX ? undefined : drawSlots(table, ranges, total, count, draw);
  return keyWords(drawn ?? drawRows(table, ranges, count, draw));
}

function slotRanges(table: TableFiles): SlotRange[] {
  return table.shards.flatMap((files, shard) =>
    files.map(({ path }, number) => {
      const header = headerOf(path);
      const slots = keySegments(header).reduce((sum, segment) => sum + segment.slots, 0);
      return { shard, number, path, header, slots };
    }),
  );
}

/** @returns undefined when too few of the slots hold a live row */
function drawSlots(
  table: TableFiles,
  ranges: readonly SlotRange[],
  total: number,
  count: number,
  draw: Draw,
): bigint[] | undefined {
  const found = new Set<bigint>();
  for (let round = 0; round < ROUNDS_MAX; round++) {
    const places = Array.from({ length: 2 * (count - found.size) + 8 }, () => draw.below(total));
    for (const key of liveKeys(table, ranges, places)) {
      if (key !== undefined) found.add(key);
      if (found.size === count) return [...found];
    }
  }
  return undefined;
}

/** The key of each place, undefined when it is empty or decided by a newer layer. */
function liveKeys(
  table: TableFiles,
  ranges: readonly SlotRange[],
  places: readonly number[],
): (bigint | undefined)[] {
  const keys = new Array<bigint | undefined>(places.length);
  let before = 0;
  for (const range of ranges) {
    const own = [...places.keys()]
      .filter((i) => places[i]! >= before && places[i]! < before + range.slots)
      .sort((a, b) => places[a]! - places[b]!);
    if (own.length > 0) {
      const slots = own.map((i) => places[i]! - before);
      const read = keysAt(range, slots);
      const present = own.filter((_, at) => read[at] !== undefined);
      const words = keyWords(read.filter((key) => key !== undefined));
      const newer = table.chain(range.shard).find(words, range.number + 1);
      const all = read.filter((key) => key !== undefined);
      present.forEach((i, at) => {
        if (!newer.isDecided(at)) keys[i] = all[at];
      });
    }
    before += range.slots;
  }
  return keys;
}

/** Keys in slots of a layer, ascending. */
function keysAt({ path, header }: SlotRange, slots: readonly number[]): (bigint | undefined)[] {
  if (header.layout === 'dense') {
    return slots.map((row) => header.firstKey + BigInt(row) * header.keyStep);
  }
  const stride = header.layout === 'indexed' ? INDEX_STRIDE : header.stride;
  const reader = new LayerReader(path);
  const word = new BigUint64Array(1);
  const bytes = new Uint8Array(word.buffer);
  try {
    return slots.map((slot) => {
      for (const segment of keySegments(header)) {
        if (slot < segment.slots) {
          reader.read(bytes, segment.offset + slot * stride);
          return word[0] === header.emptyKey ? undefined : word[0];
        }
        slot -= segment.slots;
      }
      return undefined;
    });
  } finally {
    reader.close();
  }
}

/** Reads all keys and keeps `count` of them, each as likely as any other. */
function drawRows(
  table: TableFiles,
  ranges: readonly SlotRange[],
  count: number,
  draw: Draw,
): bigint[] {
  const kept: bigint[] = [];
  let seen = 0;
  for (const { shard, number, path } of ranges) {
    for (const { keys } of readLayerRows(path)) {
      const newer = table.chain(shard).find(keys, number + 1);
      for (let i = 0; i < newer.count; i++) {
        if (newer.isDecided(i)) continue;
        seen += 1;
        const at = kept.length < count ? kept.length : draw.below(seen);
        if (at < count) kept[at] = (BigInt(keys[2 * i + 1]!) << 32n) | BigInt(keys[2 * i]!);
      }
    }
  }
  return kept;
}
