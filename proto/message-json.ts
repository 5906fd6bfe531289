/**
 * Users' own messages as JSON, in the mapping of Protocol Buffers: 64-bit integers as strings,
 * bytes in base64, enums by name, numbers that JSON lacks as strings. Reads names as in the .proto
 * file or in camelCase, refuses unknown ones; writes the names of the .proto file.
 */
import { CubeError } from '../lib/core/errors.ts';
import { JsonReader, quoteLongIntegers } from '../lib/core/json.ts';
import type { SlicedWork } from '../lib/core/json-slices.ts';
import { suggestNames } from '../lib/core/nearest-name.ts';
import { parseNonFiniteJson } from '../lib/core/non-finite-json.ts';
import {
  ARRAY_CLASSES,
  type ArrayType,
  createValues,
  FieldPath,
  isArrayType,
  type MessageField,
  type MessageType,
  type MessageValues,
  PATH_DEPTH_MAX,
} from './message-schema.ts';
import {
  checkMessage,
  describeType,
  describeValue,
  parseMapKey,
  toEnumValue,
  toNumber,
} from './message-values.ts';

/** Elements of long lists between two pauses. */
const SLICE = 4_096;
const BASE64 = /^[A-Za-z0-9+/_-]*={0,2}$/;
const CHUNK = 8_192;

/**
 * Parses a message in slices.
 * @param source name of the text in errors
 * @throws CubeError INVALID_ARGUMENT naming the field
 */
export function* parseMessage(
  type: MessageType,
  text: string,
  source: string,
): SlicedWork<MessageValues> {
  const json = yield* JsonReader.parseInSlices(text, source, (part) =>
    parseNonFiniteJson(quoteLongIntegers(part)),
  );
  return yield* new JsonMessageReader(source).read(type, json.value);
}

class JsonMessageReader {
  readonly #source: string;
  readonly #path = new FieldPath();
  #untilPause = SLICE;

  constructor(source: string) {
    this.#source = source;
  }

  *read(type: MessageType, json: unknown): SlicedWork<MessageValues> {
    if (typeof json !== 'object' || json === null || Array.isArray(json)) {
      this.#fail(describeType(type), json);
    }
    const values = createValues(type);
    const given = new Set<string>();
    for (const [key, value] of Object.entries(json)) {
      const field = type.byName.get(key);
      this.#enter(key);
      if (field === undefined) {
        const names = type.fields.map(({ name }) => name);
        this.#throw(`${type.name} has no such field; ${suggestNames(key, names)}`);
      }
      if (given.has(field.name)) this.#throw('the field is there twice');
      given.add(field.name);
      if (value !== null) {
        this.#checkOneof(type, field, values);
        values[field.name] = yield* this.#readField(field, value);
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

  #checkOneof({ fields }: MessageType, { oneof, name }: MessageField, values: object): void {
    if (oneof === undefined) return;
    const other = fields.find(
      (one) => one.oneof === oneof && one.name !== name && Object.hasOwn(values, one.name),
    );
    if (other !== undefined) this.#throw(`${other.name} is set too; a oneof has one of its fields`);
  }

  *#readField(field: MessageField, json: unknown): SlicedWork<unknown> {
    const { kind, type, keyType = 'string' } = field;
    if (kind === 'single') return yield* this.#readValue(type, json);
    if (kind === 'map') {
      if (typeof json !== 'object' || json === null || Array.isArray(json)) {
        this.#fail('an object', json);
      }
      const map = new Map<unknown, unknown>();
      for (const [name, item] of Object.entries(json)) {
        this.#enter(name);
        const key = parseMapKey(keyType, name);
        if (key === undefined) this.#fail(`a key that is ${describeType(keyType)}`, name);
        map.set(key, yield* this.#readValue(type, item));
        this.#path.pop();
        yield* this.#pause();
      }
      return map;
    }
    if (!Array.isArray(json)) this.#fail('a list', json);
    if (isArrayType(type)) return yield* this.#readNumbers(type, json);
    const items: unknown[] = [];
    for (const [index, item] of json.entries()) {
      this.#enter(index);
      items.push(yield* this.#readValue(type, item));
      this.#path.pop();
      yield* this.#pause();
    }
    return items;
  }

  *#readNumbers(type: ArrayType, json: readonly unknown[]): SlicedWork<unknown> {
    const numbers = new ARRAY_CLASSES[type](json.length);
    for (let i = 0; i < json.length; i++) {
      const number = toNumber(type, readNumber(type, json[i]));
      if (number === undefined) {
        this.#enter(i);
        this.#fail(describeType(type), json[i]);
      }
      numbers[i] = number;
      yield* this.#pause();
    }
    return numbers;
  }

  *#readValue(type: MessageField['type'], json: unknown): SlicedWork<unknown> {
    if (typeof type !== 'string') {
      if (type.kind === 'message') return yield* this.read(type, json);
      const value = toEnumValue(type, json);
      if (value !== undefined) return value;
      this.#throw(
        `expected ${describeType(type)}, got ${describeValue(json)}; ` +
          suggestNames(String(json), [...type.numbers.keys()]),
      );
    }
    if (isArrayType(type)) {
      return toNumber(type, readNumber(type, json)) ?? this.#fail(describeType(type), json);
    }
    if (type === 'bytes') {
      const bytes = typeof json === 'string' ? decodeBase64(json) : undefined;
      return bytes ?? this.#fail('bytes in base64', json);
    }
    const wanted = type === 'bool' ? 'boolean' : 'string';
    return typeof json === wanted ? json : this.#fail(describeType(type), json);
  }

