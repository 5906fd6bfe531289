/**
 * Deduplication: replaces a group by its distinct keys before a lookup, and afterwards copies their
 * rows to every occurrence.
 */

import { OUTCOME_UNAVAILABLE, OUTCOME_UNSEEN } from '../core/lookup-group.ts';
import { UniqueKeys } from '../core/unique-keys.ts';
import type { KeyGroup, RowOutput } from './scatter-gather.ts';

type Rows = Float32Array | Uint32Array;

const ONE_COLUMN = new Int32Array(1);

/** The distinct keys of one group, with their own rows and outcomes. */
export class DistinctKeys implements KeyGroup, RowOutput {
  readonly keys: Uint32Array;
  readonly count: number;
  readonly rows: Rows;
  readonly outcomes: Uint8Array;
  /** Position in the group → distinct key. */
  readonly #index: Int32Array;

  /** @param elements number of 4-byte elements per row */
  constructor({ keys, count }: KeyGroup, output: RowOutput, elements: number) {
    this.keys = new Uint32Array(2 * count);
    this.#index = new Int32Array(count);
    const all = { keys, rowStart: 0, rowCount: count, rowKeys: 1 };
    this.count = new UniqueKeys(count).find(all, ONE_COLUMN, this.keys, this.#index);
    const length = this.count * elements;
    this.rows =
      output.rows instanceof Float32Array ? new Float32Array(length) : new Uint32Array(length);
    this.outcomes = new Uint8Array(this.count);
  }

  /**
   * Copies row and outcome to every occurrence of each key, and counts the unseen and unavailable
   * ones.
   */
  expand(output: RowOutput, elements: number): { unseen: number; unavailable: number } {
    const index = this.#index;
    let unseen = 0;
    let unavailable = 0;
    for (let i = 0; i < index.length; i++) {
      const distinct = index[i]!;
      const from = distinct * elements;
      const to = i * elements;
      for (let e = 0; e < elements; e++) output.rows[to + e] = this.rows[from + e]!;
      const outcome = this.outcomes[distinct]!;
      output.outcomes[i] = outcome;
      if (outcome === OUTCOME_UNSEEN) unseen++;
      else if (outcome === OUTCOME_UNAVAILABLE) unavailable++;
    }
    return { unseen, unavailable };
  }
}
