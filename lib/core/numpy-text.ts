/**
 * NumPy's text form of arrays, as Python clients of pipelines send and read it: `array([[1., 2.]],
 * dtype=float32)`. Reads also bare nested lists. Writes text that NumPy evaluates to an equal
 * array, without its line breaks and padding.
 */
import { CubeError } from './errors.ts';
import { TENSOR_TYPE_BYTES, type TensorType } from './graph-signature.ts';
import { f16ToF32Bits, f32BitsToF16 } from './half-floats.ts';
import { countElements, type Tensor } from './tensor.ts';

const RANK_MAX = 32;
const TYPES: Readonly<Record<string, TensorType>> = {
  bool: 'BOOL',
  uint8: 'UINT8',
  uint16: 'UINT16',
  uint32: 'UINT32',
  uint64: 'UINT64',
  int8: 'INT8',
  int16: 'INT16',
  int32: 'INT32',
  int64: 'INT64',
  float16: 'FP16',
  float32: 'FP32',
  float64: 'FP64',
};
const DTYPES = new Map(Object.entries(TYPES).map(([dtype, type]) => [type, dtype]));
/** Types that NumPy gives to numbers by itself, so that the text does not name them. */
const IMPLIED: readonly TensorType[] = ['INT64', 'FP64', 'BOOL', 'BYTES'];

