/**
 * Keys that a graph computes from ids before it looks rows up (offsets of fields, hash tricks, quotient and remainder): slots.json
 * says how, this evaluates it for a request. A row of keys is first the slots' own, then the computed ones.
 */

import { type KeyExpression, keyExpressionToJson } from '../lib/core/key-expression.ts';
import { type KeyFormula, KeyTransform } from '../lib/core/key-transform.ts';
import type { EmbeddingInput, SlotSpec } from '../lib/core/slots.ts';

/** The rows of a request, ready for lookup. */
export interface KeyedRows {
  readonly rowCount: number;
  /** rowCount × slots (and computed keys behind them), words (low, high). */
  readonly keys: Uint32Array;
  /** rowCount × dense features, scaled. */
  readonly dense: Float32Array;
}

/** An ids input: which slot each of its columns is. */
interface SlotColumns {
  readonly name: string;
  readonly slots: Int32Array;
}

export class ComputedKeys {
  readonly #slotNum: number;
  readonly #inputs: readonly SlotColumns[];
  readonly #formulas: KeyFormula[] = [];
  readonly #places = new Map<string, number>();
  readonly #positions = new Map<EmbeddingInput, readonly number[]>();
  readonly #transform: KeyTransform;
  /** Tables that take ids as they come. */
  readonly #plain = new Set<string>();

  constructor(spec: SlotSpec) {
    const slots = new Map(spec.features?.slots.map(({ name }, i) => [name, i]));
    this.#slotNum = slots.size;
    this.#inputs = (spec.ids ?? []).map(({ input, slots: names }) => ({
      name: input,
      slots: Int32Array.from(names, (name) => slots.get(name)!),
    }));
    const rowsOf = new Map(spec.tables.map(({ name, rows }) => [name, rows]));
    const hash = spec.features?.hash;
    const isRaw = hash?.scheme === 'raw' && hash.modulo === 0n;
    const computed = new Set(spec.embeddings.filter((e) => e.keys).map(({ table }) => table));
    for (const embedding of spec.embeddings) {
      if (isRaw && !computed.has(embedding.table)) this.#plain.add(embedding.table);
      const keys = keysOf(embedding, isRaw && computed.has(embedding.table))?.map((expression) =>
        this.#place({ expression, rows: rowsOf.get(embedding.table)! }),
      );
      const own = keys ?? embedding.slots.map((name) => slots.get(name)!);
      this.#positions.set(embedding, own);
    }
    const inputs = this.#inputs.map(({ name, slots: columns }) => ({
      name,
      // An id is a key of 64 bits, whatever type the graph had it in.
      dtype: 'int64' as const,
      columns: columns.length,
    }));
    this.#transform = new KeyTransform(inputs, spec.maps ?? [], this.#formulas);
  }

  /** Keys in a row: the slots' and the computed ones. */
  get keyNum(): number {
    return this.#slotNum + this.#formulas.length;
  }

  /** Whether the keys of a table are ids as the graph took them, which below zero count from its end. */
  wrapsIds(table: string): boolean {
    return this.#plain.has(table);
  }

  /** Where the keys of an embedding stand in a row. */
  positionsOf(embedding: EmbeddingInput): readonly number[] {
    return this.#positions.get(embedding)!;
  }

  /** The rows with the computed keys behind their own; the rows themselves when nothing is computed. */
  extend(rows: KeyedRows): KeyedRows {
    const computed = this.#transform.keyNum;
    if (computed === 0) return rows;
    const { rowCount, dense } = rows;
    const ids = this.#inputs.map(({ slots }) => this.#columns(rows, slots));
    const found = new Uint32Array(2 * rowCount * computed);
    this.#transform.run(ids, rowCount, found);
    const keys = new Uint32Array(2 * rowCount * this.keyNum);
    const own = 2 * this.#slotNum;
    const width = 2 * this.keyNum;
    for (let row = 0; row < rowCount; row++) {
      keys.set(rows.keys.subarray(row * own, (row + 1) * own), row * width);
      keys.set(found.subarray(2 * row * computed, 2 * (row + 1) * computed), row * width + own);
    }
    return { rowCount, dense, keys };
  }

  #columns({ keys, rowCount }: KeyedRows, slots: Int32Array): Uint32Array {
    const words = new Uint32Array(2 * rowCount * slots.length);
    let to = 0;
    for (let row = 0; row < rowCount; row++) {
      for (let column = 0; column < slots.length; column++) {
        const from = 2 * (row * this.#slotNum + slots[column]!);
        words[to++] = keys[from]!;
        words[to++] = keys[from + 1]!;
      }
    }
    return words;
  }

  /** The same formula is computed once, however many inputs take it. */
  #place(formula: KeyFormula): number {
    const text = `${formula.rows} ${JSON.stringify(keyExpressionToJson(formula.expression))}`;
    let place = this.#places.get(text);
    if (place === undefined) {
      place = this.#slotNum + this.#formulas.push(formula) - 1;
      this.#places.set(text, place);
    }
    return place;
  }
}

/** @param isComputed columns too are computed: another input of the same table has computed keys */
function keysOf(
  { keys, columns, ids }: EmbeddingInput,
  isComputed: boolean,
): readonly KeyExpression[] | undefined {
  if (keys !== undefined || !isComputed) return keys;
  return columns?.map((column) => ({ op: 'column', input: ids, column }));
}
