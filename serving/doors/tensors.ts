/**
 * A tensor as a request brings it: its elements as raw little-endian bytes (binary extension, gRPC) or as JSON values, read as
 * floats, keys or strings as the model wants them. Raw FP32, FP64 and 64-bit elements are used where they lie when their
 * alignment permits: the way of large requests. Errors name the tensor and the element.
 */
import { isAscii, isUtf8 } from 'node:buffer';
import { CubeError } from '../../lib/core/errors.ts';
import { checkRowCount } from '../../lib/core/feature-rows.ts';
import { LINE_CHARS_MAX } from '../../lib/core/features.ts';
import { f16ToNumber } from '../../lib/core/half-floats.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { setKey } from '../../lib/core/keys.ts';
import { DATATYPE_BYTES, type Datatype } from '../../proto/oip.ts';
import { ROWS_PER_REQUEST_MAX } from '../serving-limits.ts';

const FLOATS = ['FP32', 'FP64', 'FP16'];
const SMALL_INTEGERS = ['INT32', 'UINT32', 'INT16', 'UINT16', 'INT8', 'UINT8'];
const WIDE_INTEGERS = ['UINT64', 'INT64'];
/** What an element may be, both ends included. */
const INTEGER_RANGES: Readonly<Record<string, readonly [number, number]>> = {
  ...{ INT8: [-128, 127], UINT8: [0, 255], INT16: [-32_768, 32_767], UINT16: [0, 65_535] },
  ...{ INT32: [-(2 ** 31), 2 ** 31 - 1], UINT32: [0, 2 ** 32 - 1] },
};
const DIMS_MAX = 8;
/** Of one tensor. A row of the largest request may have so many times fewer. */
const ELEMENTS_MAX = 1 << 26;
const U64_WORDS = 2;

/** What a request says of a tensor. */
export interface TensorHead {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
}

/** Of a request, by their names. */
export type Tensors = ReadonlyMap<string, InputTensor>;

export class InputTensor {
  readonly name: string;
  readonly datatype: Datatype;
  readonly shape: readonly number[];
  /** Elements. */
  readonly count: number;
  readonly #bytes: Uint8Array | undefined;
  readonly #values: readonly unknown[];

  private constructor(
    { name, datatype, shape }: TensorHead,
    bytes: Uint8Array | undefined,
    values: readonly unknown[],
  ) {
    this.name = name;
    if (!Object.hasOwn(DATATYPE_BYTES, datatype)) {
      this.fail(`datatype: expected one of ${Object.keys(DATATYPE_BYTES)}, got ${show(datatype)}`);
    }
    this.datatype = datatype as Datatype;
    this.shape = shape;
    this.count = this.#checkShape();
    this.#bytes = bytes;
    this.#values = values;
  }

  /** @param bytes elements, of BYTES each with a u32 length before it @throws CubeError INVALID_ARGUMENT */
  static ofBytes(head: TensorHead, bytes: Uint8Array): InputTensor {
    const tensor = new InputTensor(head, bytes, []);
    const size = DATATYPE_BYTES[tensor.datatype];
    if (size > 0 && bytes.length !== tensor.count * size) {
      const wanted = `${tensor.count} values of ${size} bytes (shape [${tensor.shape}])`;
      tensor.fail(`data: expected ${wanted}, got ${bytes.length} bytes`);
    }
    return tensor;
  }

  /** @param data flat or nested @throws CubeError INVALID_ARGUMENT */
  static ofJson(head: TensorHead, data: JsonReader): InputTensor {
    const { value } = data;
    if (!Array.isArray(value)) data.fail('an array');
    const values = value.some(Array.isArray) ? value.flat(DIMS_MAX) : value;
    const tensor = new InputTensor(head, undefined, values);
    if (tensor.datatype === 'FP16') {
      tensor.fail('FP16 has no form in JSON: send it as binary data, or as FP32');
    }
    if (values.length !== tensor.count) {
      tensor.fail(
        `data: expected ${tensor.count} values (shape [${tensor.shape}]), got ${values.length}`,
      );
    }
    return tensor;
  }

