/**
 * safetensors: u64 length of the header | JSON {"<tensor>": {"dtype", "shape", "data_offsets": [begin, end]}} | bytes.
 * The tensors must cover the bytes exactly, as the format asks.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import type { ElementType } from './array-source.ts';
import { ByteReader } from './byte-reader.ts';
import { fileChunks, fileHead } from './input-file.ts';
import type { NamedArray } from './named-arrays.ts';
import type { SourceFile } from './row-source.ts';

const LENGTH_BYTES = 8;
const HEADER_BYTES_MAX = 64 << 20;
const RANK_MAX = 32;
const TYPES: Readonly<Record<string, { type: ElementType; bytes: number }>> = {
  F16: { type: 'f2', bytes: 2 },
  BF16: { type: 'bf16', bytes: 2 },
  F32: { type: 'f4', bytes: 4 },
  F64: { type: 'f8', bytes: 8 },
  I64: { type: 'i8', bytes: 8 },
  U64: { type: 'u8', bytes: 8 },
};

interface Tensor {
  readonly name: string;
  readonly dtype: string;
  readonly shape: readonly number[];
  readonly begin: number;
  readonly end: number;
}

/** @param wanted only these tensors, and keys; others may be of any type */
export function safetensorsArrays(
  file: SourceFile,
  wanted: readonly string[] | undefined,
): NamedArray[] {
  const { path } = file;
  const { dataOffset, header } = readHeader(file);
  const tensors = readTensors(header, path);
  checkCover(tensors, file.bytes - dataOffset, path);
  const isKeys = (name: string): boolean => name === 'keys' || name.endsWith('.keys');
  return tensors
    .filter(({ name }) => wanted === undefined || wanted.includes(name) || isKeys(name))
    .map(({ name, dtype, shape, begin, end }) => {
      const label = `${path}: ${name}`;
      const known = Object.hasOwn(TYPES, dtype) ? TYPES[dtype] : undefined;
      if (known === undefined) {
        const types = Object.keys(TYPES).join(', ');
        throw new CubeError('UNSUPPORTED', `${label} is ${dtype}; ${types} are read`);
      }
      const bytes = shape.reduce((product, dim) => product * dim, known.bytes);
      if (bytes !== end - begin) {
        throw damaged(label, `shape (${shape.join(', ')}) of ${dtype} in ${end - begin} bytes`);
      }
      const chunks = (): AsyncIterable<Uint8Array> =>
        fileChunks(path, dataOffset + begin, dataOffset + end);
      const open = async (): Promise<ByteReader> => new ByteReader(label, chunks());
      return { name, part: { label, type: known.type, shape, open } };
    });
}

/** Whether the first bytes may be those of such a file. */
export function looksLikeSafetensors(head: Uint8Array, fileBytes: number): boolean {
  if (head.length < LENGTH_BYTES + 1 || head[LENGTH_BYTES] !== 0x7b) return false;
  return headerBytes(head) <= fileBytes - LENGTH_BYTES;
}

function headerBytes(head: Uint8Array): number {
  return Number(new DataView(head.buffer, head.byteOffset, head.length).getBigUint64(0, true));
}

function readHeader({ path, bytes }: SourceFile): { dataOffset: number; header: JsonReader } {
  if (bytes < LENGTH_BYTES) throw damaged(path, `${bytes} bytes are no safetensors file`);
  const length = headerBytes(fileHead(path, LENGTH_BYTES));
  if (length > HEADER_BYTES_MAX || LENGTH_BYTES + length > bytes) {
    throw damaged(path, `a header of ${length} bytes in a file of ${bytes}`);
  }
  const text = new TextDecoder().decode(fileHead(path, LENGTH_BYTES + length).subarray(8));
  return { dataOffset: LENGTH_BYTES + length, header: JsonReader.parse(text, `${path}: header`) };
}

/** In the order of their bytes. */
function readTensors(header: JsonReader, path: string): Tensor[] {
  const tensors = header.entries().filter(([name]) => name !== '__metadata__');
  return tensors
    .map(([name, json]) => {
      const offsets = json.field('data_offsets').items({ min: 2, max: 2 });
      const [begin = 0, end = 0] = offsets.map((offset) => offset.integer(0));
      if (begin > end) throw damaged(`${path}: ${name}`, `offsets [${begin}, ${end}]`);
      const dims = json.field('shape').items({ max: RANK_MAX });
      const shape = dims.map((dim) => dim.integer(0));
      return { name, dtype: json.field('dtype').string(), shape, begin, end };
    })
    .sort((a, b) => a.begin - b.begin || a.end - b.end);
}

function checkCover(tensors: readonly Tensor[], dataBytes: number, path: string): void {
  let at = 0;
  for (const { name, begin, end } of tensors) {
    if (begin !== at) {
      throw damaged(`${path}: ${name}`, `begins at byte ${begin} of the data, ${at} expected`);
    }
    at = end;
  }
  if (at !== dataBytes) {
    throw damaged(path, `its tensors have ${at} bytes, ${dataBytes} follow the header`);
  }
}

function damaged(place: string, what: string): CubeError {
  return new CubeError('CORRUPT', `${place}: ${what}`);
}
