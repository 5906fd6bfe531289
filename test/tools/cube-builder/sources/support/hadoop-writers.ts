/**
 * SequenceFiles as Hadoop writes them: BytesWritable records, compressed one by one or in blocks.
 * The encoders are independent of the decoders under test: zlib, snappyjs, lz4js, and literals.
 */
import { deflateSync, gzipSync } from 'node:zlib';
import lz4 from 'lz4js';
import snappy from 'snappyjs';
import { SYNC } from './writers.ts';

export type Compress = (bytes: Uint8Array) => Uint8Array;

const ESCAPE = Buffer.from('ffffffff', 'hex');
/** Blocks of Hadoop's framing, small so that chunks have several. */
const BLOCK_BYTES = 300;

function u32(value: number): Buffer {
  const bytes = Buffer.alloc(4);
  bytes.writeUInt32BE(value);
  return bytes;
}

/** Hadoop's WritableUtils.writeVInt. */
function encodeVint(value: number): Buffer {
  if (value >= -112 && value <= 127) return Buffer.from([value & 0xff]);
  const bytes: number[] = [];
  for (let rest = value < 0 ? -1 - value : value; rest > 0; rest = Math.floor(rest / 256)) {
    bytes.unshift(rest % 256);
  }
  return Buffer.from([((value < 0 ? -120 : -112) - bytes.length) & 0xff, ...bytes]);
}

/** A block of literals only, as every LZ4 encoder may write it. */
function encodeLz4Literals(bytes: Uint8Array): Uint8Array {
  const { length } = bytes;
  if (length < 15) return Buffer.concat([Buffer.from([length << 4]), bytes]);
  const more = length - 15;
  const lengths = Buffer.alloc(Math.floor(more / 255) + 1, 255);
  lengths[lengths.length - 1] = more % 255;
  return Buffer.concat([Buffer.from([0xf0]), lengths, bytes]);
}

export function encodeLz4Block(bytes: Uint8Array): Uint8Array {
  const target = Buffer.alloc(2 * bytes.length + 64);
  const written = lz4.compressBlock(bytes, target, 0, bytes.length, new Uint32Array(1 << 16));
  return written === 0 ? encodeLz4Literals(bytes) : target.subarray(0, written);
}

/** A zstd frame of raw blocks: magic, no options, a window of 1 MiB. */
function encodeZstd(bytes: Uint8Array): Uint8Array {
  const header = bytes.length * 8 + 1;
  const block = Buffer.from([header & 0xff, (header >> 8) & 0xff, header >> 16]);
  return Buffer.concat([Buffer.from('28b52ffd0050', 'hex'), block, bytes]);
}

/** Hadoop's framing: the size of a chunk, then its blocks, each with its length. */
export function frame(compressBlock: Compress): Compress {
  return (bytes) => {
    const parts: Uint8Array[] = [];
    const half = Math.ceil(bytes.length / 2);
    for (const chunk of [bytes.subarray(0, half), bytes.subarray(half)]) {
      parts.push(u32(chunk.length));
      for (let at = 0; at < chunk.length; at += BLOCK_BYTES) {
        const block = compressBlock(chunk.subarray(at, at + BLOCK_BYTES));
        parts.push(u32(block.length), block);
      }
    }
    return Buffer.concat(parts);
  };
}

/** By class name, without its package. */
export const CODECS: Readonly<Record<string, Compress>> = {
  DefaultCodec: (bytes) => deflateSync(bytes),
  GzipCodec: (bytes) => gzipSync(bytes),
  SnappyCodec: frame((bytes) => snappy.compress(bytes)),
  Lz4Codec: frame(encodeLz4Block),
  ZStandardCodec: encodeZstd,
};

const toWritable = (bytes: Uint8Array): Buffer => Buffer.concat([u32(bytes.length), bytes]);

function toKey(key: bigint): Buffer {
  const bytes = Buffer.alloc(8);
  bytes.writeBigUInt64LE(key);
  return toWritable(bytes);
}

function encodeText(text: string): Buffer {
  return Buffer.concat([encodeVint(text.length), Buffer.from(text)]);
}

function encodeHeader(codec: string | undefined, isBlocks: boolean): Buffer {
  const className = encodeText('org.apache.hadoop.io.BytesWritable');
  const flags = Buffer.from([codec === undefined ? 0 : 1, isBlocks ? 1 : 0]);
  const name = codec === undefined ? [] : [encodeText(`org.apache.hadoop.io.compress.${codec}`)];
  return Buffer.concat([
    Buffer.from('SEQ\x06', 'latin1'),
    className,
    className,
    flags,
    ...name,
    u32(0),
    SYNC,
  ]);
}

type Records = readonly (readonly [bigint, Uint8Array])[];

/** @param codec undefined: not compressed */
export function encodeHadoopRecords(records: Records, codec?: string): Buffer {
  const compress = codec === undefined ? (bytes: Uint8Array) => bytes : CODECS[codec]!;
  const parts: Uint8Array[] = [encodeHeader(codec, false)];
  for (const [key, value] of records) {
    const keyBytes = toKey(key);
    const valueBytes = compress(toWritable(value));
    parts.push(u32(keyBytes.length + valueBytes.length), u32(keyBytes.length));
    parts.push(keyBytes, valueBytes, ESCAPE, SYNC);
  }
  return Buffer.concat(parts);
}

/** @param perBlock records of each block */
export function encodeHadoopBlocks(records: Records, codec: string, perBlock: number): Buffer {
  const compress = CODECS[codec]!;
  const parts: Uint8Array[] = [encodeHeader(codec, true)];
  for (let at = 0; at < records.length; at += perBlock) {
    const block = records.slice(at, at + perBlock);
    const keys = block.map(([key]) => toKey(key));
    const values = block.map(([, value]) => toWritable(value));
    parts.push(ESCAPE, SYNC, encodeVint(block.length));
    for (const list of [keys, values]) {
      for (const bytes of [list.map(({ length }) => encodeVint(length)), list]) {
        const packed = compress(Buffer.concat(bytes));
        parts.push(encodeVint(packed.length), packed);
      }
    }
  }
  return Buffer.concat(parts);
}