  /** Rows: the first dim. */
  get rowCount(): number {
    return this.shape[0] ?? 1;
  }

  /** Elements of a row. */
  get columns(): number {
    return this.shape.slice(1).reduce((product, dim) => product * dim, 1);
  }

  /** @throws CubeError INVALID_ARGUMENT with the tensor's name before `what` */
  fail(what: string): never {
    throw new CubeError('INVALID_ARGUMENT', `input ${show(this.name)}: ${what}`);
  }

  /** Any numbers. NaN, null in JSON, stays NaN: a missing value. */
  floats(): Float32Array | Float64Array {
    const { datatype } = this;
    if (!FLOATS.includes(datatype) && !SMALL_INTEGERS.includes(datatype)) {
      return this.#failDatatype(['FP32', 'FP64', 'FP16', ...SMALL_INTEGERS]);
    }
    if (this.#bytes === undefined) return this.#jsonFloats();
    if (datatype === 'FP32') return aligned(this.#bytes, Float32Array);
    if (datatype === 'FP64') return aligned(this.#bytes, Float64Array);
    const elements = this.#smallElements(this.#bytes);
    if (datatype !== 'FP16') return Float64Array.from(elements);
    return Float64Array.from(elements, f16ToNumber);
  }

  /** Integers of 64 bits as words (low, high), those below zero in two's complement. BYTES are decimal numbers. */
  keys(): Uint32Array {
    const { datatype } = this;
    if (this.#bytes === undefined || datatype === 'BYTES') return this.#writtenKeys();
    if (WIDE_INTEGERS.includes(datatype)) return aligned(this.#bytes, Uint32Array);
    if (!SMALL_INTEGERS.includes(datatype)) {
      return this.#failDatatype([...WIDE_INTEGERS, ...SMALL_INTEGERS, 'BYTES']);
    }
    const words = new Uint32Array(U64_WORDS * this.count);
    let at = 0;
    for (const value of this.#smallElements(this.#bytes)) {
      words[at++] = value;
      words[at++] = value < 0 ? 0xffff_ffff : 0;
    }
    return words;
  }

  /** UTF-8 strings; null in JSON is the empty one. */
  strings(): readonly string[] {
    if (this.datatype !== 'BYTES') return this.#failDatatype(['BYTES']);
    if (this.#bytes !== undefined) return this.#splitStrings(this.#bytes);
    return this.#values.map((value, i) => {
      if (value === null) return '';
      if (typeof value === 'string' && value.length <= LINE_CHARS_MAX) return value;
      return this.#at(i).fail(`a string of at most ${LINE_CHARS_MAX} characters, or null`);
    });
  }

  #checkShape(): number {
    const { shape } = this;
    if (shape.length < 1 || shape.length > DIMS_MAX) {
      this.fail(`shape: expected 1 to ${DIMS_MAX} dims, got ${shape.length}`);
    }
    // What has one dim may be a list beside the rows, of any length.
    const isList = shape.length === 1;
    let count = 1;
    shape.forEach((dim, i) => {
      const least = i === 0 && !isList ? 1 : 0;
      if (!Number.isSafeInteger(dim) || dim < least) {
        this.fail(`shape[${i}]: expected an integer ≥ ${least}, got ${dim}`);
      }
      count *= dim;
    });
    if (!isList) checkRowCount(shape[0]!, ROWS_PER_REQUEST_MAX);
    if (count > ELEMENTS_MAX) this.fail(`shape: over ${ELEMENTS_MAX} elements`);
    return count;
  }

  #jsonFloats(): Float64Array {
    const range = INTEGER_RANGES[this.datatype];
    const floats = new Float64Array(this.count);
    this.#values.forEach((value, i) => {
      if (range !== undefined) floats[i] = this.#at(i).integer(...range);
      else if (value === null) floats[i] = Number.NaN;
      else if (typeof value === 'number' && Number.isFinite(value)) floats[i] = value;
      else this.#at(i).fail('a finite number, or null for a missing value');
    });
    return floats;
  }

