/**
 * The stream of one parameter, as Paddle saves it: a LoDTensor (version, levels of offsets, tensor) or SelectedRows (version, row
 * keys, height, tensor or LoDTensor). Only what describes the data is read; every length is checked against the file before
 * anything of its size is made.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import type { DataFile } from './data-file.ts';
import { elementBytes, elementName } from './program.ts';
import { readTensorDesc } from './program-reader.ts';

/** Paddle itself never has more than a few. */
const LOD_LEVELS_MAX = 16;
const DESC_BYTES_MAX = 64 << 10;

export interface ParameterStream {
  /** Of the whole stream in its file. */
  readonly start: number;
  readonly end: number;
  readonly elementType: number;
  readonly dims: readonly number[];
  /** Where the elements begin. */
  readonly dataOffset: number;
  /** SelectedRows: where the row keys begin, one int64 for each row. */
  readonly keysOffset?: number;
}

/** @param what the variable, for errors. @throws CubeError CORRUPT */
export function readLodTensor(reader: DataFile, start: number, what: string): ParameterStream {
  const cursor = new StreamCursor(reader, start, what);
  cursor.version();
  cursor.skipLevels();
  return { start, ...cursor.tensor() };
}

/** @throws CubeError CORRUPT */
export function readSelectedRows(reader: DataFile, start: number, what: string): ParameterStream {
  const cursor = new StreamCursor(reader, start, what);
  cursor.version();
  const count = cursor.count('row keys', 8);
  const keysOffset = cursor.position;
  cursor.skip(8 * count);
  cursor.skip(8);
  cursor.skipNewerHeader();
  const stream = { start, ...cursor.tensor(), keysOffset };
  if (stream.dims[0] !== count) {
    throw cursor.invalid(`it has ${count} row keys and ${stream.dims[0] ?? 'no'} rows`);
  }
  return stream;
}

class StreamCursor {
  position: number;
  readonly #reader: DataFile;
  readonly #what: string;

  constructor(reader: DataFile, start: number, what: string) {
    this.#reader = reader;
    this.#what = what;
    this.position = start;
  }

  version(): void {
    const version = this.#take(4).getUint32(0, true);
    if (version !== 0) throw this.invalid(`it has version ${version}, known is 0`);
  }

  skipLevels(): void {
    const levels = this.#take(8).getBigUint64(0, true);
    if (levels > LOD_LEVELS_MAX) throw this.invalid(`it has ${levels} levels of offsets`);
    for (let level = 0n; level < levels; level++) {
      const bytes = this.#take(8).getBigUint64(0, true);
      if (bytes > this.#left()) throw this.#tooShort(`${bytes} bytes of offsets`);
      this.skip(Number(bytes));
    }
  }

  /** A number of things of `itemBytes` that follow. */
  count(what: string, itemBytes: number): number {
    const count = this.#take(8).getBigUint64(0, true);
    if (count * BigInt(itemBytes) > this.#left()) throw this.#tooShort(`${count} ${what}`);
    return Number(count);
  }

  skip(bytes: number): void {
    if (bytes > this.#left()) throw this.#tooShort(`${bytes} bytes`);
    this.position += bytes;
  }

  /** Behind the height, newer files have a LoDTensor where older ones have the tensor alone: levels, then its version. */
  skipNewerHeader(): void {
    this.version();
    const start = this.position;
    const length = this.#take(4).getInt32(0, true);
    this.position = start;
    if (length === 0) this.skipLevels();
    else this.position = start - 4;
  }

  tensor(): Omit<ParameterStream, 'start' | 'keysOffset'> {
    this.version();
    const length = this.#take(4).getInt32(0, true);
    if (length < 0 || length > DESC_BYTES_MAX || length > this.#left()) {
      throw this.#tooShort(`a description of ${length} bytes`);
    }
    const { elementType, dims } = this.#describe(length);
    const itemBytes = elementBytes(elementType);
    if (itemBytes === undefined || dims.some((dim) => dim < 0)) {
      throw this.invalid(`it is of ${elementName(elementType)} [${dims.join(', ')}]`);
    }
    const bytes = dims.reduce((product, dim) => product * dim, itemBytes);
    if (bytes > this.#left()) throw this.#tooShort(`${bytes} bytes of [${dims.join(', ')}]`);
    const dataOffset = this.position;
    this.position += bytes;
    return { elementType, dims, dataOffset, end: this.position };
  }

  invalid(why: string): CubeError {
    return new CubeError('CORRUPT', `${this.#reader.path}: ${this.#what}: ${why}`);
  }

  #describe(length: number): { elementType: number; dims: number[] } {
    const bytes = new Uint8Array(length);
    this.#reader.readInto(bytes, this.position);
    this.position += length;
    try {
      return readTensorDesc(bytes);
    } catch (error) {
      throw this.invalid(CubeError.from(error).message);
    }
  }

  #take(bytes: number): DataView {
    if (bytes > this.#left()) throw this.#tooShort(`${bytes} bytes`);
    const taken = new Uint8Array(bytes);
    this.#reader.readInto(taken, this.position);
    this.position += bytes;
    return new DataView(taken.buffer);
  }

  #left(): number {
    return this.#reader.bytes - this.position;
  }

  #tooShort(what: string): CubeError {
    return this.invalid(
      `${what} from byte ${this.position} on, the file has ${this.#reader.bytes}`,
    );
  }
}