const NUMBER = /[+-]?(?:\d+\.?\d*(?:[eE][+-]?\d+)?|\.\d+(?:[eE][+-]?\d+)?|inf|nan)/y;
const WORD = /True|False/y;
const QUOTED = /'([^'\\]*(?:\\.[^'\\]*)*)'|"([^"\\]*(?:\\.[^"\\]*)*)"/sy;
const SPACE = /\s*/y;
const DTYPE = /dtype\s*=\s*(?:'([^']*)'|"([^"]*)"|(?:np\.|numpy\.)?(\w+))/y;
const SHAPE = /shape\s*=\s*\(([\d,\s]*)\)/y;
const OPEN = /array\s*\(/y;

/** Whether a text can only be meant as an array: it begins with `array(`. */
export function isNumpyText(text: string): boolean {
  return /^\s*array\s*\(/.test(text);
}

/**
 * @param what names the text in errors
 * @param valuesMax elements at most
 * @throws CubeError INVALID_ARGUMENT with the offset, TOO_LARGE
 */
export function parseNumpyText(text: string, what: string, valuesMax: number): Tensor {
  return new NumpyReader(text, what, valuesMax).read();
}

/** Elements as their text: numbers, True and False, or strings. */
interface Elements {
  readonly items: string[];
  kind: 'number' | 'bool' | 'string' | undefined;
  isFloat: boolean;
}

class NumpyReader {
  readonly #text: string;
  readonly #what: string;
  readonly #valuesMax: number;
  readonly #elements: Elements = { items: [], kind: undefined, isFloat: false };
  #at = 0;

  constructor(text: string, what: string, valuesMax: number) {
    this.#text = text;
    this.#what = what;
    this.#valuesMax = valuesMax;
  }

  read(): Tensor {
    this.#match(SPACE);
    const isCall = this.#match(OPEN) !== null;
    let shape: readonly number[] = this.#readValue(0);
    let dtype: string | undefined;
    while (isCall && this.#take(',')) {
      const named = this.#match(DTYPE);
      if (named !== null) {
        dtype = named[1] ?? named[2] ?? named[3];
        continue;
      }
      const given = this.#match(SHAPE) ?? this.#fail('expected dtype= or shape=');
      const dims = given[1]?.split(',').map((dim) => dim.trim()) ?? [];
      shape = dims.filter((dim) => dim !== '').map(Number);
    }
    if (isCall && !this.#take(')')) this.#fail('expected )');
    this.#match(SPACE);
    if (this.#at < this.#text.length) this.#fail('expected the end');
    const count = countElements(shape);
    if (shape.length > RANK_MAX || count !== this.#elements.items.length) {
      this.#fail(`shape (${shape.join(', ')}) does not fit ${this.#elements.items.length} values`);
    }
    return this.#toTensor(shape, dtype);
  }

  /** @returns the shape of the value, whose elements are appended */
  #readValue(depth: number): number[] {
    this.#match(SPACE);
    if (!this.#take('[')) {
      this.#readElement();
      return [];
    }
    if (depth === RANK_MAX) this.#fail(`more than ${RANK_MAX} dimensions`);
    let inner: number[] | undefined;
    let count = 0;
    while (!this.#take(']')) {
      if (count > 0 && !this.#take(',')) this.#fail('expected , or ]');
      if (count > 0 && this.#take(']')) break;
      const shape = this.#readValue(depth + 1);
      if (inner !== undefined && inner.join() !== shape.join()) {
        this.#fail('the lists differ in length');
      }
      inner ??= shape;
      count++;
    }
    return [count, ...(inner ?? [])];
  }

  #readElement(): void {
    const { items } = this.#elements;
    if (items.length === this.#valuesMax) {
      throw new CubeError('TOO_LARGE', `${this.#what}: more than ${this.#valuesMax} values`);
    }
    const number = this.#match(NUMBER);
    if (number !== null) {
      this.#add('number', number[0]);
      if (/[.enai]/i.test(number[0])) this.#elements.isFloat = true;
      return;
    }
    const word = this.#match(WORD);
    if (word !== null) {
      this.#add('bool', word[0]);
      return;
    }
    const quoted = this.#match(QUOTED);
    if (quoted !== null) {
      this.#add('string', unescapePython(quoted[1] ?? quoted[2] ?? ''));
      return;
    }
    if (this.#text.startsWith('...', this.#at)) {
      this.#fail('the array is abbreviated; call numpy.set_printoptions(threshold=sys.maxsize)');
    }
    this.#fail('expected a number, True, False or a string');
  }

  #add(kind: NonNullable<Elements['kind']>, item: string): void {
    if (this.#elements.kind !== undefined && this.#elements.kind !== kind) {
      this.#fail(`${kind} among values of kind ${this.#elements.kind}`);
    }
    this.#elements.kind = kind;
    this.#elements.items.push(item);
  }

  #toTensor(shape: readonly number[], dtype: string | undefined): Tensor {
    const { items, kind, isFloat } = this.#elements;
    const isText = dtype !== undefined && /^[<>|=]?[US]\d*$|^object$|^str$/.test(dtype);
    if (kind === 'string' || isText) {
      if (kind !== 'string' && items.length > 0) this.#fail(`dtype ${dtype} of ${kind} values`);
      return { dataType: 'BYTES', shape, data: items };
    }
    const implied = kind === 'bool' ? 'bool' : isFloat || items.length === 0 ? 'float64' : 'int64';
    const name = dtype ?? implied;
    const dataType = Object.hasOwn(TYPES, name) ? TYPES[name] : undefined;
    if (dataType === undefined) this.#fail(`dtype ${JSON.stringify(name)} is not supported`);
    try {
      return { dataType, shape, data: encodeElements(dataType, items) };
    } catch (error) {
      return this.#fail(error instanceof RangeError ? error.message : 'invalid number');
    }
  }

  #match(pattern: RegExp): RegExpExecArray | null {
    pattern.lastIndex = this.#at;
    const match = pattern.exec(this.#text);
    if (match !== null) this.#at = pattern.lastIndex;
    return match;
  }

  /** Consumes a character, with the spaces around it. */
  #take(character: string): boolean {
    this.#match(SPACE);
    if (this.#text[this.#at] !== character) return false;
    this.#at++;
    this.#match(SPACE);
    return true;
  }

  #fail(problem: string): never {
    const text = `not an array in NumPy's text form: at offset ${this.#at}: ${problem}`;
    throw new CubeError('INVALID_ARGUMENT', `${this.#what}: ${text}`);
  }
}

function unescapePython(text: string): string {
  return text.replaceAll(/\\(?:x([0-9a-f]{2})|u([0-9a-f]{4})|(.))/gs, (_, x, u, one: string) => {
    if (x !== undefined || u !== undefined) return String.fromCharCode(Number.parseInt(x ?? u, 16));
    return { n: '\n', t: '\t', r: '\r' }[one] ?? one;
  });
}

/** @throws RangeError for a value outside of the type */
function encodeElements(dataType: TensorType, items: readonly string[]): Uint8Array {
  const size = TENSOR_TYPE_BYTES[dataType as Exclude<TensorType, 'BYTES'>];
  const bytes = new Uint8Array(items.length * size);
  const view = new DataView(bytes.buffer);
  for (const [i, item] of items.entries()) writeElement(view, i * size, dataType, item);
  return bytes;
}

function writeElement(view: DataView, at: number, dataType: TensorType, item: string): void {
  if (dataType === 'INT64' || dataType === 'UINT64') {
    const value = BigInt(item.startsWith('+') ? item.slice(1) : item);
    const fitted = dataType === 'INT64' ? BigInt.asIntN(64, value) : BigInt.asUintN(64, value);
    if (fitted !== value) throw new RangeError(`${item} does not fit ${dataType}`);
    view.setBigUint64(at, BigInt.asUintN(64, value), true);
    return;
  }
  const value = toNumber(item);
  if (dataType === 'FP64') view.setFloat64(at, value, true);
  else if (dataType === 'FP32') view.setFloat32(at, value, true);
  else if (dataType === 'FP16') {
    const bits = new Uint32Array(Float32Array.of(value).buffer)[0] ?? 0;
    view.setUint16(at, f32BitsToF16(bits), true);
  } else writeInteger(view, at, dataType, value);
}

/** The values of integers that fit a double. */
const INTEGERS: Readonly<Record<string, readonly [min: number, max: number]>> = {
  BOOL: [0, 1],
  INT8: [-128, 127],
  UINT8: [0, 255],
  INT16: [-32_768, 32_767],
  UINT16: [0, 65_535],
  INT32: [-(2 ** 31), 2 ** 31 - 1],
  UINT32: [0, 2 ** 32 - 1],
};

function writeInteger(view: DataView, at: number, dataType: TensorType, value: number): void {
  const [min, max] = INTEGERS[dataType] ?? [0, -1];
  if (!Number.isInteger(value) || value < min || value > max) {
    throw new RangeError(`${value} does not fit ${dataType}`);
  }
  const size = TENSOR_TYPE_BYTES[dataType as Exclude<TensorType, 'BYTES'>];
  if (size === 1) view.setUint8(at, value);
  else if (size === 2) view.setUint16(at, value, true);
  else view.setUint32(at, value, true);
}

function toNumber(item: string): number {
  if (item === 'True' || item === 'False') return item === 'True' ? 1 : 0;
  const text = item
    .replace('inf', 'Infinity')
    .replace('nan', 'NaN')
    .replace(/^[+-]NaN/, 'NaN');
  return Number(text);
}

/** @throws CubeError UNSUPPORTED for BF16, which NumPy does not know */
export function formatNumpyText({ dataType, shape, data }: Tensor): string {
  if (dataType === 'BF16') {
    throw new CubeError('UNSUPPORTED', 'NumPy has no BF16; convert the tensor to FP32');
  }
  const count = countElements(shape);
  const read = createElementReader(dataType, data);
  let next = 0;
  const format = (depth: number): string => {
    if (depth === shape.length) return read(next++);
    return `[${Array.from({ length: shape[depth] ?? 0 }, () => format(depth + 1)).join(', ')}]`;
  };
  const dtype = dataType === 'BYTES' ? 'object' : (DTYPES.get(dataType) ?? '');
  if (count === 0) {
    const dims = shape.length === 1 ? `${shape[0]},` : shape.join(', ');
    return `array([], shape=(${dims}), dtype=${dtype})`;
  }
  return IMPLIED.includes(dataType) ? `array(${format(0)})` : `array(${format(0)}, dtype=${dtype})`;
}

function createElementReader(
  dataType: TensorType,
  data: Tensor['data'],
): (index: number) => string {
  if (!(data instanceof Uint8Array)) return (index) => quote(data[index] ?? '');
  const view = new DataView(data.buffer, data.byteOffset, data.byteLength);
  switch (dataType) {
    case 'BOOL':
      return (i) => (view.getUint8(i) === 0 ? 'False' : 'True');
    case 'UINT8':
      return (i) => `${view.getUint8(i)}`;
    case 'INT8':
      return (i) => `${view.getInt8(i)}`;
    case 'UINT16':
      return (i) => `${view.getUint16(2 * i, true)}`;
    case 'INT16':
      return (i) => `${view.getInt16(2 * i, true)}`;
    case 'UINT32':
      return (i) => `${view.getUint32(4 * i, true)}`;
    case 'INT32':
      return (i) => `${view.getInt32(4 * i, true)}`;
    case 'UINT64':
      return (i) => `${view.getBigUint64(8 * i, true)}`;
    case 'INT64':
      return (i) => `${view.getBigInt64(8 * i, true)}`;
    case 'FP16':
      return (i) => {
        const bits = Uint32Array.of(f16ToF32Bits(view.getUint16(2 * i, true)));
        return formatFloat(new Float32Array(bits.buffer)[0] ?? 0, true);
      };
    case 'FP32':
      return (i) => formatFloat(view.getFloat32(4 * i, true), true);
    default:
      return (i) => formatFloat(view.getFloat64(8 * i, true), false);
  }
}

/** The shortest text that reads back as the same number, with a point as NumPy writes it. */
function formatFloat(value: number, isSingle: boolean): string {
  if (Number.isNaN(value)) return 'nan';
  if (!Number.isFinite(value)) return value > 0 ? 'inf' : '-inf';
  if (Object.is(value, -0)) return '-0.';
  const text = isSingle ? formatSingle(value) : String(value);
  return /[.e]/.test(text) ? text : `${text}.`;
}

function formatSingle(value: number): string {
  for (let digits = 1; digits < 9; digits++) {
    const number = Number(value.toPrecision(digits));
    if (Math.fround(number) === value) return String(number);
  }
  return String(Number(value.toPrecision(9)));
}

/** As a Python string. */
function quote(text: string): string {
  const escaped = text.replaceAll(/[\\'\n\r\t]/g, (character) => {
    return { '\n': '\\n', '\r': '\\r', '\t': '\\t' }[character] ?? `\\${character}`;
  });
  return `'${escaped}'`;
}
