/**
 * How a graph turned ids into row numbers before it looked rows up: an integer expression over the ids of a row, as ONNX
 * defines its operators. It travels in slots.json (docs/formats/slots.md); `key-transform.ts` evaluates it.
 */
import type { JsonReader } from './json.ts';

/** What an expression's value wraps to; a bool is 0 or 1. */
export type KeyDtype = 'int64' | 'int32' | 'bool';

/**
 * Operators by number of operands. `div` truncates; `mod` takes the sign of its divisor, `fmod` that of its dividend;
 * `cast`: to int32 the low 32 bits, to bool whether it is not zero, from a float the integer towards zero.
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

export const KEY_OPERANDS: Readonly<Record<KeyOperator, number>> = {
  ...{ neg: 1, abs: 1, not: 1, cast: 1 },
  ...{ add: 2, sub: 2, mul: 2, div: 2, mod: 2, fmod: 2, min: 2, max: 2 },
  ...{ equal: 2, less: 2, and: 2, or: 2, xor: 2 },
  where: 3,
};

export type KeyExpression =
  /** An element of a row of an ids input, row-major. */
  | { readonly op: 'column'; readonly input: string; readonly column: number }
  | { readonly op: 'int'; readonly value: bigint }
  /** An element of an integer map; an index below zero counts from its end. */
  | { readonly op: 'map'; readonly map: string; readonly of: readonly [KeyExpression] }
  | { readonly op: KeyOperator; readonly dtype: KeyDtype; readonly of: readonly KeyExpression[] };

/** A constant integer tensor of the graph that ids go through. */
export interface KeyMap {
  readonly name: string;
  readonly values: BigInt64Array;
}

/** Expressions in one slots.json, leaves included. */
const EXPRESSION_COUNT_MAX = 1_000_000;
const DEPTH_MAX = 500;
const MAP_BYTES_MAX = 32 << 20;

/** Reads expressions; one instance for a document, so that their number is bounded. */
export class KeyExpressionReader {
  readonly #inputs: ReadonlyMap<string, number>;
  readonly #maps: ReadonlySet<string>;
  #count = 0;

  /** @param inputs elements in a row of each ids input. @param maps names of the document's maps */
  constructor(inputs: ReadonlyMap<string, number>, maps: ReadonlySet<string>) {
    this.#inputs = inputs;
    this.#maps = maps;
  }

  read(json: JsonReader, depth = 0): KeyExpression {
    if (++this.#count > EXPRESSION_COUNT_MAX) json.fail('fewer key expressions');
    if (depth > DEPTH_MAX) json.fail(`an expression at most ${DEPTH_MAX} deep`);
    const op = json.field('op').string();
    if (op === 'column') return this.#column(json);
    if (op === 'int') return { op, value: json.field('value').i64() };
    const of = json
      .field('of')
      .items({ min: 1, max: 3 })
      .map((item) => this.read(item, depth + 1));
    if (op === 'map') {
      const map = json.field('map').string();
      if (!this.#maps.has(map)) json.field('map').fail('the name of a map listed under "maps"');
      return { op, map, of: [of[0]!] };
    }
    if (!Object.hasOwn(KEY_OPERANDS, op)) json.field('op').fail('a known operator');
    const operator = op as KeyOperator;
    if (of.length !== KEY_OPERANDS[operator]) {
      json.field('of').fail(`${KEY_OPERANDS[operator]} operands of ${op}`);
    }
    const dtype = json.optional('dtype', (f) => f.oneOf(['int64', 'int32', 'bool'] as const));
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
