/**
 * Reads ZIP archives such as .npz: stored and deflated entries, with ZIP64. Size and CRC-32 of each
 * entry are checked. The format is defined by PKWARE's APPNOTE.
 */
import { pipeline, Readable } from 'node:stream';
import { crc32, createInflateRaw } from 'node:zlib';
import { CubeError } from '../../../lib/core/errors.ts';
import { RandomAccessReader } from '../../../lib/platform/files.ts';
import { copyChunks, readFileChunks } from './input-file.ts';

const END_SIGNATURE = 0x0605_4b50;
const END_BYTES = 22;
const COMMENT_BYTES_MAX = 65_535;
const END64_LOCATOR_SIGNATURE = 0x0706_4b50;
const END64_LOCATOR_BYTES = 20;
const END64_SIGNATURE = 0x0606_4b50;
const END64_BYTES = 56;
const ENTRY_SIGNATURE = 0x0201_4b50;
const ENTRY_BYTES = 46;
const LOCAL_SIGNATURE = 0x0403_4b50;
const LOCAL_BYTES = 30;
const DIRECTORY_BYTES_MAX = 64 << 20;
/** Bytes decompressed at a time. */
const UNPACKED_BYTES = 64 << 10;
const U32_MAX = 0xffff_ffff;
const STORED = 0;
const DEFLATED = 8;

export interface ZipEntry {
  readonly name: string;
  /** Decompressed size. */
  readonly bytes: number;
  readonly packedBytes: number;
  readonly method: number;
  readonly crc: number;
  readonly localOffset: number;
}

/** @throws CubeError CORRUPT, or UNSUPPORTED for encrypted entries and unknown methods */
export function readZipDirectory(path: string): ZipEntry[] {
  const reader = new RandomAccessReader(path);
  try {
    const { offset, bytes, count } = findDirectory(reader);
    if (bytes > DIRECTORY_BYTES_MAX || offset + bytes > reader.bytes) {
      throw damaged(path, `a directory of ${bytes} bytes at byte ${offset} is not possible`);
    }
    const directory = readView(reader, offset, bytes);
    return readEntries(directory, count, path);
  } finally {
    reader.close();
  }
}

interface Directory {
  readonly offset: number;
  readonly bytes: number;
  readonly count: number;
}

function findDirectory(reader: RandomAccessReader): Directory {
  const tailBytes = Math.min(reader.bytes, END_BYTES + COMMENT_BYTES_MAX);
  const tail = readView(reader, reader.bytes - tailBytes, tailBytes);
  for (let at = tailBytes - END_BYTES; at >= 0; at--) {
    if (tail.getUint32(at, true) !== END_SIGNATURE) continue;
    if (at + END_BYTES + tail.getUint16(at + 20, true) !== tailBytes) continue;
    const count = tail.getUint16(at + 10, true);
    const bytes = tail.getUint32(at + 12, true);
    const offset = tail.getUint32(at + 16, true);
    if (count !== 0xffff && bytes !== U32_MAX && offset !== U32_MAX) {
      return { offset, bytes, count };
    }
    return findDirectory64(reader, reader.bytes - tailBytes + at);
  }
  throw damaged(
    reader.path,
    'no end record of a ZIP archive; the file is truncated or not a .npz file',
  );
}

function findDirectory64(reader: RandomAccessReader, endOffset: number): Directory {
  const locatorOffset = endOffset - END64_LOCATOR_BYTES;
  if (locatorOffset < 0) throw damaged(reader.path, 'no ZIP64 locator');
  const locator = readView(reader, locatorOffset, END64_LOCATOR_BYTES);
  const at = Number(locator.getBigUint64(8, true));
  const hasLocator = locator.getUint32(0, true) === END64_LOCATOR_SIGNATURE;
  if (!hasLocator || at + END64_BYTES > reader.bytes)
    throw damaged(reader.path, 'no ZIP64 locator');
  const end = readView(reader, at, END64_BYTES);
  if (end.getUint32(0, true) !== END64_SIGNATURE) throw damaged(reader.path, 'no ZIP64 end record');
  const word = (position: number): number => Number(end.getBigUint64(position, true));
  return { count: word(32), bytes: word(40), offset: word(48) };
}

function readEntries(view: DataView, count: number, path: string): ZipEntry[] {
  const entries: ZipEntry[] = [];
  let at = 0;
  while (at < view.byteLength) {
    if (at + ENTRY_BYTES > view.byteLength || view.getUint32(at, true) !== ENTRY_SIGNATURE) {
      throw damaged(path, `entry ${entries.length} of the directory is damaged`);
    }
    const nameBytes = view.getUint16(at + 28, true);
    const extraBytes = view.getUint16(at + 30, true);
    const next = at + ENTRY_BYTES + nameBytes + extraBytes + view.getUint16(at + 32, true);
    if (next > view.byteLength) throw damaged(path, 'the directory is truncated');
    entries.push(readEntry(view, at, nameBytes, extraBytes, path));
    at = next;
  }
  if (entries.length !== count) {
    throw damaged(
      path,
      `${entries.length} entries in the directory, but the end record says ${count}`,
    );
  }
  return entries;
}

