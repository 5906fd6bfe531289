/**
 * Writes a dictionary directory of PaddlePaddle's Cube (described in cube-dict.ts) as Cube's own
 * builder does for a base: one index file, and data files of up to 1 GiB. Each file is written
 * atomically; `index.n` is written last and completes the directory.
 */
import { CubeError } from '../core/errors.ts';
import { RandomAccessWriter } from '../platform/files.ts';

/** Cube's own limit for a data file. */
const DATA_BYTES_MAX = 2 ** 30;
const BUFFER_BYTES = 1 << 20;
const LENGTH_BYTES = 4;
const ENTRIES_MAX = 2 ** 32 - 1;

export class CubeDictWriter {
  readonly #folder: string;
  readonly #dataBytesMax: number;
  readonly #index: BufferedFile;
  readonly #dataBytes: number[] = [];
  #data: BufferedFile;
  #entries = 0;
  readonly #entry = new DataView(new ArrayBuffer(16));
  readonly #length = new DataView(new ArrayBuffer(LENGTH_BYTES));

  /** @param dataBytesMax a smaller file size than Cube's, for tests */
  constructor(folder: string, dataBytesMax: number = DATA_BYTES_MAX) {
    this.#folder = folder;
    this.#dataBytesMax = dataBytesMax;
    this.#index = new BufferedFile(`${folder}/index.0`);
    this.#data = new BufferedFile(`${folder}/data.0`);
  }

  get entries(): number {
    return this.#entries;
  }

  /** Keys must be unique. @throws CubeError TOO_LARGE */
  add(keyLow: number, keyHigh: number, value: Uint8Array): void {
    const bytes = LENGTH_BYTES + value.length;
    if (this.#entries === ENTRIES_MAX) {
      throw new CubeError('TOO_LARGE', `${this.#folder}: a shard of Cube has ${ENTRIES_MAX} keys`);
    }
    if (this.#data.bytes > 0 && this.#data.bytes + bytes > this.#dataBytesMax) {
      this.#dataBytes.push(this.#data.commit());
      this.#data = new BufferedFile(`${this.#folder}/data.${this.#dataBytes.length}`);
    }
    const entry = this.#entry;
    entry.setUint32(0, keyLow, true);
    entry.setUint32(4, keyHigh, true);
    entry.setUint32(8, this.#data.bytes, true);
    entry.setUint32(12, this.#dataBytes.length, true);
    this.#index.write(new Uint8Array(entry.buffer));
    this.#length.setUint32(0, bytes, true);
    this.#data.write(new Uint8Array(this.#length.buffer));
    this.#data.write(value);
    this.#entries += 1;
  }

  /** Flushes all files and writes their lists. */
  finish(): void {
    this.#dataBytes.push(this.#data.commit());
    const indexBytes = this.#index.commit();
    const data = new DataView(new ArrayBuffer(4 + 4 * this.#dataBytes.length));
    data.setUint32(0, this.#dataBytes.length, true);
    for (const [j, bytes] of this.#dataBytes.entries()) data.setUint32(4 + 4 * j, bytes, true);
    this.#writeList('data.n', data);
    const index = new DataView(new ArrayBuffer(20));
    index.setUint32(4, this.#entries, true);
    index.setUint32(8, 1, true);
    index.setBigUint64(12, BigInt(indexBytes), true);
    this.#writeList('index.n', index);
  }

  /** Finished files stay: the caller removes the folder. */
  abort(): void {
    this.#data.abort();
    this.#index.abort();
  }

  #writeList(name: string, list: DataView): void {
    const file = new BufferedFile(`${this.#folder}/${name}`);
    file.write(new Uint8Array(list.buffer));
    file.commit();
  }
}

/** Buffers small sequential writes. */
class BufferedFile {
  readonly #writer: RandomAccessWriter;
  readonly #buffer = new Uint8Array(BUFFER_BYTES);
  #filled = 0;
  #written = 0;

  constructor(path: string) {
    this.#writer = new RandomAccessWriter(path);
  }

  get bytes(): number {
    return this.#written + this.#filled;
  }

  write(piece: Uint8Array): void {
    if (this.#filled + piece.length > BUFFER_BYTES) this.#flush();
    if (piece.length > BUFFER_BYTES) {
      this.#writer.writeAt(piece, this.#written);
      this.#written += piece.length;
      return;
    }
    this.#buffer.set(piece, this.#filled);
    this.#filled += piece.length;
  }

  /** @returns the length of the file */
  commit(): number {
    this.#flush();
    this.#writer.commit();
    return this.#written;
  }

  abort(): void {
    this.#writer.abort();
  }

  #flush(): void {
    this.#writer.writeAt(this.#buffer.subarray(0, this.#filled), this.#written);
    this.#written += this.#filled;
    this.#filled = 0;
  }
}
