/**
 * Evaluates key expressions for a batch. They are compiled once to a list of instructions, each
 * with a register of doubles, which run over blocks of rows. Doubles are exact while every value of
 * a block is an integer of at most 53 bits; a block with a larger value runs again with BigInts. So
 * the common case makes no BigInt, and no value is ever rounded.
 *
 * Where the graph would have failed (an index outside a map, a division by zero, a float that is
 * not a 64-bit integer) the key is `NO_KEY`, which no table contains.
 */
import { CubeError } from './errors.ts';
import {
  KEY_OPERAND_COUNTS,
  type KeyDtype,
  type KeyExpression,
  type KeyMap,
  type KeyOperator,
} from './key-expression.ts';

/** Ids of one input, row by row; int64 as words (low, high). */
export type IdsData = Uint32Array | Int32Array | Float32Array | Float64Array;

export interface IdsTensorInput {
  readonly name: string;
  readonly dtype: 'int64' | 'int32' | 'float32' | 'float64';
  /** Elements in a row. */
  readonly columns: number;
}

/**
 * A key to compute: the number of a row in a table of `rows` rows. A negative number counts from
 * the end.
 */
export interface KeyComputation {
  readonly expression: KeyExpression;
  readonly rows: number;
}

/** Both words of the key that no table of row numbers contains. */
export const NO_KEY = 0xffff_ffff;

const BLOCK_ROWS_MAX = 256;
/** Maximum number of values in all registers of a block. */
const BLOCK_VALUES_MAX = 1 << 20;
const SAFE_INTEGER_MAX = Number.MAX_SAFE_INTEGER;

interface Instruction {
  readonly op: KeyOperator | 'column' | 'int' | 'map';
  readonly dtype: KeyDtype;
  /** Registers of the operands; of `column`: input and column. */
  readonly a: number;
  readonly b: number;
  readonly c: number;
  readonly value: bigint;
  readonly map: number;
}

interface LoadedMap {
  readonly exact: BigInt64Array;
  readonly fast: Float64Array;
}

export class KeyTransform {
  readonly #inputs: readonly IdsTensorInput[];
  readonly #code: Instruction[] = [];
  readonly #registers: readonly Float64Array[];
  readonly #outputs: { register: number; rows: number }[];
  readonly #blockRows: number;
  readonly #maps: readonly LoadedMap[];
  readonly #mapNames: readonly string[];
  readonly #known = new Map<string, number>();
  readonly #seen = new Map<KeyExpression, number>();

