/**
 * Reads a dictionary directory of PaddlePaddle's Cube strictly (docs/cube-migration.md). Cube's
 * files have no magic number and no checksums. The reader checks that every listed file exists with
 * its size, that records fill each data file, and that every address is the start of a record. A
 * failed check is CORRUPT, never a missing key.
 *
 *     index.n    u32 type 0 · u32 entries · u32 files · u64 bytes of each file
 *     index.<i>  {u64 key, u64 address}
 *     data.n     u32 files · u32 bytes of each file
 *     data.<j>   {u32 4 + length, value}
 *
 * An address is j · 2^32 + offset in data.<j>. The last entry of a duplicate key counts.
 */
import { createHash } from 'node:crypto';
import { CubeError } from '../core/errors.ts';
import { UniqueKeys } from '../core/unique-keys.ts';
import { RandomAccessReader } from '../platform/files.ts';

const ENTRY_BYTES = 16;
const LENGTH_BYTES = 4;
const FILES_MAX = 65_536;
/** The largest count that fits one buffer of Node 20; no shard of Cube has more. */
const ENTRIES_MAX: number = 2 ** 28;

/** One of the files of an index; a patch's directory begins with those of its base. */
export interface CubeIndexFile {
  readonly bytes: number;
  readonly sha256: string;
}

export interface CubeDict {
  /** 2n words, distinct, in order of first occurrence. */
  readonly keys: Uint32Array;
  /** Concatenated values in the order of the keys. */
  readonly values: Uint8Array;
  /** n ends of the values in `values`. */
  readonly ends: Float64Array;
  /** Common size of all values; undefined when they differ or there are none. */
  readonly valueBytes: number | undefined;
  readonly indexFiles: readonly CubeIndexFile[];
}

/** @throws CubeError CORRUPT, NOT_FOUND, UNSUPPORTED or TOO_LARGE naming the file */
export function readCubeDict(folder: string): CubeDict {
  const list = readIndexList(`${folder}/index.n`);
  if (list.entries > ENTRIES_MAX) {
    const what = `${folder}: ${list.entries} entries, at most ${ENTRIES_MAX} are read at once`;
    throw new CubeError('TOO_LARGE', what);
  }
  const index = readIndex(folder, list);
  const sizes = readDataList(`${folder}/data.n`);
  const blocks = sizes.map((bytes, j) => new DataBlock(`${folder}/data.${j}`, bytes));
  const { keys, addresses } = findDistinctEntries(index.entries);
  const count = keys.length / 2;
  const ends = new Float64Array(count);
  let end = 0;
  for (let i = 0; i < count; i++) {
    end += findBlock(blocks, addresses, i, folder).valueBytes(addresses[2 * i]!);
    ends[i] = end;
  }
  const values = new Uint8Array(end);
  let valueBytes: number | undefined = count === 0 ? undefined : ends[0];
  for (let i = 0, at = 0; i < count; i++) {
    values.set(findBlock(blocks, addresses, i, folder).value(addresses[2 * i]!), at);
    if (ends[i]! - at !== valueBytes) valueBytes = undefined;
    at = ends[i]!;
  }
  return { keys, values, ends, valueBytes, indexFiles: index.files };
}

function corrupt(path: string, text: string): CubeError {
  return new CubeError('CORRUPT', `${path}: ${text}; deploy it again`);
}

/** Reads a whole file whose expected size is known. */
function readWholeFile(path: string, bytes: number | undefined, bytesMax: number): Uint8Array {
  const reader = new RandomAccessReader(path);
  try {
    if (bytes !== undefined && reader.bytes !== bytes) {
      throw corrupt(path, `has ${reader.bytes} bytes, ${bytes} are listed`);
    }
    if (reader.bytes > bytesMax) {
      throw new CubeError('TOO_LARGE', `${path}: ${reader.bytes} bytes, at most ${bytesMax}`);
    }
    const content = new Uint8Array(reader.bytes);
    reader.readInto(content, 0);
    return content;
  } finally {
    reader.close();
  }
}

function readList(path: string, headBytes: number, itemBytes: number): DataView {
  const { buffer, length } = readWholeFile(path, undefined, headBytes + itemBytes * FILES_MAX);
  if (length < headBytes) throw corrupt(path, `has ${length} bytes, too few`);
  const view = new DataView(buffer);
  const files = view.getUint32(headBytes - 4, true);
  if (length === headBytes + itemBytes * files) return view;
  throw corrupt(path, `has ${length} bytes and should list ${files} files`);
}

