/**
 * Messages of users' own `.proto` files: the types that the codecs (message-decoder.ts,
 * message-encoder.ts, message-json.ts) follow, and the values that they read and write.
 *
 * A message is an object with the field names of the `.proto` file:
 * - 64-bit integers are bigints, enums the names of their values, bytes a `Uint8Array`;
 * - a repeated number is a typed array (`bool` and enums: an array), a map is a `Map`;
 * - a field without a value is its default; `optional` fields, messages and members of a oneof are
 *   absent instead.
 */
export type ScalarType =
  | 'double'
  | 'float'
  | 'int32'
  | 'int64'
  | 'uint32'
  | 'uint64'
  | 'sint32'
  | 'sint64'
  | 'fixed32'
  | 'fixed64'
  | 'sfixed32'
  | 'sfixed64'
  | 'bool'
  | 'string'
  | 'bytes';

export interface EnumType {
  readonly kind: 'enum';
  readonly name: string;
  readonly numbers: ReadonlyMap<string, number>;
  /** The first name of each number. */
  readonly names: ReadonlyMap<number, string>;
}

export interface MessageType {
  readonly kind: 'message';
  /** Full name, as `demo.EchoRequest`. */
  readonly name: string;
  readonly fields: readonly MessageField[];
  readonly byNumber: ReadonlyMap<number, MessageField>;
  /** By name and by camelCase name. */
  readonly byName: ReadonlyMap<string, MessageField>;
}

export interface MessageField {
  readonly name: string;
  readonly number: number;
  readonly type: ScalarType | EnumType | MessageType;
  readonly kind: 'single' | 'repeated' | 'map';
  /** The type of the keys of a map. */
  readonly keyType?: ScalarType | undefined;
  readonly isRequired: boolean;
  readonly isPacked: boolean;
  /** Without a value the field is absent, unless it has a default. */
  readonly hasPresence: boolean;
  /** The default of a single field without presence, or the one that the `.proto` file says. */
  readonly fallback: unknown;
  /** The oneof that the field belongs to. */
  readonly oneof?: string | undefined;
}

/** A decoded message. */
export type MessageValues = Record<string, unknown>;

export interface ServiceMethod {
  readonly name: string;
  readonly request: MessageType;
  readonly response: MessageType;
}

export interface MessageService {
  /** As `demo.EchoService`. */
  readonly name: string;
  /** Without its package. */
  readonly shortName: string;
  readonly methods: readonly ServiceMethod[];
}

/** Numbers of these types are kept in typed arrays. */
export type ArrayType = Exclude<ScalarType, 'bool' | 'string' | 'bytes'>;

export type NumericArray =
  | Float64Array
  | Float32Array
  | Int32Array
  | Uint32Array
  | BigInt64Array
  | BigUint64Array;

interface NumericArrayClass {
  readonly BYTES_PER_ELEMENT: number;
  new (length: number): NumericArray;
  new (buffer: ArrayBuffer, byteOffset?: number, length?: number): NumericArray;
}

export const ARRAY_CLASSES: Readonly<Record<ArrayType, NumericArrayClass>> = {
  double: Float64Array,
  float: Float32Array,
  int32: Int32Array,
  sint32: Int32Array,
  sfixed32: Int32Array,
  uint32: Uint32Array,
  fixed32: Uint32Array,
  int64: BigInt64Array,
  sint64: BigInt64Array,
  sfixed64: BigInt64Array,
  uint64: BigUint64Array,
  fixed64: BigUint64Array,
};

export function isArrayType(type: MessageField['type']): type is ArrayType {
  return typeof type === 'string' && Object.hasOwn(ARRAY_CLASSES, type);
}

/** A message that comes in parts has the items of all of them. */
export function joinNumbers(before: NumericArray, after: NumericArray): NumericArray {
  if (before.length === 0) return after;
  const joined = new (before.constructor as new (length: number) => Float64Array)(
    before.length + after.length,
  );
  joined.set(before as Float64Array);
  joined.set(after as Float64Array, before.length);
  return joined;
}

/** The values of a message without any field. */
export function createValues({ fields }: MessageType): MessageValues {
  const values: MessageValues = {};
  for (const { name, kind, type, fallback, hasPresence } of fields) {
    if (kind === 'map') values[name] = new Map();
    else if (kind === 'repeated')
      values[name] = isArrayType(type) ? new ARRAY_CLASSES[type](0) : [];
    else if (!hasPresence || fallback !== undefined) values[name] = fallback;
  }
  return values;
}

/** Where a value is in its message, for errors: `instances[3].ids`. */
export class FieldPath {
  readonly #parts: (string | number)[] = [];

  push(part: string | number): void {
    this.#parts.push(part);
  }

  pop(): void {
    this.#parts.pop();
  }

  get depth(): number {
    return this.#parts.length;
  }

  toString(): string {
    let text = '';
    for (const part of this.#parts) {
      if (typeof part === 'number') text += `[${part}]`;
      else text += text === '' ? part : `.${part}`;
    }
    return text;
  }
}

/** Fields and list positions around a value. */
export const PATH_DEPTH_MAX = 128;
