/** Embedding tables: rows × dim float32 values, read in pieces. */
import { toValidName } from '../../../lib/core/names.ts';

export interface Table {
  /** Name in the output: valid in paths, unique in the model. */
  readonly name: string;
  /** Name in the model. */
  readonly source: string;
  readonly rows: number;
  readonly dim: number;
  /** Nodes of the pruned graph that still read the table; empty when it was removed. */
  readonly remainingReaders: readonly string[];
  /** The rows are not in the model: a parameter server holds them. */
  readonly isExternal?: boolean;
  /** Fills `target` with the keys of the rows from `first` on. Absent when row i has key i. */
  readKeys?(first: number, target: BigUint64Array): void;
  /** Fills `target` with the rows from `first` on; its length is a multiple of dim. */
  readRows(first: number, target: Float32Array): void;
}

/** Maximum elements of a row in slots.json. */
export const DIM_MAX: number = 1 << 20;

/** Turns tensor names into valid file names, unique also on file systems that ignore case. */
export class TableNames {
  readonly #taken = new Set<string>();

  claim(source: string): string {
    const base = toValidName(source);
    let name = base;
    for (let i = 2; this.#taken.has(name.toLowerCase()); i++) {
      const suffix = `_${i}`;
      name = `${base.slice(0, 128 - suffix.length)}${suffix}`;
    }
    this.#taken.add(name.toLowerCase());
    return name;
  }
}

export function countElements(dims: readonly number[]): number {
  return dims.reduce((product, dim) => product * dim, 1);
}
