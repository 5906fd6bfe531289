/** Where a lookup writes what it found for one group: stored rows of any dtype become rows of f32, each with its outcome. */
import {
  defaultRowOf,
  type LookupGroup,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../lib/client/lookup-group.ts';
import type { TableRef } from '../../lib/core/manifest.ts';
import { RowDecoder, type RowDtype, rowBytesOf } from '../../lib/core/row-codec.ts';

export class RowOutput {
  /** Of a row as stored. */
  readonly rowWords: number;
  /** Where a stored row is put before `hit`: words little-endian, as every machine that this runs on has them. */
  readonly words: Uint32Array;
  unseen = 0;
  unavailable = 0;
  readonly #rows: Float32Array;
  readonly #outcomes: Uint8Array;
  readonly #dim: number;
  readonly #absent: Float32Array;
  /** Rows of f32 are put where they belong; others pass through a row of scratch. */
  readonly #decoder: RowDecoder | undefined;
  readonly #view: DataView;
  readonly #bytes: Uint8Array;

  constructor({ rows, outcomes }: LookupGroup, table: TableRef) {
    const dtype = table.dtype as RowDtype;
    this.rowWords = rowBytesOf(dtype, table.dim) / 4;
    this.#rows = rows;
    this.#outcomes = outcomes;
    this.#dim = table.dim;
    this.#absent = defaultRowOf(table);
    const inPlace = dtype === 'f32';
    this.#decoder = inPlace ? undefined : new RowDecoder(dtype, table.dim, rows);
    this.words = inPlace
      ? new Uint32Array(rows.buffer, rows.byteOffset, rows.length)
      : new Uint32Array(this.rowWords);
    const { buffer, byteOffset, byteLength } = this.words;
    this.#view = new DataView(buffer, byteOffset, byteLength);
    this.#bytes = new Uint8Array(buffer, byteOffset, byteLength);
  }

  /** Where in `words` the stored row of key i goes. */
  placeOf(i: number): number {
    return this.#decoder === undefined ? i * this.#dim : 0;
  }

  /** Key i has this row, as stored. @returns false when it is no row of the table */
  put(i: number, row: Uint8Array): boolean {
    if (row.length !== 4 * this.rowWords) return false;
    this.#bytes.set(row, 4 * this.placeOf(i));
    this.hit(i);
    return true;
  }

  /** Key i has the row that was put in `words`. */
  hit(i: number): void {
    this.#decoder?.decode(this.#view, 0, i);
    this.#outcomes[i] = OUTCOME_HIT;
  }

  setUnseen(i: number): void {
    this.#rows.set(this.#absent, i * this.#dim);
    this.#outcomes[i] = OUTCOME_UNSEEN;
    this.unseen++;
  }

  setUnavailable(i: number): void {
    this.#rows.set(this.#absent, i * this.#dim);
    this.#outcomes[i] = OUTCOME_UNAVAILABLE;
    this.unavailable++;
  }
}

/** Every key of the groups unavailable: there was no time to ask. @returns how many */
export function setAllUnavailable(
  groups: readonly LookupGroup[],
  tables: readonly TableRef[],
): number {
  let unavailable = 0;
  groups.forEach((group, g) => {
    const output = new RowOutput(group, tables[g]!);
    for (let i = 0; i < group.count; i++) output.setUnavailable(i);
    unavailable += group.count;
  });
  return unavailable;
}
