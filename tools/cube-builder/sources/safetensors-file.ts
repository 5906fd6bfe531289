/**
 * Reads safetensors: u64 header length | JSON header | data. The header is
 * {"<tensor>": {"dtype", "shape", "data_offsets": [begin, end]}}. As the format requires, the
 * tensors must cover the data exactly.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { JsonReader } from '../../../lib/core/json.ts';
import type { ElementType } from './array-source.ts';
import { ByteReader } from './byte-reader.ts';
import { readFileChunks, readFileHead } from './input-file.ts';
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

/** @param selected only these tensors and keys; other tensors may have any type */
export function openSafetensorsFile(
  file: SourceFile,
  selected: readonly string[] | undefined,
): NamedArray[] {
  const { path } = file;
  const { dataOffset, header } = readHeader(file);
  const tensors = readTensors(header, path);
  checkCoverage(tensors, file.bytes - dataOffset, path);
  const isKeys = (name: string): boolean => name === 'keys' || name.endsWith('.keys');
  return tensors
    .filter(({ name }) => selected === undefined || selected.includes(name) || isKeys(name))
    .map(({ name, dtype, shape, begin, end }) => {
      const label = `${path}: ${name}`;
      const elementType = Object.hasOwn(TYPES, dtype) ? TYPES[dtype] : undefined;
      if (elementType === undefined) {
        const types = Object.keys(TYPES).join(', ');
        throw new CubeError('UNSUPPORTED', `${label} is ${dtype}; supported types are ${types}`);
      }
      const bytes = shape.reduce((product, dim) => product * dim, elementType.bytes);
      if (bytes !== end - begin) {
        throw damaged(
          label,
          `shape (${shape.join(', ')}) of ${dtype} does not match ${end - begin} bytes`,
        );
      }
      const chunks = (): AsyncIterable<Uint8Array> =>
        readFileChunks(path, dataOffset + begin, dataOffset + end);
      const open = async (): Promise<ByteReader> => new ByteReader(label, chunks());
      return { name, part: { label, type: elementType.type, shape, open } };
    });
}

/** Whether these can be the first bytes of a safetensors file. */
export function looksLikeSafetensors(head: Uint8Array, fileBytes: number): boolean {
  if (head.length < LENGTH_BYTES + 1 || head[LENGTH_BYTES] !== 0x7b) return false;
  return readHeaderBytes(head) <= fileBytes - LENGTH_BYTES;
}

function readHeaderBytes(head: Uint8Array): number {
  return Number(new DataView(head.buffer, head.byteOffset, head.length).getBigUint64(0, true));
}

function readHeader({ path, bytes }: SourceFile): { dataOffset: number; header: JsonReader } {
  if (bytes < LENGTH_BYTES)
    throw damaged(path, `${bytes} bytes are too few for a safetensors file`);
  const length = readHeaderBytes(readFileHead(path, LENGTH_BYTES));
  if (length > HEADER_BYTES_MAX || LENGTH_BYTES + length > bytes) {
    throw damaged(path, `a header of ${length} bytes in a file of ${bytes} bytes`);
  }
  const text = new TextDecoder().decode(readFileHead(path, LENGTH_BYTES + length).subarray(8));
  return { dataOffset: LENGTH_BYTES + length, header: JsonReader.parse(text, `${path}: header`) };
}

/** Reads the tensors of the header, in the order of their data. */
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

function checkCoverage(tensors: readonly Tensor[], dataBytes: number, path: string): void {
  let at = 0;
  for (const { name, begin, end } of tensors) {
    if (begin !== at) {
      throw damaged(`${path}: ${name}`, `begins at byte ${begin} of the data; expected ${at}`);
    }
    at = end;
  }
  if (at !== dataBytes) {
    throw damaged(path, `the tensors have ${at} bytes, but ${dataBytes} follow the header`);
  }
}

function damaged(source: string, problem: string): CubeError {
  return new CubeError('CORRUPT', `${source}: ${problem}`);
}