  #writtenKeys(): Uint32Array {
    const { datatype } = this;
    if (![...WIDE_INTEGERS, ...SMALL_INTEGERS, 'BYTES'].includes(datatype)) {
      return this.#failDatatype([...WIDE_INTEGERS, ...SMALL_INTEGERS, 'BYTES']);
    }
    const isSigned = datatype.startsWith('INT');
    const [min, max] = INTEGER_RANGES[datatype] ?? [
      Number.NEGATIVE_INFINITY,
      Number.POSITIVE_INFINITY,
    ];
    const values = datatype === 'BYTES' ? this.strings() : this.#values;
    const keys = new Uint32Array(U64_WORDS * this.count);
    values.forEach((value, i) => {
      const field = this.#at(i, value);
      const key = isSigned ? field.i64() : field.u64();
      if (key < min || key > max) field.fail(`an integer in ${min}..${max}`);
      setKey(keys, i, BigInt.asUintN(64, key));
    });
    return keys;
  }

  #splitStrings(bytes: Uint8Array): string[] {
    const buffer = Buffer.from(bytes.buffer, bytes.byteOffset, bytes.length);
    // Lengths below 128 are ASCII too.
    const plain = isAscii(buffer);
    let at = 0;
    if (4 * this.count > bytes.length) {
      this.fail(`data: ${bytes.length} bytes cannot hold the ${this.count} values of its shape`);
    }
    const strings = new Array<string>(this.count);
    for (let i = 0; i < this.count; i++) {
      if (at + 4 > buffer.length) this.#failTruncated(i, bytes);
      const start = at + 4;
      at = start + buffer.readUInt32LE(at);
      if (at > buffer.length) this.#failTruncated(i, bytes);
      if (at - start > LINE_CHARS_MAX) {
        this.fail(`value ${i}: ${at - start} bytes, the limit is ${LINE_CHARS_MAX}`);
      }
      if (plain) strings[i] = buffer.toString('latin1', start, at);
      else if (isUtf8(buffer.subarray(start, at))) strings[i] = buffer.toString('utf8', start, at);
      else this.fail(`value ${i}: not UTF-8 text`);
    }
    if (at !== buffer.length) {
      this.fail(`data: ${buffer.length - at} bytes behind the ${this.count} values of its shape`);
    }
    return strings;
  }

  #smallElements(bytes: Uint8Array): ArrayLike<number> & Iterable<number> {
    const { datatype } = this;
    if (datatype === 'INT32') return aligned(bytes, Int32Array);
    if (datatype === 'UINT32') return aligned(bytes, Uint32Array);
    if (datatype === 'INT16') return aligned(bytes, Int16Array);
    if (datatype === 'INT8') return aligned(bytes, Int8Array);
    if (datatype === 'UINT8') return bytes;
    return aligned(bytes, Uint16Array);
  }

  #at(i: number, value: unknown = this.#values[i]): JsonReader {
    return JsonReader.of(value, `input ${this.name}, value ${i}`);
  }

  #failTruncated(i: number, bytes: Uint8Array): never {
    this.fail(
      `data: its ${bytes.length} bytes end within value ${i} of ${this.count} (each BYTES value has its length before it, as u32)`,
    );
  }

  #failDatatype(expected: readonly string[]): never {
    this.fail(`datatype: expected one of ${expected.join(', ')}, got ${this.datatype}`);
  }
}

interface Elements<T> {
  readonly BYTES_PER_ELEMENT: number;
  new (buffer: ArrayBufferLike, byteOffset: number, length: number): T;
}

/** The bytes as elements: a view where they are aligned, else of a copy. */
function aligned<T>(bytes: Uint8Array, type: Elements<T>): T {
  const size = type.BYTES_PER_ELEMENT;
  const source = bytes.byteOffset % size === 0 ? bytes : Uint8Array.from(bytes);
  return new type(source.buffer, source.byteOffset, source.length / size);
}

function show(name: string): string {
  return JSON.stringify(name.slice(0, 128));
}
