/**
 * Reads one input, a file or standard input, as a stream of bytes and decompresses gzip and zstd.
 * Only the bytes in progress are in memory.
 */
import { pipeline, Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { Decompress } from 'fzstd';
import { CubeError } from '../../../lib/core/errors.ts';
import { RandomAccessReader, statPath } from '../../../lib/platform/files.ts';
import { ByteReader } from './byte-reader.ts';
import type { SourceFile } from './row-source.ts';

const CHUNK_BYTES = 256 << 10;
/** Bytes decompressed at a time. */
const UNPACKED_BYTES = 64 << 10;
/** The decompressor recurses for each frame; small pieces limit the depth. */
const ZSTD_PIECE_BYTES = 16 << 10;

/** Maximum bytes of standard input up to the first row; they are kept to be read again. */
const HEAD_BYTES_MAX = 128 << 20;

export type Compression = 'gzip' | 'zstd';

export interface InputFile extends SourceFile {
  readonly compression: Compression | undefined;
  /** Undefined for compressed files and standard input, whose size is not known before the end. */
  readonly unpackedBytes: number | undefined;
  /** Reads the raw bytes from the start. */
  readonly chunks: () => AsyncIterable<Uint8Array>;
}

/** @throws CubeError NOT_FOUND, or INVALID_ARGUMENT if the path is not a file */
export function openFile(path: string): InputFile {
  const stat = statPath(path);
  if (stat === undefined) throw new CubeError('NOT_FOUND', `${path}: no such file or folder`);
  if (!stat.isFile) throw new CubeError('INVALID_ARGUMENT', `${path} is not a file`);
  const { bytes, mtimeMs } = stat;
  const compression = detectCompression(readFileHead(path, 4));
  return {
    path,
    bytes,
    mtimeMs,
    compression,
    unpackedBytes: compression === undefined ? bytes : undefined,
    chunks: () => readFileChunks(path, 0, bytes),
  };
}

/** Reads the first bytes of a file, or all bytes of a shorter file. */
export function readFileHead(path: string, maxBytes: number): Uint8Array {
  const reader = new RandomAccessReader(path);
  try {
    const head = new Uint8Array(Math.min(reader.bytes, maxBytes));
    reader.readInto(head, 0);
    return head;
  } finally {
    reader.close();
  }
}

export function detectCompression(head: Uint8Array): Compression | undefined {
  if (head[0] === 0x1f && head[1] === 0x8b) return 'gzip';
  const [a, b, c, d] = head;
  return a === 0x28 && b === 0xb5 && c === 0x2f && d === 0xfd ? 'zstd' : undefined;
}

/** Opens a reader of the decompressed bytes. The caller closes it. */
export function openReader(file: InputFile): ByteReader {
  const { path, compression } = file;
  const raw = file.chunks();
  if (compression === undefined) return new ByteReader(path, raw);
  const own = copyChunks(raw);
  const unpacked = compression === 'gzip' ? gunzip(own, path) : unzstd(own, path);
  return new ByteReader(`${path} (${compression})`, unpacked);
}

/**
 * Reads bytes start … end - 1 of a file in chunks. A chunk is valid until the next is requested:
 * the buffer is reused, because the engine frees dropped buffers late.
 */
export async function* readFileChunks(
  path: string,
  start: number,
  end: number,
): AsyncGenerator<Uint8Array> {
  const reader = new RandomAccessReader(path);
  try {
    const buffer = Buffer.allocUnsafeSlow(Math.max(0, Math.min(CHUNK_BYTES, end - start)));
    for (let at = start; at < end; at += CHUNK_BYTES) {
      const chunk = buffer.subarray(0, Math.min(CHUNK_BYTES, end - at));
      reader.readInto(chunk, at);
      yield chunk;
    }
  } finally {
    reader.close();
  }
}

/** Copies each chunk for streams, which read ahead. */
export async function* copyChunks(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
  for await (const chunk of chunks) yield Uint8Array.from(chunk);
}

async function* gunzip(
  chunks: AsyncIterable<Uint8Array>,
  path: string,
): AsyncGenerator<Uint8Array> {
  let given = 0;
  const counted = async function* (): AsyncGenerator<Uint8Array> {
    for await (const chunk of chunks) {
      given += chunk.length;
      yield chunk;
    }
  };
  const unpacker = createGunzip({ chunkSize: UNPACKED_BYTES });
  pipeline(Readable.from(counted()), unpacker, () => undefined);
  try {
    yield* unpacker;
  } catch (error) {
    throw createUnpackError(error, path, 'gzip');
  }
  // createGunzip silently ignores bytes after the last valid member, such as a damaged one.
  if (unpacker.bytesWritten !== given) {
    throw new CubeError(
      'CORRUPT',
      `${path}: byte ${unpacker.bytesWritten}: the following bytes are not gzip data`,
    );
  }
}

async function* unzstd(
  chunks: AsyncIterable<Uint8Array>,
  path: string,
): AsyncGenerator<Uint8Array> {
  let unpacked: Uint8Array[] = [];
  const unpacker = new Decompress((chunk) => unpacked.push(chunk));
  const push = (chunk: Uint8Array, last: boolean): Uint8Array[] => {
    try {
      unpacked = [];
      unpacker.push(chunk, last);
      return unpacked;
    } catch (error) {
      throw createUnpackError(error, path, 'zstd');
    }
  };
  for await (const chunk of chunks) {
    for (let at = 0; at < chunk.length; at += ZSTD_PIECE_BYTES) {
      yield* push(chunk.subarray(at, at + ZSTD_PIECE_BYTES), false);
    }
  }
  yield* push(new Uint8Array(0), true);
}

function createUnpackError(error: unknown, path: string, format: Compression): CubeError {
  if (error instanceof CubeError) return error;
  return new CubeError(
    'CORRUPT',
    `${path}: damaged or truncated ${format} data: ${(error as Error).message}`,
    { cause: error },
  );
}

/**
 * Opens standard input like a file. It can be read twice: the first reading determines the width
 * of the rows, and the bytes it took are kept for the second reading, which reads to the end.
 */
export async function openStandardInput(stream: AsyncIterable<Uint8Array>): Promise<InputFile> {
  const chunks = stream[Symbol.asyncIterator]();
  let head: Uint8Array[] | undefined = [];
  let headBytes = 0;
  const next = async (): Promise<Uint8Array | undefined> => {
    const { done, value } = await chunks.next();
    if (done === true) return undefined;
    headBytes += value.length;
    if (headBytes > HEAD_BYTES_MAX) head = undefined;
    head?.push(value);
    return value;
  };
  while (headBytes < 4 && (await next()) !== undefined);
  const compression = detectCompression(Buffer.concat(head));
  let readings = 0;
  const read = async function* (): AsyncGenerator<Uint8Array> {
    readings += 1;
    if (readings > 2 || head === undefined) {
      throw new CubeError('INVALID_ARGUMENT', 'standard input cannot be read twice; give a file');
    }
    const isLast = readings === 2;
    try {
      yield* [...head];
      if (isLast) head = undefined;
      for (let chunk = await next(); chunk !== undefined; chunk = await next()) yield chunk;
    } finally {
      // Otherwise a writer that does not stop would keep this process alive after a failure.
      if (isLast) await chunks.return?.();
    }
  };
  const about = { path: 'standard input', bytes: 0, mtimeMs: 0, unpackedBytes: undefined };
  return { ...about, compression, chunks: read };
}
