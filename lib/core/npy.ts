/**
 * NumPy's `.npy` files, format versions 1 and 2: a header with element type and shape, then the
 * elements. Supported are little-endian `f2`, `f4`, `f8` (float16, 32, 64), `i8` (int64) and `u8`
 * (uint64) in C order; others are refused by name. A file must have exactly the length that its
 * header implies. Source of the format: numpy.lib.format.
 */
import { CubeError } from './errors.ts';

interface NpyArrays {
  /** Bits of the numbers: Node 20 has no Float16Array. */
  f2: Uint16Array;
  f4: Float32Array;
  f8: Float64Array;
  i8: BigInt64Array;
  u8: BigUint64Array;
}

export type NpyDtype = keyof NpyArrays;

const ITEM_BYTES: Readonly<Record<NpyDtype, number>> = { f2: 2, f4: 4, f8: 8, i8: 8, u8: 8 };
const MAGIC = [0x93, 0x4e, 0x55, 0x4d, 0x50, 0x59];
/** Alignment of the data, so that a reader may map it. */
const ALIGNMENT = 64;
/** NumPy's own limit on headers; bounds what is read before the shape is known. */
export const NPY_HEADER_BYTES_MAX = 10_000;
const RANK_MAX = 32;

export interface NpyHeader {
  readonly dtype: NpyDtype;
  readonly shape: readonly number[];
  /** Offset of the elements. */
  readonly dataOffset: number;
  readonly dataBytes: number;
}

export type NpyArray = {
  [D in NpyDtype]: {
    readonly dtype: D;
    readonly shape: readonly number[];
    readonly data: NpyArrays[D];
  };
}[NpyDtype];

/** Encodes the header of an array. The elements follow, little-endian and row-major. */
export function encodeNpyHeader(dtype: NpyDtype, shape: readonly number[]): Uint8Array {
  const dims = shape.length === 1 ? `${shape[0]},` : shape.join(', ');
  const text = `{'descr': '<${dtype}', 'fortran_order': False, 'shape': (${dims}), }`;
  const bytes = Math.ceil((10 + text.length + 1) / ALIGNMENT) * ALIGNMENT;
  const header = new Uint8Array(bytes).fill(0x20);
  header.set([...MAGIC, 1, 0]);
  new DataView(header.buffer).setUint16(8, bytes - 10, true);
  header.set(new TextEncoder().encode(text), 10);
  header[bytes - 1] = 0x0a;
  return header;
}

/**
 * @param bytes the file, or its first NPY_HEADER_BYTES_MAX bytes
 * @param fileBytes length of the whole file; undefined for a stream, whose reader finds its end
 * @param source name of the file in errors
 * @throws CubeError CORRUPT for damaged bytes, UNSUPPORTED for arrays of another kind
 */
