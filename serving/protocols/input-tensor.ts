/**
 * An input tensor of a request: raw little-endian bytes (binary extension, gRPC) or JSON values,
 * read as floats, keys or strings. Raw FP32, FP64 and 64-bit elements are used without a copy when
 * they are aligned, which matters for large requests. Errors name the tensor and the element.
 */

import { isAscii, isUtf8 } from 'node:buffer';
import { CubeError } from '../../lib/core/errors.ts';
import { checkRowCount, LINE_CHARS_MAX } from '../../lib/core/feature-rows.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from '../../lib/core/graph-signature.ts';
import { f16ToNumber } from '../../lib/core/half-floats.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { encodeJsonElements } from '../../lib/core/json-elements.ts';
import { setKey } from '../../lib/core/keys.ts';
import { quoteInput, shortenInput } from '../../lib/core/shown-input.ts';
import type { NamedTensor } from '../../lib/core/tensor.ts';
import { ROWS_PER_REQUEST_MAX } from './request-limits.ts';

const FLOATS = ['FP32', 'FP64', 'FP16'];
const SMALL_INTEGERS = ['INT32', 'UINT32', 'INT16', 'UINT16', 'INT8', 'UINT8'];
const WIDE_INTEGERS = ['UINT64', 'INT64'];
/** Minimum and maximum of the elements of each datatype. */
const INTEGER_RANGES: Readonly<Record<string, readonly [number, number]>> = {
  INT8: [-128, 127],
  UINT8: [0, 255],
  INT16: [-32_768, 32_767],
  UINT16: [0, 65_535],
  INT32: [-(2 ** 31), 2 ** 31 - 1],
  UINT32: [0, 2 ** 32 - 1],
};
const DIMS_MAX = 16;
/** The same for rows of features. */
const ROW_DIMS_MAX = 8;
/** Maximum elements in one tensor. */
const ELEMENTS_MAX = 1 << 26;
const U64_WORDS = 2;

/** Name, datatype and shape of a tensor. */
export interface TensorHeader {
  readonly name: string;
  readonly datatype: string;
  readonly shape: readonly number[];
}

/** The tensors of a request, by name. */
export type TensorsByName = ReadonlyMap<string, InputTensor>;

export class InputTensor {
  readonly name: string;
  readonly datatype: TensorType;
  readonly shape: readonly number[];
  /** Number of elements. */
  readonly count: number;
  readonly #bytes: Uint8Array | undefined;
  readonly #values: readonly unknown[];

  private constructor(
    { name, datatype, shape }: TensorHeader,
    bytes: Uint8Array | undefined,
    values: readonly unknown[],
  ) {
    this.name = name;
    if (!Object.hasOwn(TENSOR_TYPE_BYTES, datatype)) {
      this.fail(
        `datatype: expected one of ${Object.keys(TENSOR_TYPE_BYTES)}, got ${quoteName(datatype)}`,
      );
    }
    this.datatype = datatype as TensorType;
    this.shape = shape;
    this.count = this.#checkShape();
    this.#bytes = bytes;
    this.#values = values;
  }

  /**
   * @param bytes elements; each BYTES element follows its u32 length @throws CubeError
   *   INVALID_ARGUMENT
   */
  static fromBytes(head: TensorHeader, bytes: Uint8Array): InputTensor {
    const tensor = new InputTensor(head, bytes, []);
    const size = TENSOR_TYPE_BYTES[tensor.datatype];
    if (size > 0 && bytes.length !== tensor.count * size) {
      const expected = `${tensor.count} values of ${size} bytes (shape [${tensor.shape}])`;
      tensor.fail(`data: expected ${expected}, got ${bytes.length} bytes`);
    }
    return tensor;
  }

  /** @param data flat or nested values @throws CubeError INVALID_ARGUMENT */
  static fromJson(head: TensorHeader, data: JsonReader): InputTensor {
    const { value } = data;
    if (!Array.isArray(value)) data.fail('an array');
    const values = value.some(Array.isArray) ? flatten(value) : value;
    const tensor = new InputTensor(head, undefined, values);
    const { datatype } = tensor;
    if (datatype === 'FP16' || datatype === 'BF16') {
      tensor.fail(`${datatype} is not supported in JSON: send binary data`);
    }
    if (values.length !== tensor.count) {
      tensor.fail(
        `data: expected ${tensor.count} values (shape [${tensor.shape}]), got ${values.length}`,
      );
    }
    return tensor;
  }

  /** Of raw elements; undefined for JSON values. */
  get byteLength(): number | undefined {
    return this.#bytes?.length;
  }

  /** The first dim. */
  get rowCount(): number {
    return this.shape[0] ?? 1;
  }

  /** Elements per row. */
  get columns(): number {
    return this.shape.slice(1).reduce((product, dim) => product * dim, 1);
  }

  /** @throws CubeError INVALID_ARGUMENT with the tensor's name and `problem` */
  fail(problem: string): never {
    throw new CubeError('INVALID_ARGUMENT', `input ${quoteName(this.name)}: ${problem}`);
  }

