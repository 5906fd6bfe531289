/**
 * Keys that a graph computes from ids before its lookups (offsets of fields, hash tricks, quotient
 * and remainder). slots.json has the expressions, and this class evaluates them for a request. A
 * row of keys has the keys of the slots, then the computed keys.
 */
import { CubeError } from '../core/errors.ts';
import type { KeyedRows } from '../core/feature-rows.ts';
import { type KeyExpression, keyExpressionToJson } from '../core/key-expression.ts';
import { type KeyComputation, KeyTransform } from '../core/key-transform.ts';
import { type EmbeddingInput, getModulo, type SlotSpec } from '../core/slots.ts';
import { type PaddingKeys, readPaddingKeys, removePadding } from './bag-padding.ts';

/** A graph input of ids, and the slot of each of its columns. */
interface SlotColumns {
  readonly name: string;
  readonly slots: Int32Array;
}

export class ComputedKeys {
  readonly #slotNum: number;
  readonly #inputs: readonly SlotColumns[];
  readonly #computations: KeyComputation[] = [];
  readonly #positionByComputation = new Map<string, number>();
  readonly #positions = new Map<EmbeddingInput, readonly number[]>();
  readonly #transform: KeyTransform;
  readonly #paddings: PaddingKeys;
  /** Tables whose keys are the ids themselves. */
  readonly #idTables = new Set<string>();

  constructor(spec: SlotSpec) {
    const slots = new Map(spec.features?.slots.map(({ name }, i) => [name, i]));
    this.#slotNum = slots.size;
    this.#inputs = (spec.ids ?? []).map(({ input, slots: names }) => ({
      name: input,
      slots: Int32Array.from(names, (name) => requirePosition(slots, name)),
    }));
    this.#paddings = readPaddingKeys(spec);
    const tableRows = new Map(spec.tables.map(({ name, rows }) => [name, rows]));
    const computed = new Set(spec.embeddings.filter((e) => e.keys).map(({ table }) => table));
    for (const embedding of spec.embeddings) {
      const isRaw = takesIds(embedding, spec);
      if (isRaw && !computed.has(embedding.table)) this.#idTables.add(embedding.table);
      const expressions = selectExpressions(embedding, isRaw && computed.has(embedding.table));
      if (expressions !== undefined) rejectBags(embedding, spec);
      const rows = tableRows.get(embedding.table) ?? 0;
      const positions =
        expressions?.map((expression) => this.#addComputation({ expression, rows })) ??
        embedding.slots.map((name) => requirePosition(slots, name));
      this.#positions.set(embedding, positions);
    }
    const inputs = this.#inputs.map(({ name, slots: columns }) => ({
      name,
      // An id is a 64-bit key, whatever its type in the graph.
      dtype: 'int64' as const,
      columns: columns.length,
    }));
    this.#transform = new KeyTransform(inputs, spec.maps ?? [], this.#computations);
  }

  /** Keys in a row: those of the slots and the computed ones. */
  get keyNum(): number {
    return this.#slotNum + this.#computations.length;
  }

  /** Whether the keys of a table are ids, of which negative ones count from its end. */
  wrapsNegativeIds(table: string): boolean {
    return this.#idTables.has(table);
  }

  /** The positions of an embedding's keys in a row. */
  getPositions(embedding: EmbeddingInput): readonly number[] {
    return this.#positions.get(embedding) ?? [];
  }

  /**
   * Removes padding and appends the computed keys to each row. @returns the rows themselves without
   * either
   */
  addComputedKeys(given: KeyedRows): KeyedRows {
    const rows = removePadding(given, this.#slotNum, this.#paddings);
    const computed = this.#transform.keyNum;
    if (computed === 0) return rows;
    const { rowCount, dense, ends } = rows;
    const ids = this.#inputs.map(({ slots }) => this.#copyColumns(rows, slots));
    const added = new Uint32Array(2 * rowCount * computed);
    this.#transform.run(ids, rowCount, added);
    const keys = new Uint32Array(rows.keys.length + added.length);
    const slotNum = this.#slotNum;
    for (let row = 0; row < rowCount; row++) {
      const from = 2 * findBagStart(ends, row * slotNum);
      const to = from + 2 * row * computed;
      const end = 2 * findBagStart(ends, (row + 1) * slotNum);
      keys.set(rows.keys.subarray(from, end), to);
      keys.set(added.subarray(2 * row * computed, 2 * (row + 1) * computed), to + end - from);
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

  #copyColumns({ keys, rowCount, ends }: KeyedRows, slots: Int32Array): Uint32Array {
    const words = new Uint32Array(2 * rowCount * slots.length);
    let to = 0;
    for (let row = 0; row < rowCount; row++) {
      for (let column = 0; column < slots.length; column++) {
        const from = 2 * findBagStart(ends, row * this.#slotNum + slots[column]!);
        words[to++] = keys[from]!;
        words[to++] = keys[from + 1]!;
      }
    }
    return words;
  }

  /** @returns the position of the computed key; equal computations share one */
  #addComputation(computation: KeyComputation): number {
    const json = keyExpressionToJson(computation.expression);
    const text = `${computation.rows} ${JSON.stringify(json)}`;
    let position = this.#positionByComputation.get(text);
    if (position === undefined) {
      position = this.#slotNum + this.#computations.push(computation) - 1;
      this.#positionByComputation.set(text, position);
    }
    return position;
  }
}

/**
 * A computed key takes one value of each slot: for bags, an expression would have to name the pairs
 * of values.
 */
function rejectBags({ input, slots, bags }: EmbeddingInput, { features }: SlotSpec): void {
  const pooled = features?.slots.find((slot) => slot.pooling && slots.includes(slot.name));
  if (pooled === undefined && bags === undefined) return;
  throw new CubeError(
    'UNSUPPORTED',
    `input ${input}: its keys are computed from ids, which must be single values, but slot ` +
      `${pooled?.name ?? slots.join(', ')} has bags; ` +
      `export the model with the computed ids as input`,
  );
}

/** Whether keys of an embedding's slots are ids as they are, without a hash or modulo. */
function takesIds({ slots: names }: EmbeddingInput, { features }: SlotSpec): boolean {
  if (features?.hash.scheme !== 'raw') return false;
  const { hash, slots } = features;
  if (names.length === 0) return hash.modulo === 0n;
  return slots.some((slot) => names.includes(slot.name) && getModulo(hash, slot) === 0n);
}

/** Where the keys of bag i begin. */
function findBagStart(ends: Uint32Array | undefined, i: number): number {
  if (ends === undefined) return i;
  return i === 0 ? 0 : ends[i - 1]!;
}

/**
 * The expressions of an embedding's keys; undefined when its keys are those of its slots.
 * @param isComputed plain columns become expressions too, because another input of the table has
 *   computed keys
 */
function selectExpressions(
  { keys, columns, ids }: EmbeddingInput,
  isComputed: boolean,
): readonly KeyExpression[] | undefined {
  if (keys !== undefined || !isComputed) return keys;
  return columns?.map((column) => ({ op: 'column', input: ids, column }));
}

/** The position of a slot; the slot spec was checked to name only slots that it has. */
function requirePosition(positions: ReadonlyMap<string, number>, slot: string): number {
  const position = positions.get(slot);
  if (position !== undefined) return position;
  throw new CubeError(
    'INTERNAL',
    `slots.json names the slot ${slot}, which its features do not have`,
  );
}
