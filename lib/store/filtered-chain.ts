/**
 * A chain in memory whose deltas have key filters. Keys that no filter contains, which are most of
 * them, are looked up in the base only; the others are looked up again in the whole chain.
 */
import { findCandidates } from './key-filter.ts';
import { type DefaultRows, LayerChain } from './layer-chain.ts';
import { LookupBatch } from './lookup-batch.ts';
import type { ResidentLayer } from './resident-layer.ts';

const CHUNK_KEYS_MAX = 1024;

export class FilteredChain {
  readonly chunkKeys: number;
  readonly #chain: LayerChain;
  readonly #base: LayerChain;
  readonly #filters: readonly Uint32Array[];
  /** Chunk indices of keys that a delta may contain, and the buffers of their second lookup. */
  readonly #candidates: Uint32Array;
  readonly #again: LookupBatch;

  /** @param layers base first, all in memory, each delta with a filter */
  constructor(layers: readonly ResidentLayer[], thread: number, defaults: DefaultRows) {
    this.#chain = new LayerChain(layers, thread, defaults);
    this.#base = new LayerChain(layers.slice(0, 1), thread, defaults);
    this.chunkKeys = Math.min(this.#chain.chunkKeys, CHUNK_KEYS_MAX);
    this.#filters = layers.flatMap(({ filter }) => filter ?? []);
    this.#candidates = new Uint32Array(this.chunkKeys);
    this.#again = new LookupBatch({
      keys: new Uint8Array(8 * this.chunkKeys),
      found: new Uint8Array(this.chunkKeys / 8),
    });
  }

  /** See `LayerChain.lookupChunk`. */
  lookupChunk(batch: LookupBatch): number {
    const candidates = findCandidates(this.#filters, batch, this.#candidates);
    const chain = candidates > batch.chunkLength / 2 ? this.#chain : this.#base;
    const hits = chain.lookupChunk(batch);
    if (hits < 0 || candidates === 0 || chain === this.#chain) return hits;
    const again = this.#lookAgain(batch, candidates);
    if (again < 0) return -1 - this.#candidates[-1 - again]!;
    return hits + this.#replace(batch, candidates);
  }

  /** Looks the candidates up in the whole chain, into separate arrays. */
  #lookAgain({ keys, chunkKeysAt, asF32, rowBytes }: LookupBatch, candidates: number): number {
    const again = this.#again;
    if (again.rows.length < candidates * rowBytes) {
      again.rows = new Uint8Array(this.chunkKeys * rowBytes);
    }
    for (let c = 0; c < candidates; c++) {
      const from = chunkKeysAt + 8 * this.#candidates[c]!;
      for (let i = 0; i < 8; i++) again.keys[8 * c + i] = keys[from + i]!;
    }
    again.asF32 = asF32;
    again.rowBytes = rowBytes;
    again.chunkLength = candidates;
    return this.#chain.lookupChunk(again);
  }

  /** Replaces the base's results for the candidates. @returns the change in the number of hits */
  #replace(
    { rows, chunkRowsAt, found, chunkFoundAt, rowBytes }: LookupBatch,
    candidates: number,
  ): number {
    const again = this.#again;
    let more = 0;
    for (let c = 0; c < candidates; c++) {
      const key = this.#candidates[c]!;
      const at = chunkFoundAt + (key >> 3);
      const bit = 1 << (key & 7);
      const isHit = (again.found[c >> 3]! & (1 << (c & 7))) !== 0;
      if ((found[at]! & bit) !== 0) more--;
      if (isHit) more++;
      found[at] = isHit ? found[at]! | bit : found[at]! & ~bit;
      const row = again.rows.subarray(c * rowBytes, (c + 1) * rowBytes);
      rows.set(row, chunkRowsAt + key * rowBytes);
    }
    return more;
  }
}