  *#pause(): SlicedWork<void> {
    this.#untilPause--;
    if (this.#untilPause > 0) return;
    this.#untilPause = SLICE;
    yield;
  }

  #enter(part: string | number): void {
    this.#path.push(part);
    if (this.#path.depth > PATH_DEPTH_MAX) {
      this.#throw(`nested more than ${PATH_DEPTH_MAX} levels deep`);
    }
  }

  #fail(expected: string, json: unknown): never {
    this.#throw(`expected ${expected}, got ${describeValue(json)}`);
  }

  #throw(problem: string): never {
    const place = `${this.#path}`;
    throw new CubeError(
      'INVALID_ARGUMENT',
      `${this.#source}${place === '' ? '' : `: ${place}`}: ${problem}`,
    );
  }
}

/** Numbers may be text, which is how 64-bit integers and infinite numbers come. */
function readNumber(type: ArrayType, json: unknown): unknown {
  if (typeof json !== 'string') return json;
  if (type === 'float' || type === 'double') {
    const isNumber = /^-?(\d+(\.\d+)?([eE][+-]?\d+)?|Infinity)$|^NaN$/.test(json);
    return isNumber ? Number(json) : undefined;
  }
  return /^-?\d{1,20}$/.test(json) ? BigInt(json) : undefined;
}

function decodeBase64(text: string): Uint8Array | undefined {
  if (!BASE64.test(text)) return undefined;
  try {
    const bytes = atob(text.replaceAll('-', '+').replaceAll('_', '/'));
    return Uint8Array.from(bytes, (char) => char.charCodeAt(0));
  } catch {
    return undefined;
  }
}

/** @throws CubeError INVALID_ARGUMENT naming the field whose value does not fit */
export function formatMessage(type: MessageType, values: object): string {
  return JSON.stringify(toJson(type, checkMessage(type, values)));
}

function toJson({ fields }: MessageType, values: MessageValues): object {
  const named = fields.flatMap((field): [string, unknown][] => {
    if (!Object.hasOwn(values, field.name)) return [];
    return [[field.name, toJsonField(field, values[field.name])]];
  });
  return Object.fromEntries(named);
}

function toJsonField({ kind, type }: MessageField, value: unknown): unknown {
  if (kind === 'single') return toJsonValue(type, value);
  if (kind === 'map') {
    const entries = [...(value as ReadonlyMap<unknown, unknown>)];
    return Object.fromEntries(entries.map(([key, item]) => [String(key), toJsonValue(type, item)]));
  }
  return Array.from(value as readonly unknown[], (item) => toJsonValue(type, item));
}

function toJsonValue(type: MessageField['type'], value: unknown): unknown {
  if (typeof type !== 'string' && type.kind === 'message') {
    return toJson(type, value as MessageValues);
  }
  if (typeof value === 'bigint') return String(value);
  if (typeof value === 'number') return Number.isFinite(value) ? value : String(value);
  return value instanceof Uint8Array ? encodeBase64(value) : value;
}

function encodeBase64(bytes: Uint8Array): string {
  let text = '';
  for (let at = 0; at < bytes.length; at += CHUNK) {
    text += String.fromCharCode(...bytes.subarray(at, at + CHUNK));
  }
  return btoa(text);
}
