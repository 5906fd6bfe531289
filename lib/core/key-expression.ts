/**
 * How a graph computed row numbers from ids before its lookup: an integer expression over the ids
 * of a row, with the operators of ONNX. Stored in slots.json (docs/formats/slots.md) and evaluated
 * by `key-transform.ts`.
 */
import { requireDefined } from './errors.ts';
import type { JsonReader } from './json.ts';

/** The type that an expression's value wraps to; a bool is 0 or 1. */
export type KeyDtype = 'int64' | 'int32' | 'bool';

/**
 * Operators. `div` truncates; `mod` takes the sign of its divisor, `fmod` that of its dividend;
 * `cast` takes the low 32 bits for int32, "not zero" for bool, and from a float the integer towards
 * zero.
 */
export type KeyOperator =
  | 'neg'
  | 'abs'
  | 'not'
  | 'cast'
  | 'add'
  | 'sub'
  | 'mul'
  | 'div'
  | 'mod'
  | 'fmod'
  | 'min'
  | 'max'
  | 'equal'
  | 'less'
  | 'and'
  | 'or'
  | 'xor'
  | 'where';

export const KEY_OPERAND_COUNTS: Readonly<Record<KeyOperator, number>> = {
  neg: 1,
  abs: 1,
  not: 1,
  cast: 1,
  add: 2,
  sub: 2,
  mul: 2,
  div: 2,
  mod: 2,
  fmod: 2,
  min: 2,
  max: 2,
  equal: 2,
  less: 2,
  and: 2,
  or: 2,
  xor: 2,
  where: 3,
};

export type KeyExpression =
  /** An element of a row of an ids input, row-major. */
  | { readonly op: 'column'; readonly input: string; readonly column: number }
  | { readonly op: 'int'; readonly value: bigint }
  /** An element of an integer map; a negative index counts from its end. */
  | { readonly op: 'map'; readonly map: string; readonly of: readonly [KeyExpression] }
  | { readonly op: KeyOperator; readonly dtype: KeyDtype; readonly of: readonly KeyExpression[] };

/** A constant integer tensor of the graph that ids are mapped through. */
export interface KeyMap {
  readonly name: string;
  readonly values: BigInt64Array;
}

/** Maximum number of expressions in one slots.json, leaves included. */
const EXPRESSION_COUNT_MAX = 1_000_000;
const DEPTH_MAX = 500;
const MAP_BYTES_MAX = 32 << 20;

/** The fields of each operation. */
const OPERATION_FIELDS: ReadonlyMap<string, ReadonlySet<string>> = new Map([
  ['column', new Set(['op', 'input', 'column'])],
  ['int', new Set(['op', 'value'])],
  ['map', new Set(['op', 'map', 'of'])],
]);
const OTHER_FIELDS: ReadonlySet<string> = new Set(['op', 'dtype', 'of']);

/** Reads expressions. Use one instance per document: it limits their number. */
export class KeyExpressionReader {
  readonly #inputs: ReadonlyMap<string, number>;
  readonly #maps: ReadonlySet<string>;
  #count = 0;

  /** @param inputs elements per row of each ids input @param maps names of the document's maps */
  constructor(inputs: ReadonlyMap<string, number>, maps: ReadonlySet<string>) {
    this.#inputs = inputs;
    this.#maps = maps;
  }

  read(json: JsonReader, depth = 0): KeyExpression {
    if (++this.#count > EXPRESSION_COUNT_MAX) json.fail('fewer key expressions');
    if (depth > DEPTH_MAX) json.fail(`an expression at most ${DEPTH_MAX} deep`);
    const op = json.field('op').string();
    json.rejectUnknownFields(OPERATION_FIELDS.get(op) ?? OTHER_FIELDS);
    if (op === 'column') return this.#column(json);
    if (op === 'int') return { op, value: json.field('value').i64() };
    const of = json
      .field('of')
      .items({ min: 1, max: 3 })
      .map((item) => this.read(item, depth + 1));
    if (op === 'map') {
      const map = json.field('map').string();
      if (!this.#maps.has(map)) json.field('map').fail('the name of a map listed under "maps"');
      return { op, map, of: [requireDefined(of[0], 'the operand of a map')] };
    }
    if (!Object.hasOwn(KEY_OPERAND_COUNTS, op)) json.field('op').fail('a known operator');
    const operator = op as KeyOperator;
    if (of.length !== KEY_OPERAND_COUNTS[operator]) {
      json.field('of').fail(`${KEY_OPERAND_COUNTS[operator]} operands of ${op}`);
    }
    const dtype = json.optional('dtype', (f) => f.choice(['int64', 'int32', 'bool'] as const));
    return { op: operator, dtype: dtype ?? 'int64', of };
  }

  #column(json: JsonReader): KeyExpression {
    const input = json.field('input').string();
    const columns = this.#inputs.get(input);
    if (columns === undefined) return json.field('input').fail('an input listed under "ids"');
    return { op: 'column', input, column: json.field('column').integer(0, columns - 1) };
  }
}

export function keyExpressionToJson(expression: KeyExpression): unknown {
  if (expression.op === 'column') return expression;
  if (expression.op === 'int') return { op: 'int', value: expression.value.toString() };
  const of = expression.of.map(keyExpressionToJson);
  if (expression.op === 'map') return { op: 'map', map: expression.map, of };
  const { op, dtype } = expression;
  return dtype === 'int64' ? { op, of } : { op, dtype, of };
}

/** @returns the map's values: little-endian int64 in base64 */
export function readKeyMap(json: JsonReader): KeyMap {
  json.rejectUnknownFields(['name', 'int64']);
  const text = json.field('int64').string(/^[A-Za-z0-9+/]*={0,2}$/, 'base64');
  if (text.length > (MAP_BYTES_MAX / 3) * 4 + 4) json.field('int64').fail('a smaller map');
  const binary = decodeBase64(text);
  if (binary === undefined || binary.length % 8 !== 0 || binary.length === 0) {
    return json.field('int64').fail('base64 of 64-bit integers');
  }
  const view = new DataView(binary.buffer);
  const values = new BigInt64Array(binary.length / 8);
  for (let i = 0; i < values.length; i++) values[i] = view.getBigInt64(8 * i, true);
  return { name: json.field('name').string(), values };
}

function decodeBase64(text: string): Uint8Array | undefined {
  try {
    return Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
  } catch {
    return undefined;
  }
}

export function keyMapToJson({ name, values }: KeyMap): unknown {
  const bytes = new DataView(new ArrayBuffer(8 * values.length));
  values.forEach((value, i) => {
    bytes.setBigInt64(8 * i, value, true);
  });
  const pieces: string[] = [];
  for (let at = 0; at < bytes.byteLength; at += 30_000) {
    const piece = new Uint8Array(bytes.buffer, at, Math.min(30_000, bytes.byteLength - at));
    pieces.push(btoa(String.fromCharCode(...piece)));
  }
  return { name, int64: pieces.join('') };
}
