/**
 * The stream of one parameter, as Paddle saves it: a LoDTensor (version, levels of offsets, tensor)
 * or SelectedRows (version, row keys, height, tensor or LoDTensor). Only the description of the
 * data is read; every length is checked against the file before memory of that size is allocated.
 */
import { CubeError } from '../../../lib/core/errors.ts';
import { RandomAccessReader } from '../../../lib/platform/files.ts';
import { getElementBytes, getElementTypeName } from './program.ts';
import { readTensorDesc } from './program-reader.ts';

/** Paddle writes a few levels at most. */
const LOD_LEVELS_MAX = 16;
const DESC_BYTES_MAX = 64 << 10;

export interface ParameterStream {
  /** Range of the whole stream in its file. */
  readonly start: number;
  readonly end: number;
  readonly elementType: number;
  readonly dims: readonly number[];
  /** Position of the first element. */
  readonly dataOffset: number;
  /** SelectedRows: position of the row keys, one int64 for each row. */
  readonly keysOffset?: number;
}

/** @param what names the variable in errors. @throws CubeError CORRUPT */
export function readLodTensor(reader: DataFile, start: number, what: string): ParameterStream {
  const cursor = new StreamCursor(reader, start, what);
  cursor.readVersion();
  cursor.skipLevels();
  return { start, ...cursor.readTensor() };
}

/** @throws CubeError CORRUPT */
export function readSelectedRows(reader: DataFile, start: number, what: string): ParameterStream {
  const cursor = new StreamCursor(reader, start, what);
  cursor.readVersion();
  const count = cursor.readCount('row keys', 8);
  const keysOffset = cursor.position;
  cursor.skip(8 * count);
  cursor.skip(8);
  cursor.skipNewerHeader();
  const stream = { start, ...cursor.readTensor(), keysOffset };
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

  readVersion(): void {
    const version = this.#take(4).getUint32(0, true);
    if (version !== 0) throw this.invalid(`it has version ${version}; only version 0 is supported`);
  }

  skipLevels(): void {
    const levels = this.#take(8).getBigUint64(0, true);
    if (levels > LOD_LEVELS_MAX) throw this.invalid(`it has ${levels} levels of offsets`);
    for (let level = 0n; level < levels; level++) {
      const bytes = this.#take(8).getBigUint64(0, true);
      if (bytes > this.#getRemaining()) throw this.#tooShort(`${bytes} bytes of offsets`);
      this.skip(Number(bytes));
    }
  }

  /** Reads the number of items of `itemBytes` that follow. */
  readCount(what: string, itemBytes: number): number {
    const count = this.#take(8).getBigUint64(0, true);
    if (count * BigInt(itemBytes) > this.#getRemaining()) throw this.#tooShort(`${count} ${what}`);
    return Number(count);
  }

  skip(bytes: number): void {
    if (bytes > this.#getRemaining()) throw this.#tooShort(`${bytes} bytes`);
    this.position += bytes;
  }

  /** Skips the LoDTensor header that newer files have before the tensor. */
  skipNewerHeader(): void {
    this.readVersion();
    const start = this.position;
    const length = this.#take(4).getInt32(0, true);
    this.position = start;
    if (length === 0) this.skipLevels();
    else this.position = start - 4;
  }

  readTensor(): Omit<ParameterStream, 'start' | 'keysOffset'> {
    this.readVersion();
    const length = this.#take(4).getInt32(0, true);
    if (length < 0 || length > DESC_BYTES_MAX || length > this.#getRemaining()) {
      throw this.#tooShort(`a description of ${length} bytes`);
    }
    const { elementType, dims } = this.#describe(length);
    const itemBytes = getElementBytes(elementType);
    if (itemBytes === undefined || dims.some((dim) => dim < 0)) {
      throw this.invalid(
        `its type ${getElementTypeName(elementType)} [${dims.join(', ')}] is not supported`,
      );
    }
    const bytes = dims.reduce((product, dim) => product * dim, itemBytes);
    if (bytes > this.#getRemaining())
      throw this.#tooShort(`${bytes} bytes of [${dims.join(', ')}]`);
    const dataOffset = this.position;
    this.position += bytes;
    return { elementType, dims, dataOffset, end: this.position };
  }

  invalid(reason: string): CubeError {
    return new CubeError('CORRUPT', `${this.#reader.path}: ${this.#what}: ${reason}`);
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
    if (bytes > this.#getRemaining()) throw this.#tooShort(`${bytes} bytes`);
    const taken = new Uint8Array(bytes);
    this.#reader.readInto(taken, this.position);
    this.position += bytes;
    return new DataView(taken.buffer);
  }

  #getRemaining(): number {
    return this.#reader.bytes - this.position;
  }

  #tooShort(what: string): CubeError {
    return this.invalid(
      `${what} expected at byte ${this.position}, but the file has ${this.#reader.bytes} bytes`,
    );
  }
}

/**
 * A file that is read at positions and not held open: a model may have a parameter file for each of
 * its thousands of variables.
 */
export class DataFile {
  readonly path: string;
  readonly bytes: number;

  constructor(path: string) {
    this.path = path;
    const reader = new RandomAccessReader(path);
    this.bytes = reader.bytes;
    reader.close();
  }

  /** Fills `target` from `position`. @throws CubeError CORRUPT when the file ends before */
  readInto(target: Uint8Array, position: number): void {
    const reader = new RandomAccessReader(this.path);
    try {
      reader.readInto(target, position);
    } finally {
      reader.close();
    }
  }
}
