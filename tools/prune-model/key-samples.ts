/**
 * Samples of ids for a proof: over the whole range that the lookups take, the first and the last row of each table included,
 * through whatever computes keys from them.
 */
import { CubeError } from '../../lib/core/errors.ts';
import type { KeyExpression, KeyMap } from '../../lib/core/key-expression.ts';
import {
  columnsOf,
  type IdsData,
  type IdsInput,
  type KeyFormula,
  KeyTransform,
  NO_KEY,
} from '../../lib/core/key-transform.ts';
import type { RandomNumbers } from './proof.ts';

/** Ids tried for each column. */
const TRIED = 384;
const REDRAWS_MAX = 32;
/** Beyond it, not every column is tried with as many ids. */
const VALUES_MAX = 8_000_000;

/** Ids that a column may have. */
interface Pool {
  /** Those that give the first or the last row of a table. */
  readonly edges: readonly number[];
  readonly all: readonly number[];
}

export class KeySamples {
  readonly #inputs: readonly IdsInput[];
  readonly #formulas: readonly KeyFormula[];
  readonly #transform: KeyTransform;
  readonly #random: RandomNumbers;
  readonly #pools: ReadonlyMap<string, Pool>;
  #drawn = 0;

  constructor(
    inputs: readonly IdsInput[],
    maps: readonly KeyMap[],
    formulas: readonly KeyFormula[],
    random: RandomNumbers,
  ) {
    this.#inputs = inputs;
    this.#formulas = formulas;
    this.#random = random;
    this.#transform = new KeyTransform(inputs, maps, formulas);
    this.#pools = this.#findPools();
  }

  /** Rows of ids of every input, each row such that every key is one of its table. */
  draw(rowCount: number): Float64Array[] {
    const ids = this.#inputs.map(({ columns }) => new Float64Array(rowCount * columns));
    const open = new Set(Array.from({ length: rowCount }, (_, row) => row));
    for (let attempt = 0; attempt < REDRAWS_MAX && open.size > 0; attempt++) {
      for (const row of open) this.#fillRow(ids, row, attempt === 0 ? this.#drawn + row : -1);
      const keys = this.#keys(ids, rowCount);
      for (const row of [...open]) if (this.#isValid(keys, row)) open.delete(row);
    }
    const [valid] = Array.from({ length: rowCount }, (_, row) => row).filter(
      (row) => !open.has(row),
    );
    if (valid === undefined && rowCount > 0)
      throw unprovable('no ids were found that every lookup takes');
    for (const row of open) {
      this.#inputs.forEach(({ columns }, i) => {
        const from = valid! * columns;
        ids[i]!.copyWithin(row * columns, from, from + columns);
      });
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

  #keys(ids: readonly Float64Array[], rowCount: number): Uint32Array {
    const keys = new Uint32Array(2 * rowCount * this.#transform.keyNum);
    const data = ids.map((values, i) => toIds(values, this.#inputs[i]!.dtype));
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

  /** Tries every column at once: keys that read one column say which of its ids are taken. */
  #findPools(): Map<string, Pool> {
    const seen = new Map();
    const alone = this.#formulas.map(({ expression }) => {
      const columns = columnsOf(expression, seen);
      return columns.size === 1 ? [...columns][0]! : undefined;
    });
    const read = new Set(
      this.#formulas.flatMap(({ expression }) => [...columnsOf(expression, seen)]),
    );
    const candidates = new Map<string, number[]>();
    const total = this.#inputs.reduce((sum, { columns }) => sum + columns, 0) || 1;
    const tried = Math.max(8, Math.min(TRIED, Math.floor(VALUES_MAX / total)));
    const limits = this.#limits(seen);
    for (const column of read) {
      candidates.set(column, this.#candidatesOf(limits.get(column) ?? [], tried));
    }
    const ids = this.#inputs.map(({ name, columns }) =>
      Float64Array.from(
        { length: tried * columns },
        (_, i) => candidates.get(`${name}\n${i % columns}`)?.[Math.floor(i / columns)] ?? 0,
      ),
    );
    const keys = this.#keys(ids, tried);
    const pools = new Map<string, Pool>();
    for (const [column, values] of candidates) {
      const taken = values.map(() => true);
      const edge = values.map(() => false);
      alone.forEach((only, k) => {
        if (only !== column) return;
        values.forEach((_, row) => {
          const at = 2 * (row * alone.length + k);
          const key = keys[at]! + keys[at + 1]! * 2 ** 32;
          if (keys[at] === NO_KEY && keys[at + 1] === NO_KEY) taken[row] = false;
          else if (key === 0 || key === this.#formulas[k]!.rows - 1) edge[row] = true;
        });
      });
      const all = [...new Set(values.filter((_, row) => taken[row]))];
      const [input, number] = column.split('\n');
      if (all.length === 0) throw unprovable(`no id of column ${number} of ${input} gives a row`);
      const edges = [...new Set(values.filter((_, row) => taken[row] && edge[row]))];
      pools.set(column, { edges, all });
    }
    return pools;
  }

  /** For each column, the numbers around which something changes: rows of its tables, constants of its expressions. */
  #limits(seen: Map<KeyExpression, ReadonlySet<string>>): Map<string, number[]> {
    const limits = new Map<string, Set<number>>();
    for (const { expression, rows } of this.#formulas) {
      const constants = constantsOf(expression);
      for (const column of columnsOf(expression, seen)) {
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

  #candidatesOf(limits: readonly number[], count: number): number[] {
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

/** The integers of an expression, the few first of them. */
function constantsOf(expression: KeyExpression): number[] {
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

/** Ids as the key transform takes them. */
export function toIds(values: Float64Array, dtype: IdsInput['dtype']): IdsData {
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

function unprovable(why: string): CubeError {
  return new CubeError(
    'UNSUPPORTED',
    `not proved: ${why}; --verify 0 accepts the model without proof`,
  );
}