  /** @throws CubeError INVALID_ARGUMENT when an expression names an unknown input or map */
  constructor(
    inputs: readonly IdsTensorInput[],
    maps: readonly KeyMap[],
    formulas: readonly KeyComputation[],
  ) {
    this.#inputs = inputs;
    this.#mapNames = maps.map(({ name }) => name);
    this.#maps = maps.map(({ values }) => ({
      exact: values,
      fast: Float64Array.from(values, Number),
    }));
    this.#outputs = formulas.map(({ expression, rows }) => ({
      register: this.#compile(expression),
      rows,
    }));
    this.#seen.clear();
    const rows = Math.floor(BLOCK_VALUES_MAX / Math.max(this.#code.length, 1));
    this.#blockRows = Math.min(Math.max(rows, 1), BLOCK_ROWS_MAX);
    this.#registers = this.#code.map(({ value }) =>
      new Float64Array(this.#blockRows).fill(Number(value)),
    );
  }

  /** Keys in a row of the result. */
  get keyNum(): number {
    return this.#outputs.length;
  }

  /**
   * @param ids one array for each input, rowCount × columns
   * @param keys out: rowCount × keyNum, words (low, high)
   */
  run(ids: readonly IdsData[], rowCount: number, keys: Uint32Array): void {
    for (let start = 0; start < rowCount; start += this.#blockRows) {
      const count = Math.min(this.#blockRows, rowCount - start);
      if (this.#runFast(ids, start, count)) this.#storeFast(start, count, keys);
      else this.#runExact(ids, start, count, keys);
    }
  }

  #compile(expression: KeyExpression): number {
    const seen = this.#seen.get(expression);
    if (seen !== undefined) return seen;
    const instruction = this.#instruction(expression);
    const { op, dtype, a, b, c, value, map } = instruction;
    const key = `${op} ${dtype} ${a} ${b} ${c} ${value} ${map}`;
    let register = this.#known.get(key);
    if (register === undefined) {
      register = this.#code.push(instruction) - 1;
      this.#known.set(key, register);
    }
    this.#seen.set(expression, register);
    return register;
  }

  #instruction(expression: KeyExpression): Instruction {
    const blank = { dtype: 'int64', a: 0, b: 0, c: 0, value: 0n, map: 0 } as const;
    const { op } = expression;
    if (op === 'int') return { ...blank, op, value: expression.value };
    if (op === 'column') {
      const a = this.#inputs.findIndex(({ name }) => name === expression.input);
      const known = this.#inputs[a];
      if (known === undefined || expression.column >= known.columns) {
        failUnknownName(`column ${expression.column} of input ${JSON.stringify(expression.input)}`);
      }
      return { ...blank, op, a, b: expression.column };
    }
    const [a = 0, b = 0, c = 0] = expression.of.map((operand) => this.#compile(operand));
    if (op !== 'map') return { ...blank, op, dtype: expression.dtype, a, b, c };
    const map = this.#mapNames.indexOf(expression.map);
    if (map < 0) failUnknownName(`map ${JSON.stringify(expression.map)}`);
    return { ...blank, op, a, map };
  }

  /** @returns false when a value needs more than 53 bits */
  #runFast(ids: readonly IdsData[], start: number, count: number): boolean {
    for (let i = 0; i < this.#code.length; i++) {
      const instruction = this.#code[i]!;
      const target = this.#registers[i]!;
      if (instruction.op === 'column') this.#loadFast(instruction, ids, start, count, target);
      else if (instruction.op === 'map') {
        const source = this.#registers[instruction.a]!;
        lookUpMapFast(this.#maps[instruction.map]!.fast, source, count, target);
      } else if (instruction.op !== 'int') operateFast(instruction, this.#registers, count, target);
      for (let row = 0; row < count; row++) {
        const value = target[row]!;
        if (value > SAFE_INTEGER_MAX || value < -SAFE_INTEGER_MAX) return false;
      }
    }
    return true;
  }

  #loadFast(
    { a, b }: Instruction,
    ids: readonly IdsData[],
    start: number,
    count: number,
    target: Float64Array,
  ): void {
    const { columns, dtype } = this.#inputs[a]!;
    const data = ids[a]!;
    let at = start * columns + b;
    for (let row = 0; row < count; row++, at += columns) {
      if (dtype !== 'int64') target[row] = data[at]!;
      else target[row] = (data[2 * at + 1]! | 0) * 2 ** 32 + data[2 * at]!;
    }
  }

  #storeFast(start: number, count: number, keys: Uint32Array): void {
    const keyNum = this.#outputs.length;
    this.#outputs.forEach(({ register, rows }, k) => {
      const values = this.#registers[register]!;
      for (let row = 0; row < count; row++) {
        let key = values[row]!;
        if (key < 0) key += rows;
        const word = 2 * ((start + row) * keyNum + k);
        const isKey = key >= 0 && key < rows;
        keys[word] = isKey ? key % 2 ** 32 : NO_KEY;
        keys[word + 1] = isKey ? key / 2 ** 32 : NO_KEY;
      }
    });
  }

  #runExact(ids: readonly IdsData[], start: number, count: number, keys: Uint32Array): void {
    const keyNum = this.#outputs.length;
    for (let row = start; row < start + count; row++) {
      const values: (bigint | undefined)[] = [];
      for (const instruction of this.#code) {
        values.push(this.#valueExact(instruction, ids, row, values));
      }
      this.#outputs.forEach(({ register, rows }, k) => {
        let key = values[register];
        if (key !== undefined && key < 0n) key += BigInt(rows);
        if (key !== undefined && (key < 0n || key >= BigInt(rows))) key = undefined;
        const word = 2 * (row * keyNum + k);
        keys[word] = key === undefined ? NO_KEY : Number(key & 0xffff_ffffn);
        keys[word + 1] = key === undefined ? NO_KEY : Number(key >> 32n);
      });
    }
  }

  #valueExact(
    instruction: Instruction,
    ids: readonly IdsData[],
    row: number,
    values: readonly (bigint | undefined)[],
  ): bigint | undefined {
    const { op, a, b } = instruction;
    if (op === 'int') return instruction.value;
    if (op === 'column') {
      const { columns, dtype } = this.#inputs[a]!;
      const data = ids[a]!;
      const at = row * columns + b;
      if (dtype !== 'int64') return truncateToInt64(data[at]!);
      return BigInt.asIntN(64, (BigInt(data[2 * at + 1]!) << 32n) | BigInt(data[2 * at]!));
    }
    if (op === 'map') {
      const { exact } = this.#maps[instruction.map]!;
      let index = values[a];
      if (index !== undefined && index < 0n) index += BigInt(exact.length);
      const isInside = index !== undefined && index >= 0n && index < BigInt(exact.length);
      return isInside ? exact[Number(index)] : undefined;
    }
    return operateExact(instruction, values);
  }
}

function failUnknownName(what: string): never {
  throw new CubeError('INVALID_ARGUMENT', `a key expression names ${what}, which does not exist`);
}

/** Truncates towards zero. @returns undefined when the result does not fit 64 bits */
function truncateToInt64(value: number): bigint | undefined {
  const isInt64 = value >= -(2 ** 63) && value < 2 ** 63;
  return isInt64 ? BigInt(Math.trunc(value)) : undefined;
}

function lookUpMapFast(
  map: Float64Array,
  index: Float64Array,
  count: number,
  out: Float64Array,
): void {
  for (let row = 0; row < count; row++) {
    const at = index[row]!;
    // Outside the map, and for NaN, there is no element: NaN.
    out[row] = map[at < 0 ? at + map.length : at] ?? Number.NaN;
  }
}

