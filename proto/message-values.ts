/**
 * Checks the values that an operator answers against their message type, and brings them into the
 * form that decoded messages have (message-schema.ts).
 */
import { CubeError } from '../lib/core/errors.ts';
import { suggestNames } from '../lib/core/nearest-name.ts';
import { isTensor } from '../lib/core/pipeline-tensor.ts';
import { quoteInput } from '../lib/core/shown-input.ts';
import {
  ARRAY_CLASSES,
  type ArrayType,
  createValues,
  type EnumType,
  FieldPath,
  isArrayType,
  joinNumbers,
  type MessageField,
  type MessageType,
  type MessageValues,
  type NumericArray,
  PATH_DEPTH_MAX,
  type ScalarType,
} from './message-schema.ts';

/** Smallest and largest value of each integer type. */
const INTEGERS: Readonly<Partial<Record<ScalarType, readonly [bigint, bigint]>>> = {
  int32: [-(2n ** 31n), 2n ** 31n - 1n],
  sint32: [-(2n ** 31n), 2n ** 31n - 1n],
  sfixed32: [-(2n ** 31n), 2n ** 31n - 1n],
  uint32: [0n, 2n ** 32n - 1n],
  fixed32: [0n, 2n ** 32n - 1n],
  int64: [-(2n ** 63n), 2n ** 63n - 1n],
  sint64: [-(2n ** 63n), 2n ** 63n - 1n],
  sfixed64: [-(2n ** 63n), 2n ** 63n - 1n],
  uint64: [0n, 2n ** 64n - 1n],
  fixed64: [0n, 2n ** 64n - 1n],
};

/** @throws CubeError INVALID_ARGUMENT naming the field */
export function checkMessage(type: MessageType, values: object): MessageValues {
  return new ValueChecker(type).check(values);
}

/**
 * A number of a type, or undefined where it does not fit. Integers must be exact; only infinite
 * values may be infinite as `float`.
 */
export function toNumber(type: ArrayType, value: unknown): number | bigint | undefined {
  const range = INTEGERS[type];
  if (range === undefined) {
    if (typeof value !== 'number') return undefined;
    const overflows =
      type === 'float' && Number.isFinite(value) && !Number.isFinite(Math.fround(value));
    return overflows ? undefined : value;
  }
  if (typeof value === 'number' ? !Number.isSafeInteger(value) : typeof value !== 'bigint') {
    return undefined;
  }
  const integer = BigInt(value as number | bigint);
  if (integer < range[0] || integer > range[1]) return undefined;
  return range[1] > 2n ** 32n ? integer : Number(integer);
}

/** What is expected of a value of a type, for errors. */
export function describeType(type: MessageField['type']): string {
  if (typeof type !== 'string') {
    return type.kind === 'message' ? `an object of ${type.name}` : `a value of ${type.name}`;
  }
  const range = INTEGERS[type];
  if (range !== undefined) return `an integer in ${range[0]}..${range[1]}`;
  if (type === 'double' || type === 'float') return `a number that fits ${type}`;
  return type === 'bool' ? 'a boolean' : type === 'string' ? 'text' : 'bytes';
}

export function describeValue(value: unknown): string {
  if (typeof value === 'string') return quoteInput(value);
  if (value === null) return 'null';
  if (Array.isArray(value)) return `a list of ${value.length}`;
  if (typeof value === 'object') return `an object of ${value.constructor?.name ?? 'Object'}`;
  return String(value);
}

/** @returns the name or, for a number without one, the number; undefined: there is no such value */
export function toEnumValue(type: EnumType, value: unknown): string | number | undefined {
  if (typeof value === 'string') return type.numbers.has(value) ? value : undefined;
  if (typeof value !== 'number' || value !== (value | 0)) return undefined;
  return type.names.get(value) ?? value;
}

class ValueChecker {
  readonly #type: MessageType;
  readonly #path = new FieldPath();

  constructor(type: MessageType) {
    this.#type = type;
  }

  check(values: object): MessageValues {
    return this.#checkMessage(this.#type, values);
  }

