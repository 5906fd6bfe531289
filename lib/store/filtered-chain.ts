/**
 * A chain in memory whose deltas have filters: keys that none of them knows, most of them, are looked up in the base
 * alone; the others are looked up again in all of the chain.
 */
import { findCandidates } from './key-filter.ts';
import { type DefaultRows, LayerChain } from './layer-chain.ts';
import type { ResidentLayer } from './resident-layer.ts';

const CHUNK_KEYS_MAX = 1024;

export class FilteredChain {
  readonly chunkKeys: number;
  readonly #chain: LayerChain;
  readonly #base: LayerChain;
  readonly #filters: readonly Uint32Array[];
  readonly #candidates: Uint32Array;
  readonly #keys: Uint8Array;
  readonly #found: Uint8Array;
  #rows: Uint8Array = new Uint8Array(0);

  /** @param layers base first, all in memory, each delta with a filter */
  constructor(layers: readonly ResidentLayer[], thread: number, defaults: DefaultRows) {
    this.#chain = new LayerChain(layers, thread, defaults);
    this.#base = new LayerChain(layers.slice(0, 1), thread, defaults);
    this.chunkKeys = Math.min(this.#chain.chunkKeys, CHUNK_KEYS_MAX);
    this.#filters = layers.flatMap(({ filter }) => filter ?? []);
    this.#candidates = new Uint32Array(this.chunkKeys);
    this.#keys = new Uint8Array(8 * this.chunkKeys);
    this.#found = new Uint8Array(this.chunkKeys / 8);
  }

  /** As of `LayerChain`. @param rowBytes of a row as answered */
  lookupChunk(
    keys: Uint8Array,
    keysAt: number,
    count: number,
    rows: Uint8Array,
    rowsAt: number,
    found: Uint8Array,
    foundAt: number,
    asF32: boolean,
    rowBytes: number,
  ): number {
    const candidates = findCandidates(this.#filters, keys, keysAt, count, this.#candidates);
    const chain = candidates > count / 2 ? this.#chain : this.#base;
    const hits = chain.lookupChunk(keys, keysAt, count, rows, rowsAt, found, foundAt, asF32);
    if (hits < 0 || candidates === 0 || chain === this.#chain) return hits;
    const again = this.#lookAgain(candidates, keys, keysAt, asF32, rowBytes);
    if (again < 0) return -1 - this.#candidates[-1 - again]!;
    return hits + this.#replace(candidates, rows, rowsAt, found, foundAt, rowBytes);
  }

  /** Looks the candidates up in all of the chain, into arrays of its own. */
  #lookAgain(
    candidates: number,
    keys: Uint8Array,
    keysAt: number,
    asF32: boolean,
    rowBytes: number,
  ): number {
    if (this.#rows.length < candidates * rowBytes) {
      this.#rows = new Uint8Array(this.chunkKeys * rowBytes);
    }
    for (let c = 0; c < candidates; c++) {
      const from = keysAt + 8 * this.#candidates[c]!;
      for (let i = 0; i < 8; i++) this.#keys[8 * c + i] = keys[from + i]!;
    }
    return this.#chain.lookupChunk(this.#keys, 0, candidates, this.#rows, 0, this.#found, 0, asF32);
  }

  /** Replaces what the base answered for the candidates. @returns how many more are hits than were */
  #replace(
    candidates: number,
    rows: Uint8Array,
    rowsAt: number,
    found: Uint8Array,
    foundAt: number,
    rowBytes: number,
  ): number {
    let more = 0;
    for (let c = 0; c < candidates; c++) {
      const key = this.#candidates[c]!;
      const at = foundAt + (key >> 3);
      const bit = 1 << (key & 7);
      const isHit = (this.#found[c >> 3]! & (1 << (c & 7))) !== 0;
      if ((found[at]! & bit) !== 0) more--;
      if (isHit) more++;
      found[at] = isHit ? found[at]! | bit : found[at]! & ~bit;
      rows.set(this.#rows.subarray(c * rowBytes, (c + 1) * rowBytes), rowsAt + key * rowBytes);
    }
    return more;
  }
}
