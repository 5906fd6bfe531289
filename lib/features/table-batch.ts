/**
 * One table's part of a batch: the distinct keys of its rows and their outcomes. Reused for batch
 * after batch.
 */
import { type LookupGroup, OUTCOME_HIT } from '../core/lookup-group.ts';
import { type KeyRowRange, UniqueKeys } from '../core/unique-keys.ts';
import type { TableRows } from './gather-rows.ts';
import type { GraphPlan } from './graph-plan.ts';

type TablePlan = GraphPlan['tables'][number];

/**
 * Rows of keys in which a slot may have any number of them: `ends` says where the keys of each
 * (row, key column) end.
 */
export interface BagRows extends KeyRowRange {
  /** Empty when every slot has one key. */
  readonly ends: Uint32Array;
}

export class TableBatch {
  readonly #table: TablePlan;
  #keys = new Uint32Array(0);
  #outcomes = new Uint8Array(0);
  #distinct = new UniqueKeys(0);
  /** The table's keys of a batch with bags, bag by bag. */
  #values = new Uint32Array(0);

  constructor(table: TablePlan, rowsMax: number) {
    this.#table = table;
    this.#reserve(rowsMax * table.columns.length);
  }

  /**
   * Finds the distinct keys of the rows and writes the index. @returns the group whose lookup fills
   * the rows
   */
  prepareGroup(keyRows: BagRows, target: TableRows): LookupGroup {
    const { name, columns, wrapRows } = this.#table;
    const hasBags = keyRows.ends.length > 0;
    const count = hasBags
      ? this.#findInBags(keyRows, target)
      : this.#distinct.find(keyRows, columns, this.#keys, target.index);
    const keys = this.#keys;
    if (wrapRows > 0) wrapNegativeKeys(keys, count, wrapRows);
    return { table: name, keys, count, rows: target.rows, outcomes: this.#outcomes };
  }

  /**
   * Writes the outcome of every (row, column) after the lookup; a bag has the worst outcome of its
   * values.
   */
  expandOutcomes({ index, ends }: TableRows, rowCount: number, outcomes: Uint8Array): void {
    const distinct = this.#outcomes;
    const count = rowCount * this.#table.columns.length;
    if (ends.length === 0) {
      for (let i = 0; i < count; i++) outcomes[i] = distinct[index[i]!]!;
      return;
    }
    for (let bag = 0, value = 0; bag < count; bag++) {
      let worst = OUTCOME_HIT;
      for (; value < ends[bag]!; value++) worst = Math.max(worst, distinct[index[value]!]!);
      outcomes[bag] = worst;
    }
  }

  #findInBags({ keys, ends, rowCount, rowKeys }: BagRows, target: TableRows): number {
    const { columns } = this.#table;
    const valueNum = rowCount === 0 ? 0 : ends[rowCount * rowKeys - 1]!;
    this.#reserve(valueNum);
    if (this.#values.length < 2 * valueNum) this.#values = new Uint32Array(this.#keys.length);
    const values = this.#values;
    let to = 0;
    for (let row = 0, bag = 0; row < rowCount; row++) {
      for (let c = 0; c < columns.length; c++) {
        const position = row * rowKeys + columns[c]!;
        const from = 2 * (position === 0 ? 0 : ends[position - 1]!);
        const end = 2 * ends[position]!;
        for (let word = from; word < end; word++) values[to++] = keys[word]!;
        target.ends[bag++] = to / 2;
      }
    }
    const flat = { keys: values, rowStart: 0, rowCount: to / 2, rowKeys: 1 };
    return this.#distinct.find(flat, ONE_COLUMN, this.#keys, target.index);
  }

  #reserve(values: number): void {
    if (values <= this.#outcomes.length) return;
    const capacity = Math.max(values, 2 * this.#outcomes.length);
    this.#keys = new Uint32Array(2 * capacity);
    this.#outcomes = new Uint8Array(capacity);
    this.#distinct = new UniqueKeys(capacity);
  }
}

const ONE_COLUMN = Int32Array.of(0);

/**
 * Makes negative ids count from the end of a table of `rows` rows. Ids below -rows stay, and are in
 * no table.
 */
export function wrapNegativeKeys(keys: Uint32Array, count: number, rows: number): void {
  for (let word = 0; word < 2 * count; word += 2) {
    if (keys[word + 1]! < 0x8000_0000) continue;
    const key = (keys[word + 1]! | 0) * 2 ** 32 + keys[word]! + rows;
    if (key < 0) continue;
    keys[word] = key % 2 ** 32;
    keys[word + 1] = key / 2 ** 32;
  }
}