function readEntry(
  view: DataView,
  at: number,
  nameBytes: number,
  extraBytes: number,
  path: string,
): ZipEntry {
  const nameAt = at + ENTRY_BYTES;
  const name = new TextDecoder().decode(
    new Uint8Array(view.buffer, view.byteOffset + nameAt, nameBytes),
  );
  const method = view.getUint16(at + 10, true);
  if ((view.getUint16(at + 8, true) & 1) !== 0 || (method !== STORED && method !== DEFLATED)) {
    throw new CubeError(
      'UNSUPPORTED',
      `${path}: ${name} is encrypted or uses method ${method}; supported are stored and deflate`,
    );
  }
  const sizes = [view.getUint32(at + 24, true), view.getUint32(at + 20, true)];
  const wide = [...sizes, view.getUint32(at + 42, true)];
  const [bytes, packedBytes, localOffset] = readWideNumbers(
    view,
    nameAt + nameBytes,
    extraBytes,
    wide,
    path,
  );
  return { name, method, crc: view.getUint32(at + 16, true), bytes, packedBytes, localOffset };
}

/** ZIP64: numbers with all bits set are in the extra field instead, in this order. */
function readWideNumbers(
  view: DataView,
  start: number,
  length: number,
  numbers: readonly number[],
  path: string,
): [number, number, number] {
  const result = [...numbers];
  const end = start + length;
  for (let at = start; at + 4 <= end; ) {
    const size = view.getUint16(at + 2, true);
    if (view.getUint16(at, true) === 1) {
      let from = at + 4;
      for (let i = 0; i < result.length; i++) {
        if (result[i] !== U32_MAX) continue;
        if (from + 8 > Math.min(end, at + 4 + size)) throw damaged(path, 'a short ZIP64 field');
        result[i] = Number(view.getBigUint64(from, true));
        from += 8;
      }
    }
    at += 4 + size;
  }
  return result as [number, number, number];
}

/**
 * Reads the decompressed bytes of an entry.
 * @throws CubeError at the end if size or CRC-32 differs from the directory
 */
export async function* readZipEntry(path: string, entry: ZipEntry): AsyncGenerator<Uint8Array> {
  const start = findDataOffset(path, entry);
  const packed = readFileChunks(path, start, start + entry.packedBytes);
  let crc = 0;
  let bytes = 0;
  for await (const chunk of entry.method === STORED
    ? packed
    : inflate(copyChunks(packed), path, entry)) {
    crc = crc32(chunk, crc);
    bytes += chunk.length;
    if (bytes > entry.bytes) break;
    yield chunk;
  }
  if (bytes !== entry.bytes || crc !== entry.crc) {
    const what = bytes === entry.bytes ? 'its CRC-32 is wrong' : `expected ${entry.bytes} bytes`;
    throw damaged(path, `${entry.name}: ${what}`);
  }
}

/** The data follow the local header, whose extra field may differ from the directory's. */
function findDataOffset(path: string, { name, localOffset, packedBytes }: ZipEntry): number {
  const reader = new RandomAccessReader(path);
  try {
    if (localOffset + LOCAL_BYTES > reader.bytes) throw damaged(path, `${name}: no local header`);
    const local = readView(reader, localOffset, LOCAL_BYTES);
    if (local.getUint32(0, true) !== LOCAL_SIGNATURE) {
      throw damaged(path, `${name}: no local header at byte ${localOffset}`);
    }
    const names = local.getUint16(26, true) + local.getUint16(28, true);
    const start = localOffset + LOCAL_BYTES + names;
    if (start + packedBytes > reader.bytes)
      throw damaged(path, `${name} extends beyond the end of the file`);
    return start;
  } finally {
    reader.close();
  }
}

async function* inflate(
  packed: AsyncIterable<Uint8Array>,
  path: string,
  { name }: ZipEntry,
): AsyncGenerator<Uint8Array> {
  const unpacker = createInflateRaw({ chunkSize: UNPACKED_BYTES });
  pipeline(Readable.from(packed), unpacker, () => undefined);
  try {
    yield* unpacker;
  } catch (error) {
    if (error instanceof CubeError) throw error;
    throw damaged(path, `${name}: ${(error as Error).message}`);
  }
}

function readView(reader: RandomAccessReader, offset: number, length: number): DataView {
  const bytes = new Uint8Array(length);
  reader.readInto(bytes, offset);
  return new DataView(bytes.buffer);
}

function damaged(source: string, problem: string): CubeError {
  return new CubeError('CORRUPT', `${source}: ${problem}`);
}
