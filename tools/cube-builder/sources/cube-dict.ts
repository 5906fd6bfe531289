/**
 * A dict directory as Cube's builder writes it and its server loads it: base files and those of its deltas, numbered on.
 *
 *     index.n   u32 type 0 | u32 records in all | u32 files | u64 bytes of each
 *     index.<i> records {u64 key, u64 address}: the file j of the data << 32 | the place in it
 *     data.n    u32 files | u32 bytes of each
 *     data.<j>  records {u32 4 + length, value}
 *
 * Nothing in it is checksummed and nothing ties index to data, so every number is held against the sizes of the files.
 */
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { fileExists, RandomReader } from '../../../lib/platform/files.ts';
import { readDataList, readIndexList } from '../../../lib/store/cube-dict.ts';
import { type BatchBuilder, VALUE_BYTES_MAX } from './batch-builder.ts';
import { ByteReader } from './byte-reader.ts';
import { fileChunks, openFile } from './input-file.ts';
import type { RecordFile } from './record-source.ts';
import type { SourceFile } from './row-source.ts';
import { WindowReader } from './window-reader.ts';

const INDEX_RECORD_BYTES = 16;
const LENGTH_BYTES = 4;

interface DictFile {
  readonly number: number;
  readonly file: SourceFile;
}

interface Dict {
  readonly indexes: readonly DictFile[];
  /** By number; absent: a delta's base, which is not there. */
  readonly data: readonly (SourceFile | undefined)[];
  readonly rows: number;
}

export function isCubeDict(folder: string): boolean {
  return fileExists(join(folder, 'index.n'));
}

/**
 * @param isDelta the files of the base may be missing: only what the delta has is read
 * @throws CubeError when a file is missing or not as long as index.n and data.n say
 */
export function cubeDict(folder: string, isDelta: boolean): RecordFile {
  const dict = openDict(folder, isDelta);
  const lists = ['index.n', 'data.n'].map((name) => openFile(join(folder, name)));
  const data = dict.data.filter((file) => file !== undefined);
  return {
    files: [...lists, ...dict.indexes.map(({ file }) => file), ...data],
    rows: dict.rows,
    read: (batch) => readDict(dict, batch),
  };
}

function openDict(folder: string, isDelta: boolean): Dict {
  const { sizes: indexBytes } = readIndexList(join(folder, 'index.n'));
  const dataBytes = readDataList(join(folder, 'data.n'));
  const indexes = openListed(folder, 'index', indexBytes, isDelta);
  const data = openListed(folder, 'data', dataBytes, isDelta);
  const byNumber = dataBytes.map((_, j) => data.find(({ number }) => number === j)?.file);
  const rows = indexes.reduce((sum, { file }) => sum + file.bytes / INDEX_RECORD_BYTES, 0);
  return { indexes, data: byNumber, rows };
}

/** The files that a list names; those of a delta's base may be missing, all of them, from the front. */
function openListed(
  folder: string,
  kind: 'index' | 'data',
  listed: readonly number[],
  isDelta: boolean,
): DictFile[] {
  const paths = listed.map((_, i) => join(folder, `${kind}.${i}`));
  const present = paths.findIndex(fileExists);
  const first = isDelta ? Math.max(0, present === -1 ? listed.length : present) : 0;
  return listed.slice(first).map((bytes, i) => {
    const number = first + i;
    const path = paths[number] as string;
    if (!fileExists(path)) {
      const base = number === 0 ? '; a delta alone needs the files of its base beside it' : '';
      throw damaged(path, `missing, though ${kind}.n lists it${base}`);
    }
    const file = openFile(path);
    if (file.bytes !== bytes) {
      throw damaged(path, `${file.bytes} bytes, ${kind}.n says ${bytes}`);
    }
    return { number, file };
  });
}

async function* readDict(dict: Dict, batch: BatchBuilder): AsyncGenerator<void> {
  const values = new DictValues(dict.data);
  try {
    for (const { file } of dict.indexes) {
      const reader = new ByteReader(file.path, fileChunks(file.path, 0, file.bytes));
      batch.place = () => `${reader.path}: record at byte ${reader.offset}: ${values.place}`;
      try {
        while (await reader.ensure(INDEX_RECORD_BYTES)) {
          addRecords(reader, values, batch);
          if (batch.full) yield;
        }
        await reader.expectEnd();
      } finally {
        await reader.close();
      }
    }
  } finally {
    values.close();
  }
}

function addRecords(reader: ByteReader, values: DictValues, batch: BatchBuilder): void {
  const { view, end } = reader;
  while (end - reader.start >= INDEX_RECORD_BYTES && !batch.full) {
    const at = reader.start;
    const offset = view.getUint32(at + 8, true);
    const length = values.find(view.getUint32(at + 12, true), offset, reader);
    const low = view.getUint32(at, true);
    const high = view.getUint32(at + 4, true);
    batch.addValue(low, high, values.view, values.at, length);
    reader.start = at + INDEX_RECORD_BYTES;
  }
}

/** The data files of a dict, read mostly one record after another. */
class DictValues {
  /** Where the value found last is, in `view`. */
  at = 0;
  view: DataView = new DataView(new ArrayBuffer(0));
  /** The data file read last and the place in it, for errors. */
  readonly #files: readonly (SourceFile | undefined)[];
  readonly #windows: (WindowReader | undefined)[];
  #file = 0;
  #offset = 0;

  constructor(files: readonly (SourceFile | undefined)[]) {
    this.#files = files;
    this.#windows = files.map(() => undefined);
  }

  get place(): string {
    return `value at byte ${this.#offset} of data.${this.#file}`;
  }

  /** @returns the value's length; it is at `at` in `view` until the next call */
  find(number: number, offset: number, reader: ByteReader): number {
    this.#file = number;
    this.#offset = offset;
    const file = this.#files[number];
    if (file === undefined) {
      const why = number < this.#files.length ? ", which is its base's" : '';
      reader.fail(`the address is in data.${number}${why}; there is no such file`);
    }
    if (offset + LENGTH_BYTES > file.bytes) {
      reader.fail(`the address is byte ${offset} of data.${number}, which has ${file.bytes}`);
    }
    this.#windows[number] ??= new WindowReader(new RandomReader(file.path), file.bytes);
    const window = this.#windows[number];
    window.load(offset, LENGTH_BYTES);
    const length = window.view.getUint32(window.at, true) - LENGTH_BYTES;
    if (length < 0 || length >= VALUE_BYTES_MAX || offset + LENGTH_BYTES + length > file.bytes) {
      throw damaged(
        file.path,
        `byte ${offset}: a value of ${length} bytes in a file of ${file.bytes} bytes`,
      );
    }
    window.load(offset + LENGTH_BYTES, length);
    this.view = window.view;
    this.at = window.at;
    return length;
  }

  close(): void {
    for (const window of this.#windows) window?.close();
  }
}

function damaged(path: string, what: string): CubeError {
  return new CubeError('CORRUPT', `${path}: ${what}`);
}