type FastOperator = (a: number, b: number, c: number) => number;

/**
 * Operators on integers of at most 53 bits; + 0 turns −0 into 0. An undefined result is NaN, and so
 * is everything computed from it.
 */
const FAST_OPERATORS: Readonly<Record<KeyOperator, FastOperator>> = {
  neg: (a) => 0 - a,
  abs: (a) => Math.abs(a),
  not: (a) => 1 - a,
  cast: (a) => Math.trunc(a) + 0,
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b + 0,
  div: (a, b) => (a - (a % b)) / b + 0,
  mod: (a, b) => {
    const rest = a % b;
    return rest !== 0 && rest < 0 !== b < 0 ? rest + b : rest + 0;
  },
  fmod: (a, b) => (a % b) + 0,
  min: (a, b) => Math.min(a, b),
  max: (a, b) => Math.max(a, b),
  equal: (a, b) => (Number.isNaN(a - b) ? Number.NaN : Number(a === b)),
  less: (a, b) => (Number.isNaN(a - b) ? Number.NaN : Number(a < b)),
  and: (a, b) => a * b,
  or: (a, b) => Math.max(a, b),
  xor: (a, b) => Math.abs(a - b),
  where: (a, b, c) => {
    if (a === 0) return c;
    return Number.isNaN(a) ? a : b;
  },
};

function operateFast(
  { op, dtype, a, b, c }: Instruction,
  registers: readonly Float64Array[],
  count: number,
  out: Float64Array,
): void {
  const left = registers[a]!;
  const right = registers[b]!;
  const last = registers[c]!;
  const operate = FAST_OPERATORS[op as KeyOperator];
  for (let row = 0; row < count; row++) {
    out[row] = operate(left[row]!, right[row]!, last[row]!);
  }
  if (dtype === 'int64' || isComparison(op as KeyOperator)) return;
  for (let row = 0; row < count; row++) {
    const value = out[row]!;
    if (Number.isNaN(value)) continue;
    if (dtype === 'bool') out[row] = Number(value !== 0);
    // A product of two int32 may need 62 bits: imul gives its low 32.
    else out[row] = op === 'mul' ? Math.imul(left[row]!, right[row]!) : value | 0;
  }
}

/** The dtype of a comparison is that of its operands: the result is a bool. */
function isComparison(op: KeyOperator): boolean {
  return op === 'equal' || op === 'less';
}

type ExactOperator = (a: bigint, b: bigint) => bigint | undefined;

const EXACT_OPERATORS: Readonly<Record<Exclude<KeyOperator, 'where'>, ExactOperator>> = {
  neg: (a) => -a,
  abs: (a) => (a < 0n ? -a : a),
  not: (a) => 1n - a,
  cast: (a) => a,
  add: (a, b) => a + b,
  sub: (a, b) => a - b,
  mul: (a, b) => a * b,
  div: (a, b) => (b === 0n ? undefined : a / b),
  mod: (a, b) => {
    if (b === 0n) return undefined;
    const rest = a % b;
    return rest !== 0n && rest < 0n !== b < 0n ? rest + b : rest;
  },
  fmod: (a, b) => (b === 0n ? undefined : a % b),
  min: (a, b) => (a < b ? a : b),
  max: (a, b) => (a > b ? a : b),
  equal: (a, b) => (a === b ? 1n : 0n),
  less: (a, b) => (a < b ? 1n : 0n),
  and: (a, b) => a & b,
  or: (a, b) => a | b,
  xor: (a, b) => a ^ b,
};

function operateExact(
  { op, dtype, a, b, c }: Instruction,
  values: readonly (bigint | undefined)[],
): bigint | undefined {
  const last = values[c];
  return evaluateOperator(op as KeyOperator, dtype, [values[a], values[b], last]);
}

/** Evaluates one operator on exact values. @returns undefined where it has no result */
export function evaluateOperator(
  op: KeyOperator,
  dtype: KeyDtype,
  [left, right, last]: readonly (bigint | undefined)[],
): bigint | undefined {
  if (left === undefined) return undefined;
  if (op === 'where') return left === 0n ? last : right;
  if (right === undefined && KEY_OPERAND_COUNTS[op] > 1) return undefined;
  const value = EXACT_OPERATORS[op](left, right ?? 0n);
  if (value === undefined || isComparison(op)) return value;
  if (dtype === 'bool') return value === 0n ? 0n : 1n;
  return BigInt.asIntN(dtype === 'int32' ? 32 : 64, value);
}

/** The columns that an expression reads, as `input\ncolumn`. */
export function collectColumns(
  expression: KeyExpression,
  seen: Map<KeyExpression, ReadonlySet<string>> = new Map(),
): ReadonlySet<string> {
  const known = seen.get(expression);
  if (known !== undefined) return known;
  const columns = new Set<string>();
  if (expression.op === 'column') columns.add(`${expression.input}\n${expression.column}`);
  else if (expression.op !== 'int') {
    for (const operand of expression.of) {
      for (const column of collectColumns(operand, seen)) columns.add(column);
    }
  }
  seen.set(expression, columns);
  return columns;
}
