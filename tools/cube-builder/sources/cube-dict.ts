/**
 * Reads a dict directory of Cube: the files of a base, followed by those of its deltas, numbered
 * consecutively.
 *
 *     index.n   u32 type 0 | u32 total records | u32 files | u64 bytes of each file
 *     index.<i> records {u64 key, u64 address}; address: data file j << 32 | offset in it
 *     data.n    u32 files | u32 bytes of each file
 *     data.<j>  records {u32 4 + length, value}
 *
 * There are no checksums, so every number is checked against the file sizes.
 */
import { join } from 'node:path';
import { CubeError } from '../../../lib/core/errors.ts';
import { fileExists, RandomAccessReader } from '../../../lib/platform/files.ts';
import { readDataList, readIndexList } from '../../../lib/store/cube-dict.ts';
import { type BatchBuilder, VALUE_BYTES_MAX } from './batch-builder.ts';
import { ByteReader } from './byte-reader.ts';
import { openFile, readFileChunks } from './input-file.ts';
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
  /** Data files by number; undefined for missing files of a delta's base. */
  readonly data: readonly (SourceFile | undefined)[];
  readonly rows: number;
}

export function isCubeDict(folder: string): boolean {
  return fileExists(join(folder, 'index.n'));
}

/**
 * @param isDelta the files of the base may be missing; then only those of the delta are read
 * @throws CubeError if a file is missing or differs in size from index.n and data.n
 */
export function openCubeDict(folder: string, isDelta: boolean): RecordFile {
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
  const indexes = openListedFiles(folder, 'index', indexBytes, isDelta);
  const data = openListedFiles(folder, 'data', dataBytes, isDelta);
  const byNumber = dataBytes.map((_, j) => data.find(({ number }) => number === j)?.file);
  const rows = indexes.reduce((sum, { file }) => sum + file.bytes / INDEX_RECORD_BYTES, 0);
  return { indexes, data: byNumber, rows };
}

/** Opens the listed files. For a delta, all files of the base may be missing (lowest numbers). */
function openListedFiles(
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
      const hint =
        number === 0 ? '; without --job-mode delta, the files of the base are needed' : '';
      throw damaged(path, `the file is missing, but ${kind}.n lists it${hint}`);
    }
    const file = openFile(path);
    if (file.bytes !== bytes) {
      throw damaged(path, `the file has ${file.bytes} bytes, but ${kind}.n lists ${bytes}`);
    }
    return { number, file };
  });
}

async function* readDict(dict: Dict, batch: BatchBuilder): AsyncGenerator<void> {
  const values = new DictValues(dict.data);
  try {
    for (const { file } of dict.indexes) {
      const reader = new ByteReader(file.path, readFileChunks(file.path, 0, file.bytes));
      batch.describePosition = () =>
        `${reader.path}: record at byte ${reader.offset}: ${values.position}`;
      try {
        while (await reader.ensure(INDEX_RECORD_BYTES)) {
          addRecords(reader, values, batch);
          if (batch.isFull) yield;
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
  while (end - reader.start >= INDEX_RECORD_BYTES && !batch.isFull) {
    const at = reader.start;
    const offset = view.getUint32(at + 8, true);
    const length = values.find(view.getUint32(at + 12, true), offset, reader);
    const low = view.getUint32(at, true);
    const high = view.getUint32(at + 4, true);
    batch.addValue(low, high, values.view, values.at, length);
    reader.start = at + INDEX_RECORD_BYTES;
  }
}

/** Reads values from the data files, mostly in order. */
class DictValues {
  /** Offset of the last value found in `view`. */
  at = 0;
  view: DataView = new DataView(new ArrayBuffer(0));
  readonly #files: readonly (SourceFile | undefined)[];
  readonly #windows: (WindowReader | undefined)[];
  #file = 0;
  #offset = 0;

  constructor(files: readonly (SourceFile | undefined)[]) {
    this.#files = files;
    this.#windows = files.map(() => undefined);
  }

  get position(): string {
    return `value at byte ${this.#offset} of data.${this.#file}`;
  }

  /** Finds a value. @returns its length; it is at `at` in `view` until the next call */
  find(number: number, offset: number, reader: ByteReader): number {
    this.#file = number;
    this.#offset = offset;
    const file = this.#files[number];
    if (file === undefined) {
      const owner = number < this.#files.length ? ' of the base' : '';
      reader.fail(`the address is in data.${number}${owner}, which does not exist`);
    }
    if (offset + LENGTH_BYTES > file.bytes) {
      reader.fail(
        `the address is byte ${offset} of data.${number}, which has only ${file.bytes} bytes`,
      );
    }
    this.#windows[number] ??= new WindowReader(new RandomAccessReader(file.path), file.bytes);
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

function damaged(source: string, problem: string): CubeError {
  return new CubeError('CORRUPT', `${source}: ${problem}`);
}
