/**
 * Whether a delta may say anything about a key: no for most keys, in a few nanoseconds. Two bits of a word for each key,
 * a word or two per key: about one in a hundred other keys is taken for one of them.
 */
import { DELETED_STRIDE, type LayerHeader } from '../core/layer-format.ts';
import type { LookupBatch } from './lookup-batch.ts';
import type { PlacedSection } from './section-placement.ts';

function hashOf(low: number, high: number): number {
  let hash = Math.imul(low ^ Math.imul(high, 0x85eb_ca6b), 0x9e37_79b1);
  hash = Math.imul(hash ^ (hash >>> 16), 0xc2b2_ae35);
  return hash ^ (hash >>> 13);
}

function bitsOf(hash: number): number {
  const bits = Math.imul(hash, 0x27d4_eb2f);
  return (1 << (bits >>> 27)) | (1 << ((bits >>> 22) & 31));
}

/** Words for so many keys: a power of two, shared between threads. */
export function newFilter(keyCount: number): Uint32Array {
  const length = 2 ** Math.ceil(Math.log2(Math.max(1, keyCount)));
  return new Uint32Array(new SharedArrayBuffer(4 * length));
}

export function addToFilter(filter: Uint32Array, low: number, high: number): void {
  const hash = hashOf(low, high);
  filter[hash & (filter.length - 1)]! |= bitsOf(hash);
}

/** False: the key was not added. */
export function mayHold(filter: Uint32Array, low: number, high: number): boolean {
  const hash = hashOf(low, high);
  const bits = bitsOf(hash);
  return (filter[hash & (filter.length - 1)]! & bits) === bits;
}

/**
 * The filter of a delta whose sections are in memory.
 * @param memories by the number of the section's memory
 */
export function filterOf(
  header: LayerHeader,
  sections: readonly PlacedSection[],
  memories: readonly ArrayBufferLike[],
): Uint32Array {
  const filter = newFilter(header.rowCount + header.deletedCount);
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

/** Numbers in a batch's chunk of the keys that one of the filters knows, to `candidates`. @returns how many */
export function findCandidates(
  filters: readonly Uint32Array[],
  { keys, chunkKeysAt, length }: LookupBatch,
  candidates: Uint32Array,
): number {
  const view = new DataView(keys.buffer, keys.byteOffset + chunkKeysAt, 8 * length);
  let found = 0;
  for (let i = 0; i < length; i++) {
    const hash = hashOf(view.getUint32(8 * i, true), view.getUint32(8 * i + 4, true));
    const bits = bitsOf(hash);
    for (let f = 0; f < filters.length; f++) {
      const filter = filters[f]!;
      if ((filter[hash & (filter.length - 1)]! & bits) !== bits) continue;
      candidates[found++] = i;
      break;
    }
  }
  return found;
}
