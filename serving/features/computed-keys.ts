/**
 * Keys that a graph computes from ids before it looks rows up (offsets of fields, hash tricks, quotient and remainder): slots.json
 * says how, this evaluates it for a request. A row of keys is first the slots' own, then the computed ones.
 */

import { CubeError } from '../../lib/core/errors.ts';
import type { KeyedRows } from '../../lib/core/features.ts';
import { type KeyExpression, keyExpressionToJson } from '../../lib/core/key-expression.ts';
import { type KeyFormula, KeyTransform } from '../../lib/core/key-transform.ts';
import type { EmbeddingInput, SlotSpec } from '../../lib/core/slots.ts';
import { dropPadding, type Paddings, paddingsOf } from './bag-padding.ts';

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
  readonly #paddings: Paddings;
  /** Tables that take ids as they come. */
  readonly #plain = new Set<string>();

  constructor(spec: SlotSpec) {
    const slots = new Map(spec.features?.slots.map(({ name }, i) => [name, i]));
    this.#slotNum = slots.size;
    this.#inputs = (spec.ids ?? []).map(({ input, slots: names }) => ({
      name: input,
      slots: Int32Array.from(names, (name) => slots.get(name)!),
    }));
    this.#paddings = paddingsOf(spec);
    const rowsOf = new Map(spec.tables.map(({ name, rows }) => [name, rows]));
    const hash = spec.features?.hash;
    const isRaw = hash?.scheme === 'raw' && hash.modulo === 0n;
    const computed = new Set(spec.embeddings.filter((e) => e.keys).map(({ table }) => table));
    for (const embedding of spec.embeddings) {
      if (isRaw && !computed.has(embedding.table)) this.#plain.add(embedding.table);
      const formulas = keysOf(embedding, isRaw && computed.has(embedding.table));
      if (formulas !== undefined) refuseBags(embedding, spec);
      const keys = formulas?.map((expression) =>
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

  /** The rows without padding, and with the computed keys behind their own; the rows themselves when there is neither. */
  extend(given: KeyedRows): KeyedRows {
    const rows = dropPadding(given, this.#slotNum, this.#paddings);
    const computed = this.#transform.keyNum;
    if (computed === 0) return rows;
    const { rowCount, dense, ends } = rows;
    const ids = this.#inputs.map(({ slots }) => this.#columns(rows, slots));
    const found = new Uint32Array(2 * rowCount * computed);
    this.#transform.run(ids, rowCount, found);
    const keys = new Uint32Array(rows.keys.length + found.length);
    const own = this.#slotNum;
    for (let row = 0; row < rowCount; row++) {
      const from = 2 * bagStart(ends, row * own);
      const to = from + 2 * row * computed;
      const end = 2 * bagStart(ends, (row + 1) * own);
      keys.set(rows.keys.subarray(from, end), to);
      keys.set(found.subarray(2 * row * computed, 2 * (row + 1) * computed), to + end - from);
    }
    return {
      rowCount,
      dense,
      keys,
      ...(ends === undefined ? {} : { ends: this.#extendEnds(ends) }),
    };
  }

  #extendEnds(ends: Uint32Array): Uint32Array {
    const computed = this.#transform.keyNum;
    const rowCount = ends.length / this.#slotNum;
    const all = new Uint32Array(rowCount * this.keyNum);
    let to = 0;
    for (let row = 0; row < rowCount; row++) {
      for (let slot = 0; slot < this.#slotNum; slot++) {
        all[to++] = ends[row * this.#slotNum + slot]! + row * computed;
      }
      for (let i = 0; i < computed; i++, to++) all[to] = all[to - 1]! + 1;
    }
    return all;
  }

  #columns({ keys, rowCount, ends }: KeyedRows, slots: Int32Array): Uint32Array {
    const words = new Uint32Array(2 * rowCount * slots.length);
    let to = 0;
    for (let row = 0; row < rowCount; row++) {
      for (let column = 0; column < slots.length; column++) {
        const from = 2 * bagStart(ends, row * this.#slotNum + slots[column]!);
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

/** A key that is computed from ids has one of each: a formula over bags would have to say over which pairs of their values. */
function refuseBags({ input, slots, bags }: EmbeddingInput, { features }: SlotSpec): void {
  const pooled = features?.slots.find((slot) => slot.pooling && slots.includes(slot.name));
  if (pooled === undefined && bags === undefined) return;
  throw new CubeError(
    'UNSUPPORTED',
    `input ${input}: its keys are computed from ids, which cannot be bags (slot ${pooled?.name ?? slots.join(', ')}); ` +
      'give the model the computed ids',
  );
}

/** Where the keys of bag i begin. */
function bagStart(ends: Uint32Array | undefined, i: number): number {
  if (ends === undefined) return i;
  return i === 0 ? 0 : ends[i - 1]!;
}

/** @param isComputed columns too are computed: another input of the same table has computed keys */
function keysOf(
  { keys, columns, ids }: EmbeddingInput,
  isComputed: boolean,
): readonly KeyExpression[] | undefined {
  if (keys !== undefined || !isComputed) return keys;
  return columns?.map((column) => ({ op: 'column', input: ids, column }));
}
