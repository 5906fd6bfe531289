/**
 * Samples ids for a verification: over the whole range that the lookups accept, including the first
 * and last row of each table, also when keys are computed from the ids.
 */
import type { KeyExpression, KeyMap } from '../../../lib/core/key-expression.ts';
import {
  collectColumns,
  type IdsData,
  type IdsTensorInput,
  type KeyComputation,
  KeyTransform,
  NO_KEY,
} from '../../../lib/core/key-transform.ts';
import { notVerifiedError } from './refusals.ts';
import type { RandomNumbers } from './verification.ts';

/** Candidate ids for each column. */
const TRIED_IDS = 384;
const REDRAWS_MAX = 32;
/** Maximum candidates of all columns together. */
const VALUES_MAX = 8_000_000;

/** Ids that are valid for a column. */
interface IdsPool {
  /** Ids that select the first or the last row of a table. */
  readonly edges: readonly number[];
  readonly all: readonly number[];
}

export class IdsSampler {
  readonly #inputs: readonly IdsTensorInput[];
  readonly #formulas: readonly KeyComputation[];
  readonly #transform: KeyTransform;
  readonly #random: RandomNumbers;
  readonly #pools: ReadonlyMap<string, IdsPool>;
  #drawn = 0;

  constructor(
    inputs: readonly IdsTensorInput[],
    maps: readonly KeyMap[],
    formulas: readonly KeyComputation[],
    random: RandomNumbers,
  ) {
    this.#inputs = inputs;
    this.#formulas = formulas;
    this.#random = random;
    this.#transform = new KeyTransform(inputs, maps, formulas);
    this.#pools = this.#findPools();
  }

