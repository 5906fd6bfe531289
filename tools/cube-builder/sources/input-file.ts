/**
 * One input as a stream of bytes: a file or standard input, unpacked when it is gzip or zstd. Nothing is held but what
 * is under way.
 */
import { pipeline, Readable } from 'node:stream';
import { createGunzip } from 'node:zlib';
import { Decompress } from 'fzstd';
import { CubeError } from '../../../lib/core/errors.ts';
import { RandomReader, statPath } from '../../../lib/platform/files.ts';
import { ByteReader } from './byte-reader.ts';
import type { SourceFile } from './row-source.ts';

const CHUNK_BYTES = 256 << 10;
/** What is unpacked at a time. */
const UNPACKED_BYTES = 64 << 10;
/** zstd frames are small: fewer of them in a piece keep the unpacker's recursion shallow. */
const ZSTD_PIECE_BYTES = 16 << 10;

/** How far the first row of standard input may be. */
const HEAD_BYTES_MAX = 128 << 20;

export type Compression = 'gzip' | 'zstd';

export interface InputFile extends SourceFile {
  readonly compression: Compression | undefined;
  /** Undefined for what is packed and for standard input: its end shows when it is read. */
  readonly unpackedBytes: number | undefined;
  /** Raw bytes from the start. */
  readonly chunks: () => AsyncIterable<Uint8Array>;
}

/** @throws CubeError NOT_FOUND, or INVALID_ARGUMENT when it is not a file */
export function openFile(path: string): InputFile {
  const stat = statPath(path);
  if (stat === undefined) throw new CubeError('NOT_FOUND', `${path}: no such file or folder`);
  if (!stat.isFile) throw new CubeError('INVALID_ARGUMENT', `${path} is not a file`);
  const { bytes, mtimeMs } = stat;
  const compression = compressionOf(fileHead(path, 4));
  return {
    path,
    bytes,
    mtimeMs,
    compression,
    unpackedBytes: compression === undefined ? bytes : undefined,
    chunks: () => fileChunks(path, 0, bytes),
  };
}

/** The first bytes of a file, fewer when it is shorter. */
export function fileHead(path: string, maxBytes: number): Uint8Array {
  const reader = new RandomReader(path);
  try {
    const head = new Uint8Array(Math.min(reader.bytes, maxBytes));
    reader.readInto(head, 0);
    return head;
  } finally {
    reader.close();
  }
}

export function compressionOf(head: Uint8Array): Compression | undefined {
  if (head[0] === 0x1f && head[1] === 0x8b) return 'gzip';
  const [a, b, c, d] = head;
  return a === 0x28 && b === 0xb5 && c === 0x2f && d === 0xfd ? 'zstd' : undefined;
}

/** The unpacked bytes of an input; the caller closes the reader. */
export function readerOf(file: InputFile): ByteReader {
  const { path, compression } = file;
  const raw = file.chunks();
  if (compression === undefined) return new ByteReader(path, raw);
  const own = ownChunks(raw);
  const unpacked = compression === 'gzip' ? gunzip(own, path) : unzstd(own, path);
  return new ByteReader(`${path} (${compression})`, unpacked);
}

/**
 * Bytes start … end - 1 of a file in pieces, each valid until the next is asked for: what is dropped stays in the process
 * until the engine collects it, which it does late for memory outside its heap.
 */
export async function* fileChunks(
  path: string,
  start: number,
  end: number,
): AsyncGenerator<Uint8Array> {
  const reader = new RandomReader(path);
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

/** Each piece for itself, for streams, which read ahead. */
export async function* ownChunks(chunks: AsyncIterable<Uint8Array>): AsyncGenerator<Uint8Array> {
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
    throw unpackError(error, path, 'gzip');
  }
  // What follows the last member is dropped without a word: a damaged second member would be.
  if (unpacker.bytesWritten !== given) {
    throw new CubeError(
      'CORRUPT',
      `${path}: byte ${unpacker.bytesWritten}: what follows is not gzip data`,
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
      throw unpackError(error, path, 'zstd');
    }
  };
  for await (const chunk of chunks) {
    for (let at = 0; at < chunk.length; at += ZSTD_PIECE_BYTES) {
      yield* push(chunk.subarray(at, at + ZSTD_PIECE_BYTES), false);
    }
  }
  yield* push(new Uint8Array(0), true);
}

function unpackError(error: unknown, path: string, format: Compression): CubeError {
  if (error instanceof CubeError) return error;
  return new CubeError(
    'CORRUPT',
    `${path}: damaged or truncated ${format} data: ${(error as Error).message}`,
    { cause: error },
  );
}

/**
 * Standard input, unpacked like a file. What the first reading takes (to see how wide the rows are) is given again to the
 * second, which reads to the end; nothing is kept of a first reading that goes on.
 */
export async function standardInput(stream: AsyncIterable<Uint8Array>): Promise<InputFile> {
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
  const compression = compressionOf(Buffer.concat(head));
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
      // A writer that goes on must not keep the process of a reader that has failed.
      if (isLast) await chunks.return?.();
    }
  };
  const about = { path: 'standard input', bytes: 0, mtimeMs: 0, unpackedBytes: undefined };
  return { ...about, compression, chunks: read };
}
