/**
 * Draws keys at random from layer files. Every live row is equally likely, and the same seed gives
 * the same keys. A row occupies one slot of one layer, so slots are drawn; a slot that is empty, or
 * whose key a newer layer repositions or deletes, is drawn again.
 */

import { packKeys } from '../../lib/client/pack-keys.ts';
import { xxh64 } from '../../lib/core/hash.ts';
import { getKeySegments, INDEX_STRIDE, type LayerHeader } from '../../lib/core/layer-format.ts';
import { readLayerRows } from '../../lib/store/layer-file.ts';
import { LayerReader } from '../../lib/store/layer-reader.ts';
import { readLayerHeader } from './file-source.ts';
import type { TableFiles } from './table-files.ts';

/**
 * Tables with up to this many slots are read completely, like tables where drawing finds too few
 * live rows.
 */
const READ_SLOTS_MAX = 1 << 18;
const ROUNDS_MAX = 64;

/** Pseudo-random integers that are determined by a seed. */
class SeededRandom {
  readonly #seed: bigint;
  readonly #counter = new BigUint64Array(1);

  constructor(seed: number) {
    this.#seed = BigInt(seed);
  }

  /** Returns the next integer in 0 … limit − 1. */
  nextBelow(limit: number): number {
    this.#counter[0]! += 1n;
    const hash = xxh64(new Uint8Array(this.#counter.buffer), this.#seed);
    return Math.floor((Number(hash >> 11n) / 2 ** 53) * limit);
  }
}

/** The slots of one layer. */
interface SlotRange {
  readonly shard: number;
  /** Number of the layer in its chain; 0 is the base. */
  readonly number: number;
  readonly path: string;
  readonly header: LayerHeader;
  readonly slots: number;
}

/** Returns distinct keys of `count` live rows in the order drawn; fewer only if all are drawn. */
export function sampleKeys(table: TableFiles, count: number, seed: number): Uint32Array {
  const ranges = listSlotRanges(table);
  const total = ranges.reduce((sum, { slots }) => sum + slots, 0);
  const random = new SeededRandom(seed);
  const drawn =
    total <= READ_SLOTS_MAX ? undefined : sampleSlots(table, ranges, total, count, random);
  return packKeys(drawn ?? sampleRows(table, ranges, count, random));
}

function listSlotRanges(table: TableFiles): SlotRange[] {
  return table.shards.flatMap((files, shard) =>
    files.map(({ path }, number) => {
      const header = readLayerHeader(path);
      const slots = getKeySegments(header).reduce((sum, segment) => sum + segment.slots, 0);
      return { shard, number, path, header, slots };
    }),
  );
}

/** Returns undefined when too few of the slots contain a live row. */
function sampleSlots(
  table: TableFiles,
  ranges: readonly SlotRange[],
  total: number,
  count: number,
  random: SeededRandom,
): bigint[] | undefined {
  const found = new Set<bigint>();
  for (let round = 0; round < ROUNDS_MAX; round++) {
    const positions = Array.from({ length: 2 * (count - found.size) + 8 }, () =>
      random.nextBelow(total),
    );
    for (const key of readLiveKeys(table, ranges, positions)) {
      if (key !== undefined) found.add(key);
      if (found.size === count) return [...found];
    }
  }
  return undefined;
}

/** Reads the key at each position; undefined when empty, or when a newer layer decides the key. */
function readLiveKeys(
  table: TableFiles,
  ranges: readonly SlotRange[],
  positions: readonly number[],
): (bigint | undefined)[] {
  const keys = new Array<bigint | undefined>(positions.length);
  let before = 0;
  for (const range of ranges) {
    const own = [...positions.keys()]
      .filter((i) => positions[i]! >= before && positions[i]! < before + range.slots)
      .sort((a, b) => positions[a]! - positions[b]!);
    if (own.length > 0) {
      const slots = own.map((i) => positions[i]! - before);
      const read = readKeysAt(range, slots);
      const present = own.filter((_, at) => read[at] !== undefined);
      const words = packKeys(read.filter((key) => key !== undefined));
      const newer = table.openChain(range.shard).find(words, range.number + 1);
      const all = read.filter((key) => key !== undefined);
      present.forEach((i, at) => {
        if (!newer.isDecided(at)) keys[i] = all[at];
      });
    }
    before += range.slots;
  }
  return keys;
}

/** Reads the keys in ascending slots of a layer; undefined for an empty slot. */
function readKeysAt({ path, header }: SlotRange, slots: readonly number[]): (bigint | undefined)[] {
  if (header.layout === 'dense') {
    return slots.map((row) => header.firstKey + BigInt(row) * header.keyStep);
  }
  const stride = header.layout === 'indexed' ? INDEX_STRIDE : header.stride;
  const reader = new LayerReader(path);
  const word = new BigUint64Array(1);
  const bytes = new Uint8Array(word.buffer);
  try {
    return slots.map((slot) => {
      for (const segment of getKeySegments(header)) {
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

/** Reads all live keys and keeps `count` of them, each with equal probability. */
function sampleRows(
  table: TableFiles,
  ranges: readonly SlotRange[],
  count: number,
  random: SeededRandom,
): bigint[] {
  const kept: bigint[] = [];
  let seen = 0;
  for (const { shard, number, path } of ranges) {
    for (const { keys } of readLayerRows(path)) {
      const newer = table.openChain(shard).find(keys, number + 1);
      for (let i = 0; i < newer.count; i++) {
        if (newer.isDecided(i)) continue;
        seen += 1;
        const position = kept.length < count ? kept.length : random.nextBelow(seen);
        if (position < count)
          kept[position] = (BigInt(keys[2 * i + 1]!) << 32n) | BigInt(keys[2 * i]!);
      }
    }
  }
  return kept;
}