  /** Draws rows of ids for every input. In each row, every key is in its table. */
  draw(rowCount: number): Float64Array[] {
    const ids = this.#inputs.map(({ columns }) => new Float64Array(rowCount * columns));
    const pending = new Set(Array.from({ length: rowCount }, (_, row) => row));
    for (let attempt = 0; attempt < REDRAWS_MAX && pending.size > 0; attempt++) {
      for (const row of pending) this.#fillRow(ids, row, attempt === 0 ? this.#drawn + row : -1);
      const keys = this.#computeKeys(ids, rowCount);
      for (const row of [...pending]) if (this.#isValid(keys, row)) pending.delete(row);
    }
    if (pending.size > 0) {
      const rows = Array.from({ length: rowCount }, (_, row) => row);
      const valid = rows.find((row) => !pending.has(row));
      if (valid === undefined)
        throw notVerifiedError('no ids were found that every lookup accepts');
      for (const row of pending) {
        this.#inputs.forEach(({ columns }, i) => {
          const from = valid * columns;
          ids[i]!.copyWithin(row * columns, from, from + columns);
        });
      }
    }
    this.#drawn += rowCount;
    return ids;
  }

  #fillRow(ids: readonly Float64Array[], row: number, turn: number): void {
    this.#inputs.forEach(({ name, columns }, i) => {
      for (let column = 0; column < columns; column++) {
        const pool = this.#pools.get(`${name}\n${column}`);
        if (pool === undefined) continue;
        const { edges, all } = pool;
        const isEdge = turn >= 0 && turn < edges.length;
        const at = Math.floor(this.#random.next() * all.length);
        ids[i]![row * columns + column] = isEdge ? edges[turn]! : all[at]!;
      }
    });
  }

  #computeKeys(ids: readonly Float64Array[], rowCount: number): Uint32Array {
    const keys = new Uint32Array(2 * rowCount * this.#transform.keyNum);
    const data = ids.map((values, i) => toIdsData(values, this.#inputs[i]!.dtype));
    this.#transform.run(data, rowCount, keys);
    return keys;
  }

  #isValid(keys: Uint32Array, row: number): boolean {
    const { keyNum } = this.#transform;
    for (let k = row * keyNum; k < (row + 1) * keyNum; k++) {
      if (keys[2 * k] === NO_KEY && keys[2 * k + 1] === NO_KEY) return false;
    }
    return true;
  }

  /** Tries all columns at once: a key of one column shows which ids are valid. */
  #findPools(): Map<string, IdsPool> {
    const seen = new Map();
    const onlyColumns = this.#formulas.map(({ expression }) => {
      const columns = collectColumns(expression, seen);
      const [first] = columns;
      return columns.size === 1 ? first : undefined;
    });
    const read = new Set(
      this.#formulas.flatMap(({ expression }) => [...collectColumns(expression, seen)]),
    );
    const candidates = new Map<string, number[]>();
    const total = this.#inputs.reduce((sum, { columns }) => sum + columns, 0) || 1;
    const candidateCount = Math.max(8, Math.min(TRIED_IDS, Math.floor(VALUES_MAX / total)));
    const limits = this.#findLimits(seen);
    for (const column of read) {
      candidates.set(column, this.#drawCandidates(limits.get(column) ?? [], candidateCount));
    }
    const ids = this.#inputs.map(({ name, columns }) =>
      Float64Array.from(
        { length: candidateCount * columns },
        (_, i) => candidates.get(`${name}\n${i % columns}`)?.[Math.floor(i / columns)] ?? 0,
      ),
    );
    const keys = this.#computeKeys(ids, candidateCount);
    const pools = new Map<string, IdsPool>();
    for (const [column, values] of candidates) {
      const isValid = values.map(() => true);
      const edge = values.map(() => false);
      onlyColumns.forEach((only, k) => {
        if (only !== column) return;
        values.forEach((_, row) => {
          const at = 2 * (row * onlyColumns.length + k);
          const key = keys[at]! + keys[at + 1]! * 2 ** 32;
          if (keys[at] === NO_KEY && keys[at + 1] === NO_KEY) isValid[row] = false;
          else if (key === 0 || key === this.#formulas[k]!.rows - 1) edge[row] = true;
        });
      });
      const all = [...new Set(values.filter((_, row) => isValid[row]))];
      const [input, number] = column.split('\n');
      if (all.length === 0)
        throw notVerifiedError(
          `no id was found for column ${number} of input ${input} that selects a row`,
        );
      const edges = [...new Set(values.filter((_, row) => isValid[row] && edge[row]))];
      pools.set(column, { edges, all });
    }
    return pools;
  }

  /** Numbers near which the keys of a column change: table sizes, constants. */
  #findLimits(seen: Map<KeyExpression, ReadonlySet<string>>): Map<string, number[]> {
    const limits = new Map<string, Set<number>>();
    for (const { expression, rows } of this.#formulas) {
      const constants = collectConstants(expression);
      for (const column of collectColumns(expression, seen)) {
        const list = limits.get(column) ?? new Set<number>();
        limits.set(column, list);
        if (list.size > 64) continue;
        list.add(rows);
        for (const c of constants) {
          for (const limit of [c, rows - c, rows + c, rows * c, Math.floor(rows / (c || 1))])
            list.add(limit);
        }
      }
    }
    return new Map([...limits].map(([column, list]) => [column, [...list]]));
  }

  #drawCandidates(limits: readonly number[], count: number): number[] {
    const edges = new Set([0, 1, -1]);
    for (const limit of limits) {
      for (const d of [-1, 0, 1]) edges.add(limit + d).add(d - limit);
    }
    const safe = [...edges].filter((value) => Math.abs(value) <= 2 ** 31 - 1).slice(0, count / 2);
    const values = [...safe];
    while (values.length < count) {
      const limit = limits[Math.floor(this.#random.next() * limits.length)] ?? 1;
      const size = Math.min(Math.abs(limit), 2 ** 31 - 1);
      const sign = this.#random.next() < 0.1 ? -1 : 1;
      values.push(sign * Math.floor(this.#random.next() * size));
    }
    return values;
  }
}

/** Some integer constants of an expression. */
function collectConstants(expression: KeyExpression): number[] {
  const constants = new Set<number>();
  const seen = new Set<KeyExpression>();
  const queue = [expression];
  for (let next = queue.pop(); next !== undefined && seen.size < 1000; next = queue.pop()) {
    if (seen.has(next)) continue;
    seen.add(next);
    if (next.op === 'int') constants.add(Number(next.value));
    else if (next.op !== 'column') queue.push(...next.of);
  }
  return [...constants].slice(0, 16);
}

/** Converts ids to the form that KeyTransform takes. */
export function toIdsData(values: Float64Array, dtype: IdsTensorInput['dtype']): IdsData {
  if (dtype === 'int32') return Int32Array.from(values);
  if (dtype === 'float32') return Float32Array.from(values);
  if (dtype === 'float64') return values;
  const words = new Uint32Array(2 * values.length);
  values.forEach((value, i) => {
    words[2 * i] = value;
    words[2 * i + 1] = Math.floor(value / 2 ** 32);
  });
  return words;
}
