/**
 * Each key of a batch looked up once, however often the batch names it: groups of distinct keys in front of a lookup, and their
 * rows copied to every place afterwards.
 */
import { UniqueKeys } from '../core/unique-keys.ts';
import { OUTCOME_UNAVAILABLE, OUTCOME_UNSEEN } from './lookup-group.ts';
import type { KeyGroup, RowTarget } from './scatter.ts';

type Rows = Float32Array | Uint32Array;

const ONE_COLUMN = new Int32Array(1);

/** The distinct keys of one group, with rows and outcomes of their own. */
export class DistinctKeys implements KeyGroup, RowTarget {
  readonly keys: Uint32Array;
  readonly count: number;
  readonly rows: Rows;
  readonly outcomes: Uint8Array;
  /** Position in the group → distinct key. */
  readonly #index: Int32Array;

  /** @param elements of a row */
  constructor({ keys, count }: KeyGroup, target: RowTarget, elements: number) {
    this.keys = new Uint32Array(2 * count);
    this.#index = new Int32Array(count);
    const all = { keys, rowStart: 0, rowCount: count, rowKeys: 1 };
    this.count = new UniqueKeys(count).find(all, ONE_COLUMN, this.keys, this.#index);
    const length = this.count * elements;
    this.rows =
      target.rows instanceof Float32Array ? new Float32Array(length) : new Uint32Array(length);
    this.outcomes = new Uint8Array(this.count);
  }

  /** Copies row and outcome to every place of each key. @returns how many places are unseen and unavailable */
  expand(target: RowTarget, elements: number): { unseen: number; unavailable: number } {
    const index = this.#index;
    let unseen = 0;
    let unavailable = 0;
    for (let i = 0; i < index.length; i++) {
      const distinct = index[i]!;
      const from = distinct * elements;
      const to = i * elements;
      for (let e = 0; e < elements; e++) target.rows[to + e] = this.rows[from + e]!;
      const outcome = this.outcomes[distinct]!;
      target.outcomes[i] = outcome;
      if (outcome === OUTCOME_UNSEEN) unseen++;
      else if (outcome === OUTCOME_UNAVAILABLE) unavailable++;
    }
    return { unseen, unavailable };
  }
}
