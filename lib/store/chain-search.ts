/**
 * Looks keys up in the layer files of one shard, newest first: a row of a newer layer hides older
 * ones, and a deletion hides all of them.
 */
import type { LayerHeader } from '../core/layer-format.ts';
import { KeySearch, LayerSearch } from './layer-search.ts';

/**
 * Concatenated values: value i is bytes[ends[i − 1] … ends[i]), starting at 0 for the first. A key
 * without a row has an empty value.
 */
export interface FoundRows {
  readonly bytes: Uint8Array;
  /** Needed for fixed-size rows too, because a key without a row has no bytes. */
  readonly ends: Float64Array;
}

export class ChainSearch {
  readonly #layers: LayerSearch[] = [];

  /**
   * @param paths the base, then the deltas in order; at most 64. @throws CubeError naming the file
   */
  constructor(paths: readonly string[]) {
    try {
      for (const path of paths) this.#layers.push(new LayerSearch(path));
    } catch (error) {
      this.close();
      throw error;
    }
  }

  /** Base first. */
  get headers(): readonly LayerHeader[] {
    return this.#layers.map(({ header }) => header);
  }

  /** @param from the oldest layer to search; 0 includes the base */
  find(keys: Uint32Array, from = 0): KeySearch {
    const searched = new KeySearch(keys);
    for (let number = this.#layers.length - 1; number >= from; number--) {
      this.#layers[number]!.find(searched, number);
    }
    return searched;
  }

  /** The stored rows or values of all keys that `find` found. */
  read(searched: KeySearch): FoundRows {
    const { count, layers, lengths } = searched;
    const ends = new Float64Array(count);
    let end = 0;
    for (let i = 0; i < count; i++) {
      if (layers[i] !== 0) end += lengths[i]!;
      ends[i] = end;
    }
    const bytes = new Uint8Array(end);
    this.#layers.forEach((layer, number) => {
      layer.read(searched, number, (i, row) => bytes.set(row, ends[i]! - row.length));
    });
    return { bytes, ends };
  }

  close(): void {
    for (const layer of this.#layers) layer.close();
  }
}

export function getFoundRow({ bytes, ends }: FoundRows, i: number): Uint8Array {
  return bytes.subarray(i === 0 ? 0 : ends[i - 1], ends[i]);
}