export interface CubeIndexList {
  readonly entries: number;
  /** Bytes of each index file. */
  readonly sizes: readonly number[];
}

/** Reads index.n. @throws CubeError CORRUPT or UNSUPPORTED */
export function readIndexList(path: string): CubeIndexList {
  const view = readList(path, 12, 8);
  const type = view.getUint32(0, true);
  if (type !== 0) throw new CubeError('UNSUPPORTED', `${path}: index type ${type}; 0 is read`);
  const entries = view.getUint32(4, true);
  const sizes = Array.from({ length: view.getUint32(8, true) }, (_, i) =>
    Number(view.getBigUint64(12 + 8 * i, true)),
  );
  const listed = sizes.reduce((sum, bytes) => sum + bytes, 0);
  if (sizes.some((bytes) => bytes % ENTRY_BYTES !== 0) || listed !== entries * ENTRY_BYTES) {
    throw corrupt(path, `lists ${listed} bytes of index files for ${entries} entries`);
  }
  return { entries, sizes };
}

/** Reads data.n. @returns the size of each data file in bytes @throws CubeError CORRUPT */
export function readDataList(path: string): number[] {
  const view = readList(path, 4, 4);
  return Array.from({ length: view.getUint32(0, true) }, (_, j) => view.getUint32(4 + 4 * j, true));
}

/** @returns four words per entry: key low, key high, offset, block */
function readIndex(
  folder: string,
  list: CubeIndexList,
): { entries: Uint32Array; files: CubeIndexFile[] } {
  const parts = list.sizes.map((bytes, i) => readWholeFile(`${folder}/index.${i}`, bytes, bytes));
  const files = parts.map((part) => ({
    bytes: part.length,
    sha256: createHash('sha256').update(part).digest('hex'),
  }));
  const all = new Uint8Array(list.entries * ENTRY_BYTES);
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return { entries: new Uint32Array(all.buffer), files };
}

/** @returns addresses as two words per key: offset, block */
function findDistinctEntries(entries: Uint32Array): { keys: Uint32Array; addresses: Uint32Array } {
  const count = entries.length / 4;
  const keys = new Uint32Array(2 * count);
  const index = new Int32Array(count);
  // An entry is two keys wide: the key, then the address.
  const rows = { keys: entries, rowStart: 0, rowCount: count, rowKeys: 2 };
  const distinct = new UniqueKeys(count).find(rows, Int32Array.of(0), keys, index);
  const addresses = new Uint32Array(2 * distinct);
  for (let i = 0; i < count; i++) {
    addresses[2 * index[i]!] = entries[4 * i + 2]!;
    addresses[2 * index[i]! + 1] = entries[4 * i + 3]!;
  }
  return { keys: keys.slice(0, 2 * distinct), addresses };
}

function findBlock(
  blocks: readonly DataBlock[],
  addresses: Uint32Array,
  i: number,
  folder: string,
): DataBlock {
  const block = blocks[addresses[2 * i + 1]!];
  if (block !== undefined) return block;
  throw corrupt(folder, `its index names data.${addresses[2 * i + 1]}, of ${blocks.length} files`);
}

/** A data file in memory with the starts of its records. */
class DataBlock {
  readonly #path: string;
  readonly #bytes: Uint8Array;
  readonly #view: DataView;
  /** One bit per byte of the file, set where a record starts. */
  readonly #starts: Uint8Array;

  constructor(path: string, bytes: number) {
    this.#path = path;
    this.#bytes = readWholeFile(path, bytes, bytes);
    this.#view = new DataView(this.#bytes.buffer);
    this.#starts = new Uint8Array((bytes + 7) >>> 3);
    for (let at = 0; at < bytes; ) {
      this.#starts[at >>> 3]! |= 1 << (at & 7);
      const length = at + LENGTH_BYTES <= bytes ? this.#view.getUint32(at, true) : 0;
      if (length < LENGTH_BYTES || at + length > bytes) {
        throw corrupt(path, `the record at byte ${at} does not end within the file`);
      }
      at += length;
    }
  }

  /** @param offset must be the start of a record */
  valueBytes(offset: number): number {
    const isStart = ((this.#starts[offset >>> 3] ?? 0) >> (offset & 7)) & 1;
    if (isStart === 1) return this.#view.getUint32(offset, true) - LENGTH_BYTES;
    throw corrupt(this.#path, `the index names byte ${offset}, where no record starts`);
  }

  value(offset: number): Uint8Array {
    const start = offset + LENGTH_BYTES;
    return this.#bytes.subarray(start, start + this.valueBytes(offset));
  }
}
