/**
 * Writes the results of a lookup into one group: stored rows of any dtype become rows of f32, each
 * with its outcome.
 */
import {
  getDefaultRow,
  type LookupGroup,
  type LookupSummary,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../lib/core/lookup-group.ts';
import type { Manifest, TableRef } from '../../lib/core/manifest.ts';
import { computeRowBytes, RowDecoder, type RowDtype } from '../../lib/core/row-codec.ts';

export class RowOutput {
  /** Length of a stored row. */
  readonly rowWords: number;
  /**
   * A stored row is written here before `setHit`: little-endian words, as on every machine that
   * this runs on.
   */
  readonly words: Uint32Array;
  unseen = 0;
  unavailable = 0;
  readonly #rows: Float32Array;
  readonly #outcomes: Uint8Array;
  readonly #dim: number;
  readonly #defaultRow: Float32Array;
  /**
   * Rows of f32 are written where they belong; rows of other dtypes pass through `words`, which has
   * room for one.
   */
  readonly #decoder: RowDecoder | undefined;
  readonly #view: DataView;
  readonly #bytes: Uint8Array;

  constructor({ rows, outcomes }: LookupGroup, table: TableRef) {
    const dtype = table.dtype as RowDtype;
    this.rowWords = computeRowBytes(dtype, table.dim) / 4;
    this.#rows = rows;
    this.#outcomes = outcomes;
    this.#dim = table.dim;
    this.#defaultRow = getDefaultRow(table);
    const inPlace = dtype === 'f32';
    this.#decoder = inPlace ? undefined : new RowDecoder(dtype, table.dim, rows);
    this.words = inPlace
      ? new Uint32Array(rows.buffer, rows.byteOffset, rows.length)
      : new Uint32Array(this.rowWords);
    const { buffer, byteOffset, byteLength } = this.words;
    this.#view = new DataView(buffer, byteOffset, byteLength);
    this.#bytes = new Uint8Array(buffer, byteOffset, byteLength);
  }

  /** The index in `words` from which on the stored row of key i is written. */
  getWordOffset(i: number): number {
    return this.#decoder === undefined ? i * this.#dim : 0;
  }

  /** Key i has this stored row. @returns false when its length is not that of the table's rows */
  setRow(i: number, row: Uint8Array): boolean {
    if (row.length !== 4 * this.rowWords) return false;
    this.#bytes.set(row, 4 * this.getWordOffset(i));
    this.setHit(i);
    return true;
  }

  /** Key i has the row that was written to `words`. */
  setHit(i: number): void {
    this.#decoder?.decode(this.#view, 0, i);
    this.#outcomes[i] = OUTCOME_HIT;
  }

  setUnseen(i: number): void {
    this.#rows.set(this.#defaultRow, i * this.#dim);
    this.#outcomes[i] = OUTCOME_UNSEEN;
    this.unseen++;
  }

  setUnavailable(i: number): void {
    this.#rows.set(this.#defaultRow, i * this.#dim);
    this.#outcomes[i] = OUTCOME_UNAVAILABLE;
    this.unavailable++;
  }
}

/**
 * Answers a lookup whose deadline has passed: every key is unavailable. @param tables those of the
 * groups, in order
 */
export function answerExpired(
  { version }: Manifest,
  groups: readonly LookupGroup[],
  tables: readonly TableRef[],
): LookupSummary {
  let unavailable = 0;
  groups.forEach((group, g) => {
    const output = new RowOutput(group, tables[g]!);
    for (let i = 0; i < group.count; i++) output.setUnavailable(i);
    unavailable += group.count;
  });
  const reason = 'the deadline passed before the lookup began';
  return {
    version,
    unseen: 0,
    unavailable,
    ...(unavailable > 0 && { reason, deadlineExceeded: true }),
  };
}
