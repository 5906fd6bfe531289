/**
 * A Bloom filter over the keys of a delta: rules most keys out in a few nanoseconds. It has one or
 * two 32-bit words per key and sets two bits of one word for each key; the false positive rate is
 * about 1 %.
 */
import { DELETED_STRIDE, type LayerHeader } from '../core/layer-format.ts';
import type { LookupBatch } from './lookup-batch.ts';
import type { PlacedSection } from './section-placement.ts';

function hashKey(low: number, high: number): number {
  let hash = Math.imul(low ^ Math.imul(high, 0x85eb_ca6b), 0x9e37_79b1);
  hash = Math.imul(hash ^ (hash >>> 16), 0xc2b2_ae35);
  return hash ^ (hash >>> 13);
}

function toBitMask(hash: number): number {
  const bits = Math.imul(hash, 0x27d4_eb2f);
  return (1 << (bits >>> 27)) | (1 << ((bits >>> 22) & 31));
}

/** An empty filter for `keyCount` keys: a power of two words, shared between threads. */
export function createFilter(keyCount: number): Uint32Array {
  const length = 2 ** Math.ceil(Math.log2(Math.max(1, keyCount)));
  return new Uint32Array(new SharedArrayBuffer(4 * length));
}

export function addToFilter(filter: Uint32Array, low: number, high: number): void {
  const hash = hashKey(low, high);
  filter[hash & (filter.length - 1)]! |= toBitMask(hash);
}

/** False means that the key was not added. */
export function mayContain(filter: Uint32Array, low: number, high: number): boolean {
  const hash = hashKey(low, high);
  const bits = toBitMask(hash);
  return (filter[hash & (filter.length - 1)]! & bits) === bits;
}

/**
 * Builds the filter of a delta whose sections are in memory.
 * @param memories indexed by a section's `memory`
 */
export function buildFilter(
  header: LayerHeader,
  sections: readonly PlacedSection[],
  memories: readonly ArrayBufferLike[],
): Uint32Array {
  const filter = createFilter(header.rowCount + header.deletedCount);
  const emptyLow = Number(header.emptyKey & 0xffff_ffffn);
  const emptyHigh = Number(header.emptyKey >> 32n);
  for (const { role, memory, address, bytes } of sections) {
    if (role === 'rows') continue;
    const words = new Uint32Array(memories[memory]!, address, bytes / 4);
    const stride = (role === 'deleted' ? DELETED_STRIDE : header.stride) / 4;
    for (let at = 0; at < words.length; at += stride) {
      const low = words[at]!;
      const high = words[at + 1]!;
      if (low === emptyLow && high === emptyHigh) continue;
      addToFilter(filter, low, high);
    }
  }
  return filter;
}

/**
 * Writes the chunk indices of keys that one of the filters may contain to `candidates`.
 * @returns their count
 */
export function findCandidates(
  filters: readonly Uint32Array[],
  { keys, chunkKeysAt, chunkLength }: LookupBatch,
  candidates: Uint32Array,
): number {
  const view = new DataView(keys.buffer, keys.byteOffset + chunkKeysAt, 8 * chunkLength);
  let found = 0;
  for (let i = 0; i < chunkLength; i++) {
    const hash = hashKey(view.getUint32(8 * i, true), view.getUint32(8 * i + 4, true));
    const bits = toBitMask(hash);
    for (let f = 0; f < filters.length; f++) {
      const filter = filters[f]!;
      if ((filter[hash & (filter.length - 1)]! & bits) !== bits) continue;
      candidates[found++] = i;
      break;
    }
  }
  return found;
}
