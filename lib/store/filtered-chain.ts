/**
 * A chain in memory whose deltas have filters: keys that none of them knows, most of them, are looked up in the base
 * alone; the others are looked up again in all of the chain.
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
  /** Numbers in the chunk of keys that a delta may know, and their lookup in all of the chain. */
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

  /** As of `LayerChain`. */
  lookupChunk(batch: LookupBatch): number {
    const candidates = findCandidates(this.#filters, batch, this.#candidates);
    const chain = candidates > batch.length / 2 ? this.#chain : this.#base;
    const hits = chain.lookupChunk(batch);
    if (hits < 0 || candidates === 0 || chain === this.#chain) return hits;
    const again = this.#lookAgain(batch, candidates);
    if (again < 0) return -1 - this.#candidates[-1 - again]!;
    return hits + this.#replace(batch, candidates);
  }

  /** Looks the candidates up in all of the chain, into arrays of its own. */
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
    again.length = candidates;
    return this.#chain.lookupChunk(again);
  }

  /** Replaces what the base answered for the candidates. @returns how many more are hits than were */
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