  /** Reads numbers. NaN (in JSON also null) is a missing value and stays NaN. */
  floats(): Float32Array | Float64Array {
    const { datatype } = this;
    if (!FLOATS.includes(datatype) && !SMALL_INTEGERS.includes(datatype)) {
      return this.#failDatatype(['FP32', 'FP64', 'FP16', ...SMALL_INTEGERS]);
    }
    if (this.#bytes === undefined) return this.#jsonFloats();
    if (datatype === 'FP32') return viewElements(this.#bytes, Float32Array);
    if (datatype === 'FP64') return viewElements(this.#bytes, Float64Array);
    const elements = this.#smallElements(this.#bytes);
    if (datatype !== 'FP16') return Float64Array.from(elements);
    return Float64Array.from(elements, f16ToNumber);
  }

  /**
   * Integers of 64 bits as words (low, high), those below zero in two's complement. BYTES are
   * decimal numbers.
   */
  keys(): Uint32Array {
    const { datatype } = this;
    if (this.#bytes === undefined || datatype === 'BYTES') return this.#writtenKeys();
    if (WIDE_INTEGERS.includes(datatype)) return viewElements(this.#bytes, Uint32Array);
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

  /** Reads UTF-8 strings; null in JSON is the empty string. */
  strings(): readonly string[] {
    if (this.datatype !== 'BYTES') return this.#failDatatype(['BYTES']);
    if (this.#bytes !== undefined) return this.#splitStrings(this.#bytes);
    return this.#values.map((value, i) => {
      if (value === null) return '';
      if (typeof value === 'string' && value.length <= LINE_CHARS_MAX) return value;
      return this.#at(i).fail(`a string of at most ${LINE_CHARS_MAX} characters, or null`);
    });
  }

  /** Checks that the tensor has rows. @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
  checkRows(): void {
    const { shape } = this;
    if (shape.length < 1 || shape.length > ROW_DIMS_MAX) {
      this.fail(`shape: expected 1 to ${ROW_DIMS_MAX} dims, got ${shape.length}`);
    }
    // A tensor with one dim may be a list of ids, whose length is independent of the row count.
    if (shape.length === 1) return;
    if (this.rowCount === 0) this.fail('shape[0]: expected an integer ≥ 1, got 0');
    checkRowCount(this.rowCount, ROWS_PER_REQUEST_MAX);
  }

  /** The elements as they are, for a plain model. @throws CubeError INVALID_ARGUMENT */
  toTensor(): NamedTensor {
    const { name, datatype: dataType, shape } = this;
    if (dataType === 'BYTES') return { name, dataType, shape, data: this.strings() };
    if (this.#bytes === undefined) {
      const data = encodeJsonElements(dataType, this.#values, (i) => this.#at(i));
      return { name, dataType, shape, data };
    }
    const wrong = dataType === 'BOOL' ? this.#bytes.findIndex((byte) => byte > 1) : -1;
    if (wrong >= 0) this.fail(`value ${wrong}: expected 0 or 1, got ${this.#bytes[wrong]}`);
    return { name, dataType, shape, data: this.#bytes };
  }

  #checkShape(): number {
    const { shape } = this;
    if (shape.length > DIMS_MAX) {
      this.fail(`shape: expected at most ${DIMS_MAX} dims, got ${shape.length}`);
    }
    let count = 1;
    shape.forEach((dim, i) => {
      if (!Number.isSafeInteger(dim) || dim < 0) {
        this.fail(`shape[${i}]: expected an integer ≥ 0, got ${dim}`);
      }
      count *= dim;
    });
    if (count > ELEMENTS_MAX) this.fail(`shape: over ${ELEMENTS_MAX} elements`);
    return count;
  }

  #jsonFloats(): Float64Array {
    const range = INTEGER_RANGES[this.datatype];
    const floats = new Float64Array(this.count);
    this.#values.forEach((value, i) => {
      if (range !== undefined) floats[i] = this.#at(i).integer(...range);
      else if (value === null) floats[i] = Number.NaN;
      else if (typeof value === 'number' && Math.abs(value) !== Number.POSITIVE_INFINITY) {
        floats[i] = value;
      } else this.#at(i).fail('a finite number, or null or NaN for a missing value');
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
    // The length prefixes are ASCII too while they are below 128.
    const isPlainAscii = isAscii(buffer);
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
      if (isPlainAscii) strings[i] = buffer.toString('latin1', start, at);
      else if (isUtf8(buffer.subarray(start, at))) strings[i] = buffer.toString('utf8', start, at);
      else this.fail(`value ${i}: not UTF-8 text`);
    }
    if (at !== buffer.length) {
      this.fail(`data: ${buffer.length - at} bytes after the ${this.count} values of its shape`);
    }
    return strings;
  }

  #smallElements(bytes: Uint8Array): ArrayLike<number> & Iterable<number> {
    const { datatype } = this;
    if (datatype === 'INT32') return viewElements(bytes, Int32Array);
    if (datatype === 'UINT32') return viewElements(bytes, Uint32Array);
    if (datatype === 'INT16') return viewElements(bytes, Int16Array);
    if (datatype === 'INT8') return viewElements(bytes, Int8Array);
    if (datatype === 'UINT8') return bytes;
    return viewElements(bytes, Uint16Array);
  }

  #at(i: number, value: unknown = this.#values[i]): JsonReader {
    return JsonReader.of(value, `input ${shortenInput(this.name)}, value ${i}`);
  }

  #failTruncated(i: number, bytes: Uint8Array): never {
    this.fail(
      `data: its ${bytes.length} bytes end within value ${i} of ${this.count} (each BYTES ` +
        'value has its length before it, as u32)',
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

/** As `flat(DIMS_MAX)`, which is several times slower. */
function flatten(nested: readonly unknown[], depth = 0, values: unknown[] = []): unknown[] {
  for (const item of nested) {
    if (Array.isArray(item) && depth < DIMS_MAX) flatten(item, depth + 1, values);
    else values.push(item);
  }
  return values;
}

/** Views bytes as elements; copies them first when they are not aligned. */
export function viewElements<T>(bytes: Uint8Array, type: Elements<T>): T {
  const size = type.BYTES_PER_ELEMENT;
  const source = bytes.byteOffset % size === 0 ? bytes : Uint8Array.from(bytes);
  return new type(source.buffer, source.byteOffset, source.length / size);
}

function quoteName(name: string): string {
  return quoteInput(name);
}
