/**
 * Finds the distinct keys of a batch. Embedding features follow a power law, so a batch repeats the
 * same few keys; each is looked up once. Open addressing on typed arrays; an epoch replaces
 * clearing.
 *
 * Invariants: unique keys are in order of first appearance, so that equal batches give equal
 * lookups; `unique[index[i]]` is the key at position i.
 */

/** A range of rows of a larger batch of keys. */
export interface KeyRowRange {
  /** Words (low, high), row-major. */
  readonly keys: Uint32Array;
  readonly rowStart: number;
  readonly rowCount: number;
  /** Number of keys per row of `keys`. */
  readonly rowKeys: number;
}

/** Finds the distinct keys among up to `capacity` keys. One instance is reused for every batch. */
export class UniqueKeys {
  readonly #entries: Int32Array;
  readonly #epochs: Int32Array;
  readonly #mask: number;
  #epoch = 0;

  constructor(capacity: number) {
    let size = 16;
    while (size < 2 * capacity) size *= 2;
    this.#entries = new Int32Array(size);
    this.#epochs = new Int32Array(size);
    this.#mask = size - 1;
  }

  /**
   * Processes `columns` of each row.
   * @param unique out: words of the distinct keys
   * @param index out: rowCount × columns, position in `unique`
   * @returns the number of distinct keys
   */
  find(rows: KeyRowRange, columns: Int32Array, unique: Uint32Array, index: Int32Array): number {
    const { keys, rowStart, rowCount, rowKeys } = rows;
    const entries = this.#entries;
    const epochs = this.#epochs;
    const mask = this.#mask;
    const epoch = this.#nextEpoch();
    const columnCount = columns.length;
    let count = 0;
    let position = 0;
    for (let row = rowStart; row < rowStart + rowCount; row++) {
      for (let c = 0; c < columnCount; c++) {
        const word = 2 * (row * rowKeys + columns[c]!);
        const low = keys[word]!;
        const high = keys[word + 1]!;
        let slot = computeHomeSlot(low, high) & mask;
        while (epochs[slot] === epoch) {
          const entry = 2 * entries[slot]!;
          if (unique[entry] === low && unique[entry + 1] === high) break;
          slot = (slot + 1) & mask;
        }
        if (epochs[slot] !== epoch) {
          epochs[slot] = epoch;
          entries[slot] = count;
          unique[2 * count] = low;
          unique[2 * count + 1] = high;
          count++;
        }
        index[position++] = entries[slot]!;
      }
    }
    return count;
  }

  #nextEpoch(): number {
    this.#epoch = (this.#epoch + 1) | 0;
    if (this.#epoch <= 0) {
      this.#epochs.fill(0);
      this.#epoch = 1;
    }
    return this.#epoch;
  }
}

function computeHomeSlot(low: number, high: number): number {
  let mix = Math.imul(low ^ Math.imul(high, 0x85ebca6b), 0x9e3779b1);
  mix ^= mix >>> 15;
  mix = Math.imul(mix, 0x2c1b3c6d);
  return mix ^ (mix >>> 13);
}
