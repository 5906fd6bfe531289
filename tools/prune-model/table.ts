/** An embedding table of a model: rows × dim float32 values, read in pieces, so that it need not fit in memory. */
import { toName } from '../../lib/core/names.ts';

export interface Table {
  /** Its name from here on: legal in paths, unique in the model. */
  readonly name: string;
  /** Its name in the model. */
  readonly source: string;
  readonly rows: number;
  readonly dim: number;
  /** Who still reads it in the pruned graph; empty when it is gone from there. */
  readonly keptFor: readonly string[];
  /** Its rows are not in the model: somebody else holds them. */
  readonly isExternal?: boolean;
  /** Fills `target` with the keys of the rows from `first` on; absent: row i has key i. */
  readKeys?(first: number, target: BigUint64Array): void;
  /** Fills `target` with the rows from `first` on; its length is a multiple of dim. */
  readRows(first: number, target: Float32Array): void;
}

/** The largest row that slots.json can say. */
export const DIM_MAX: number = 1 << 20;

/** Gives each tensor name a legal name; also unique where the file system ignores case. */
export class TableNames {
  readonly #taken = new Set<string>();

  claim(source: string): string {
    const wanted = toName(source);
    let name = wanted;
    for (let i = 2; this.#taken.has(name.toLowerCase()); i++) {
      const suffix = `_${i}`;
      name = `${wanted.slice(0, 128 - suffix.length)}${suffix}`;
    }
    this.#taken.add(name.toLowerCase());
    return name;
  }
}