  #checkMessage(type: MessageType, given: unknown): MessageValues {
    if (typeof given !== 'object' || given === null || Array.isArray(given)) {
      this.#fail(describeType(type), given);
    }
    const values = createValues(type);
    const oneofs = new Map<string, string>();
    for (const [name, value] of Object.entries(given)) {
      const field = type.byName.get(name);
      this.#enter(name);
      if (field === undefined) {
        const names = type.fields.map((one) => one.name);
        this.#throw(`${type.name} has no such field; ${suggestNames(name, names)}`);
      }
      if (value !== undefined && value !== null) {
        const other = field.oneof === undefined ? undefined : oneofs.get(field.oneof);
        if (other !== undefined) this.#throw(`${other} is set too; a oneof has one of its fields`);
        if (field.oneof !== undefined) oneofs.set(field.oneof, field.name);
        values[field.name] = this.#checkField(field, value);
      }
      this.#path.pop();
    }
    for (const { name, isRequired } of type.fields) {
      if (!isRequired || Object.hasOwn(values, name)) continue;
      this.#enter(name);
      this.#throw('the field is required');
    }
    return values;
  }

  #checkField(field: MessageField, value: unknown): unknown {
    const { kind, type } = field;
    if (kind === 'single') return this.#checkValue(type, value);
    if (kind === 'map') return this.#checkMap(field, value);
    const items = isTensor(value) ? value.data : value;
    if (!Array.isArray(items) && !isTypedArray(items)) this.#fail('a list', value);
    return isArrayType(type)
      ? this.#checkNumbers(type, items as NumericArray)
      : Array.from(items as readonly unknown[], (item, i) => this.#checkItem(type, item, i));
  }

  #checkItem(type: MessageField['type'], item: unknown, index: number): unknown {
    this.#enter(index);
    const checked = this.#checkValue(type, item);
    this.#path.pop();
    return checked;
  }

  #checkNumbers(type: ArrayType, items: NumericArray | readonly unknown[]): NumericArray {
    const arrayClass = ARRAY_CLASSES[type];
    if (items instanceof (arrayClass as unknown as typeof Float32Array)) return items;
    const numbers = new arrayClass(items.length);
    for (let i = 0; i < items.length; i++) {
      const number = toNumber(type, items[i]);
      if (number === undefined) {
        this.#enter(i);
        this.#fail(describeType(type), items[i]);
      }
      numbers[i] = number;
    }
    return numbers;
  }

  #checkMap({ keyType = 'string', type }: MessageField, value: unknown): Map<unknown, unknown> {
    if (typeof value !== 'object' || value === null || Array.isArray(value)) {
      this.#fail('a map', value);
    }
    const entries = value instanceof Map ? [...value] : Object.entries(value);
    return new Map(
      entries.map(([key, item]) => {
        this.#enter(String(key));
        const entry = [this.#checkKey(keyType, key), this.#checkValue(type, item)] as const;
        this.#path.pop();
        return entry;
      }),
    );
  }

  #checkKey(type: ScalarType, key: unknown): unknown {
    return parseMapKey(type, key) ?? this.#fail(`a key that is ${describeType(type)}`, key);
  }

  #checkValue(type: MessageField['type'], value: unknown): unknown {
    if (typeof type !== 'string') {
      return type.kind === 'message'
        ? this.#checkMessage(type, value)
        : (toEnumValue(type, value) ?? this.#fail(describeType(type), value));
    }
    if (isArrayType(type)) return toNumber(type, value) ?? this.#fail(describeType(type), value);
    const fits =
      type === 'bytes'
        ? value instanceof Uint8Array
        : typeof value === (type === 'bool' ? 'boolean' : 'string');
    return fits ? value : this.#fail(describeType(type), value);
  }

  #enter(part: string | number): void {
    this.#path.push(part);
    if (this.#path.depth > PATH_DEPTH_MAX) {
      this.#throw(`nested more than ${PATH_DEPTH_MAX} levels deep`);
    }
  }

  #fail(expected: string, value: unknown): never {
    this.#throw(`expected ${expected}, got ${describeValue(value)}`);
  }

  #throw(problem: string): never {
    const place = `${this.#path}`;
    const where = place === '' ? this.#type.name : `${this.#type.name}: ${place}`;
    throw new CubeError('INVALID_ARGUMENT', `${where}: ${problem}`);
  }
}

/**
 * Merges two checked messages as Protocol Buffers do: lists are joined, maps and messages merged,
 * other fields take the second message's value where it has one.
 */
export function mergeMessages(
  type: MessageType,
  before: Readonly<MessageValues>,
  after: Readonly<MessageValues>,
): MessageValues {
  const merged: MessageValues = { ...before };
  for (const { name, kind, type: fieldType, fallback } of type.fields) {
    if (!Object.hasOwn(after, name)) continue;
    const [first, second] = [before[name], after[name]];
    if (kind === 'repeated') merged[name] = joinLists(first, second);
    else if (kind === 'map') {
      merged[name] = new Map([
        ...(first as ReadonlyMap<unknown, unknown>),
        ...(second as ReadonlyMap<unknown, unknown>),
      ]);
    } else if (typeof fieldType !== 'string' && fieldType.kind === 'message') {
      merged[name] =
        first === undefined
          ? second
          : mergeMessages(fieldType, first as MessageValues, second as MessageValues);
    } else if (first === undefined || second !== fallback) merged[name] = second;
  }
  return merged;
}

function joinLists(first: unknown, second: unknown): unknown {
  if (Array.isArray(first)) return [...first, ...(second as readonly unknown[])];
  return joinNumbers(first as NumericArray, second as NumericArray);
}

/** The key of a map from its own type or from text; undefined where it does not fit. */
export function parseMapKey(type: ScalarType, key: unknown): unknown {
  if (type === 'string') return typeof key === 'string' ? key : undefined;
  if (type === 'bool') {
    return key === true || key === 'true'
      ? true
      : key === false || key === 'false'
        ? false
        : undefined;
  }
  const isInteger = typeof key === 'string' && /^-?\d{1,20}$/.test(key);
  return toNumber(type as ArrayType, isInteger ? BigInt(key) : key);
}

function isTypedArray(value: unknown): boolean {
  return ArrayBuffer.isView(value) && !(value instanceof DataView);
}