export function decodeNpyHeader(
  bytes: Uint8Array,
  fileBytes: number | undefined,
  source: string,
): NpyHeader {
  const fields = readNpyHeader(bytes, source);
  const { dataOffset } = fields;
  const dtype = checkDtype(fields.descr, source);
  if (fields.fortranOrder) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: the array is in Fortran order; save it with numpy.ascontiguousarray`,
    );
  }
  const dataBytes = fields.shape.reduce((product, dim) => product * dim, ITEM_BYTES[dtype]);
  const found = fileBytes === undefined ? dataBytes : fileBytes - dataOffset;
  if (dataBytes !== found) {
    const shape = `(${fields.shape.join(', ')})`;
    const what = found < dataBytes ? 'is truncated' : 'has bytes after its end';
    throw new CubeError(
      'CORRUPT',
      `${source} ${what}: shape ${shape} of ${dtype} needs ${dataBytes} bytes, ` +
        `${found} follow the header`,
    );
  }
  return { dtype, shape: fields.shape, dataOffset, dataBytes };
}

/** The header of an array of any type. @throws CubeError CORRUPT, UNSUPPORTED */
export function readNpyHeader(
  bytes: Uint8Array,
  source: string,
): HeaderFields & { readonly dataOffset: number } {
  const { text, dataOffset } = headerText(bytes, source);
  return { ...parseHeaderText(text, source), dataOffset };
}

/**
 * Decodes a whole file. The data is a view of `bytes` where its alignment allows, otherwise a copy.
 */
export function decodeNpy(bytes: Uint8Array, source: string): NpyArray {
  const { dtype, shape, dataOffset, dataBytes } = decodeNpyHeader(bytes, bytes.length, source);
  const itemBytes = ITEM_BYTES[dtype];
  let data = bytes.subarray(dataOffset);
  if (data.byteOffset % itemBytes !== 0) data = data.slice();
  const { buffer, byteOffset } = data;
  const length = dataBytes / itemBytes;
  if (dtype === 'f2') return { dtype, shape, data: new Uint16Array(buffer, byteOffset, length) };
  if (dtype === 'f4') return { dtype, shape, data: new Float32Array(buffer, byteOffset, length) };
  if (dtype === 'f8') return { dtype, shape, data: new Float64Array(buffer, byteOffset, length) };
  if (dtype === 'i8') return { dtype, shape, data: new BigInt64Array(buffer, byteOffset, length) };
  return { dtype, shape, data: new BigUint64Array(buffer, byteOffset, length) };
}

function headerText(bytes: Uint8Array, source: string): { text: string; dataOffset: number } {
  if (MAGIC.some((byte, i) => bytes[i] !== byte)) {
    throw new CubeError(
      'CORRUPT',
      `${source} is not a .npy file: it does not begin with \\x93NUMPY`,
    );
  }
  const version = bytes[6];
  if (version !== undefined && version !== 1 && version !== 2) {
    throw new CubeError(
      'UNSUPPORTED',
      `${source}: .npy format version ${version}, known are 1 and 2`,
    );
  }
  const lengthBytes = version === 2 ? 4 : 2;
  const textOffset = 8 + lengthBytes;
  if (bytes.length < textOffset) throw truncatedHeader(source, bytes.length);
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.length);
  const length = version === 2 ? view.getUint32(8, true) : view.getUint16(8, true);
  const dataOffset = textOffset + length;
  if (dataOffset > NPY_HEADER_BYTES_MAX) {
    throw new CubeError(
      'CORRUPT',
      `${source}: a header of ${dataOffset} bytes, at most ${NPY_HEADER_BYTES_MAX} are supported`,
    );
  }
  if (bytes.length < dataOffset) throw truncatedHeader(source, bytes.length);
  const text = String.fromCharCode(...bytes.subarray(textOffset, dataOffset));
  return { text, dataOffset };
}

function truncatedHeader(source: string, length: number): CubeError {
  return new CubeError(
    'CORRUPT',
    `${source} is truncated: it ends at byte ${length}, in its header`,
  );
}

interface HeaderFields {
  /** Byte order and type, as `<f4`. */
  readonly descr: string;
  readonly fortranOrder: boolean;
  readonly shape: readonly number[];
}

/** An entry of the dict: a name, then a string, a bool, a tuple of integers or a list. */
const ENTRY = new RegExp(
  String.raw`\s*(['"])(\w+)\1\s*:\s*` +
    String.raw`(?:(['"])([^'"]*)\3|(True|False)|\(([\d,\sL]*)\)|(\[[^{}]*\]))\s*(?:,|(?=\}))`,
  'y',
);

/** Reads the Python dict literal of a header: three entries, in any order. */
function parseHeaderText(text: string, source: string): HeaderFields {
  const damaged = (): never => {
    const shown = JSON.stringify(text.length > 80 ? `${text.slice(0, 77)}...` : text);
    throw new CubeError('CORRUPT', `${source}: the header is not a .npy header: ${shown}`);
  };
  const body = text.trim();
  if (!body.startsWith('{') || !body.endsWith('}')) damaged();
  const entries = new Map<string, RegExpExecArray>();
  ENTRY.lastIndex = 1;
  while (!/^\s*\}$/.test(body.slice(ENTRY.lastIndex))) {
    const match = ENTRY.exec(body) ?? damaged();
    const name = match[2] ?? '';
    if (entries.has(name)) damaged();
    entries.set(name, match);
  }
  const descr = entries.get('descr');
  const order = entries.get('fortran_order')?.[5];
  const shapeText = entries.get('shape')?.[6];
  if (descr === undefined || order === undefined || shapeText === undefined) {
    return damaged();
  }
  if (entries.size !== 3) damaged();
  const dims = shapeText.split(',').map((dim) => dim.trim());
  if (dims.at(-1) === '') dims.pop();
  const shape = dims.map((dim) => (/^\d+L?$/.test(dim) ? Number.parseInt(dim, 10) : damaged()));
  if (shape.length > RANK_MAX || !shape.every(Number.isSafeInteger)) damaged();
  return { descr: descr[4] ?? descr[7] ?? '', fortranOrder: order === 'True', shape };
}

function checkDtype(descr: string, source: string): NpyDtype {
  const dtype = descr.startsWith('<') ? descr.slice(1) : '';
  if (Object.hasOwn(ITEM_BYTES, dtype)) return dtype as NpyDtype;
  const bigEndian = descr.startsWith('>') ? ' (big-endian)' : '';
  throw new CubeError(
    'UNSUPPORTED',
    `${source}: elements of type ${JSON.stringify(descr)}${bigEndian}; supported are ` +
      Object.keys(ITEM_BYTES)
        .map((known) => `"<${known}"`)
        .join(', '),
  );
}
