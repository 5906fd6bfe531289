/**
 * The compression types of brpc's frames, by number: 1 snappy (a block), 2 gzip, 3 zlib, 4 LZ4 (the
 * size as a varint, then one block). Decompression stops at a maximum size before the output can
 * grow beyond it.
 */
import { deflateSync, gunzipSync, gzipSync, inflateSync } from 'node:zlib';
import lz4 from 'lz4js';
import snappy from 'snappyjs';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { decodeLz4, decodeSnappy } from './block-decoding.ts';

const SNAPPY = 1;
export const COMPRESSION_GZIP = 2;
export const COMPRESSION_ZLIB = 3;
export const COMPRESSION_LZ4 = 4;
/** Favors speed over size, for short-lived messages on a fast network. */
const LEVEL = 1;
const lz4HashTable = new Uint32Array(1 << 16);

/** @param type 1 … 4 */
export function compress(type: number, bytes: Uint8Array): Uint8Array {
  switch (type) {
    case SNAPPY:
      return snappy.compress(bytes);
    case COMPRESSION_GZIP:
      return gzipSync(bytes, { level: LEVEL });
    case COMPRESSION_ZLIB:
      return deflateSync(bytes, { level: LEVEL });
    default:
      return compressLz4(bytes);
  }
}

/**
 * @param type 1 … 4
 * @throws CubeError INVALID_ARGUMENT when the bytes are not of this type, TOO_LARGE when the output
 *   would exceed `bytesMax`
 */
export function decompress(type: number, bytes: Uint8Array, bytesMax: number): Uint8Array {
  switch (type) {
    case SNAPPY:
      return decodeSnappy(bytes, bytesMax);
    case COMPRESSION_GZIP:
      return inflate('gzip', gunzipSync, bytes, bytesMax);
    case COMPRESSION_ZLIB:
      return inflate('zlib', inflateSync, bytes, bytesMax);
    default:
      return decodeLz4(bytes, bytesMax);
  }
}

function inflate(
  name: string,
  run: typeof gunzipSync,
  bytes: Uint8Array,
  bytesMax: number,
): Uint8Array {
  try {
    // A limit of zero would mean no limit.
    return run(bytes, { maxOutputLength: Math.max(1, bytesMax) });
  } catch (error) {
    const { code, message } = error as NodeJS.ErrnoException;
    if (code === 'ERR_BUFFER_TOO_LARGE') {
      throw new CubeError(
        'TOO_LARGE',
        `${name}: more than ${bytesMax} bytes when decompressed; send smaller batches`,
      );
    }
    throw new CubeError('INVALID_ARGUMENT', `not ${name}: ${message}`, { cause: error });
  }
}

function compressLz4(bytes: Uint8Array): Uint8Array {
  const output = new OutputBuffer(bytes.length + Math.ceil(bytes.length / 255) + 32);
  output.appendVarint(bytes.length);
  lz4HashTable.fill(0);
  const block = new Uint8Array(output.bytes.length);
  const length = lz4.compressBlock(bytes, block, 0, bytes.length, lz4HashTable);
  if (length > 0) output.append(block.subarray(0, length));
  else appendLiterals(output, bytes);
  return output.writtenBytes();
}

/** Appends an uncompressed block: one sequence of literals. */
function appendLiterals(output: OutputBuffer, bytes: Uint8Array): void {
  output.appendByte(Math.min(15, bytes.length) << 4);
  if (bytes.length >= 15) {
    let rest = bytes.length - 15;
    for (; rest >= 255; rest -= 255) output.appendByte(255);
    output.appendByte(rest);
  }
  output.append(bytes);
}
