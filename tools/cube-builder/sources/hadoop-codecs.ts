/**
 * Decompression of what Hadoop's codecs write, in SequenceFiles and in Parquet pages. Every result
 * has a limit. Wrong bytes throw an error; the caller adds the place.
 */
import { gunzipSync, inflateSync } from 'node:zlib';
import { Decompress } from 'fzstd';
import { CubeError } from '../../../lib/core/errors.ts';
import { decodeLz4Block, decodeSnappy } from '../../../lib/rpc/block-decoding.ts';

/** @param outputBytesMax a larger result is an error */
export type Decompressor = (bytes: Uint8Array, outputBytesMax: number) => Uint8Array;

const PACKAGE = 'org.apache.hadoop.io.compress.';
/** No LZ4 or snappy block expands more. */
const RATIO_MAX = 255;
/** The decompressor recurses for each frame; small pieces limit the depth. */
const ZSTD_PIECE_BYTES = 16 << 10;

const inflate: Decompressor = (bytes, max) =>
  inflateSync(bytes, { maxOutputLength: Math.max(1, max) });

const CODECS: Readonly<Record<string, Decompressor>> = {
  DefaultCodec: inflate,
  DeflateCodec: inflate,
  GzipCodec: (bytes, max) => gunzipSync(bytes, { maxOutputLength: Math.max(1, max) }),
  SnappyCodec: (bytes, max) => decodeHadoopBlocks(bytes, max, decodeSnappy),
  Lz4Codec: (bytes, max) => decodeHadoopBlocks(bytes, max, decodeLz4Block),
  ZStandardCodec: decodeZstd,
};

/** @param codec class name in the header of a SequenceFile @returns undefined if it is unknown */
export function findDecompressor(codec: string): Decompressor | undefined {
  if (!codec.startsWith(PACKAGE)) return undefined;
  const name = codec.slice(PACKAGE.length);
  return Object.hasOwn(CODECS, name) ? CODECS[name] : undefined;
}

export const CODEC_NAMES: readonly string[] = Object.keys(CODECS);

/**
 * Parquet's codec LZ4: Hadoop's framing, or a plain LZ4 block, which other writers wrote under the
 * same name.
 * @param length exact size of the result
 */
export function decodeParquetLz4(bytes: Uint8Array, length: number): Uint8Array {
  try {
    const decoded = decodeHadoopBlocks(bytes, length, decodeLz4Block);
    if (decoded.length === length) return decoded;
  } catch {
    // Not framed.
  }
  return decodeLz4Block(bytes, length);
}

/**
 * Hadoop's framing: chunks of u32 BE size when decompressed, then blocks of u32 BE length and
 * compressed bytes until that size is reached.
 */
function decodeHadoopBlocks(
  bytes: Uint8Array,
  outputBytesMax: number,
  decodeBlock: Decompressor,
): Uint8Array {
  const view = new DataView(bytes.buffer, bytes.byteOffset, bytes.byteLength);
  const parts: Uint8Array[] = [];
  let total = 0;
  const readLength = (at: number): number => {
    if (at + 4 > bytes.length) throw damaged('it ends inside a length');
    return view.getUint32(at);
  };
  for (let at = 0; at < bytes.length; ) {
    let missing = readLength(at);
    at += 4;
    if (total + missing > outputBytesMax) throw tooLarge(total + missing, outputBytesMax);
    // So that a damaged size allocates no more than the data justifies.
    if (missing > RATIO_MAX * (bytes.length - at)) throw damaged('a size that is too large');
    total += missing;
    while (missing > 0) {
      const length = readLength(at);
      at += 4;
      if (length === 0 || at + length > bytes.length) throw damaged('it ends inside a block');
      const part = decodeBlock(bytes.subarray(at, at + length), missing);
      if (part.length === 0) throw damaged('an empty block');
      at += length;
      missing -= part.length;
      parts.push(part);
    }
  }
  return Buffer.concat(parts, total);
}

function decodeZstd(bytes: Uint8Array, outputBytesMax: number): Uint8Array {
  const parts: Buffer[] = [];
  let total = 0;
  const decompress = new Decompress((part) => {
    total += part.length;
    if (total > outputBytesMax) throw tooLarge(total, outputBytesMax);
    parts.push(Buffer.from(part));
  });
  for (let at = 0; at < bytes.length; at += ZSTD_PIECE_BYTES) {
    const end = at + ZSTD_PIECE_BYTES;
    decompress.push(bytes.subarray(at, end), end >= bytes.length);
  }
  return Buffer.concat(parts, total);
}

function damaged(problem: string): CubeError {
  return new CubeError('CORRUPT', `compressed data is damaged: ${problem}`);
}

function tooLarge(bytes: number, max: number): CubeError {
  return new CubeError('TOO_LARGE', `${bytes} bytes when decompressed, the limit is ${max}`);
}
