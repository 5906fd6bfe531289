/**
 * Decoders of snappy and LZ4 blocks for untrusted input. Every length is checked against the
 * remaining input and the declared size before a byte is copied, so the declared size bounds the
 * work.
 */
import { CubeError } from '../core/errors.ts';

class BlockDecoder {
  readonly bytes: Uint8Array;
  readonly output: Uint8Array;
  readonly #name: string;
  position = 0;
  written = 0;

  /** @param size of the output; undefined: it precedes the block, as in brpc's frames */
  constructor(name: string, bytes: Uint8Array, outputBytesMax: number, size?: number) {
    this.#name = name;
    this.bytes = bytes;
    const outputBytes = size ?? this.#size();
    if (outputBytes > outputBytesMax) {
      throw new CubeError(
        'TOO_LARGE',
        `${name}: ${outputBytes} bytes when decompressed, the limit is ${outputBytesMax}; ` +
          'send smaller batches',
      );
    }
    this.output = new Uint8Array(outputBytes);
  }

  get hasMore(): boolean {
    return this.position < this.bytes.length;
  }

  readByte(): number {
    if (this.position >= this.bytes.length) this.fail('it is truncated');
    return this.bytes[this.position++]!;
  }

  copyLiterals(length: number): void {
    if (length > this.bytes.length - this.position) this.fail('it is truncated');
    if (length > this.output.length - this.written)
      this.fail('it is longer than its declared size');
    this.output.set(this.bytes.subarray(this.position, this.position + length), this.written);
    this.position += length;
    this.written += length;
  }

  /** Repeats the output from `distance` bytes before; the ranges may overlap. */
  copyMatch(distance: number, length: number): void {
    if (distance === 0 || distance > this.written) this.fail('it refers to bytes before its start');
    if (length > this.output.length - this.written)
      this.fail('it is longer than its declared size');
    const output = this.output;
    const end = this.written + length;
    for (let at = this.written; at < end; at++) output[at] = output[at - distance]!;
    this.written = end;
  }

  finish(): Uint8Array {
    if (this.written < this.output.length) this.fail('it is shorter than its declared size');
    return this.output;
  }

  fail(problem: string): never {
    throw new CubeError('INVALID_ARGUMENT', `not a ${this.#name} block: ${problem}`);
  }

  #size(): number {
    let size = 0;
    for (let scale = 1; scale <= 2 ** 28; scale *= 128) {
      const byte = this.readByte();
      size += (byte & 0x7f) * scale;
      if (byte < 0x80) return size;
    }
    return this.fail('its size is not a varint of 32 bits');
  }
}

/** @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
export function decodeSnappy(bytes: Uint8Array, outputBytesMax: number): Uint8Array {
  const block = new BlockDecoder('snappy', bytes, outputBytesMax);
  while (block.hasMore) {
    const tag = block.readByte();
    const kind = tag & 3;
    if (kind === 0) block.copyLiterals(readSnappyLiteralLength(block, tag >>> 2));
    else if (kind === 1)
      block.copyMatch(((tag >>> 5) << 8) | block.readByte(), ((tag >>> 2) & 7) + 4);
    else block.copyMatch(readLittleEndian(block, kind === 2 ? 2 : 4), (tag >>> 2) + 1);
  }
  return block.finish();
}

/** Lengths up to 60 are in the tag itself, longer ones in the following one to four bytes. */
function readSnappyLiteralLength(block: BlockDecoder, coded: number): number {
  return 1 + (coded < 60 ? coded : readLittleEndian(block, coded - 59));
}

function readLittleEndian(block: BlockDecoder, byteCount: number): number {
  let value = 0;
  for (let i = 0, scale = 1; i < byteCount; i++, scale *= 256) value += block.readByte() * scale;
  return value;
}

/**
 * Decodes brpc's framing: the size as a varint, then one LZ4 block. @throws CubeError
 * INVALID_ARGUMENT, TOO_LARGE
 */
export function decodeLz4(bytes: Uint8Array, outputBytesMax: number): Uint8Array {
  const block = new BlockDecoder('LZ4', bytes, outputBytesMax);
  decodeLz4Sequences(block);
  return block.finish();
}

/**
 * Decodes one LZ4 block, whose decompressed size is not stored in it.
 * @returns at most `outputBytesMax` bytes
 * @throws CubeError INVALID_ARGUMENT
 */
export function decodeLz4Block(bytes: Uint8Array, outputBytesMax: number): Uint8Array {
  const block = new BlockDecoder('LZ4', bytes, outputBytesMax, outputBytesMax);
  decodeLz4Sequences(block);
  return block.output.subarray(0, block.written);
}

function decodeLz4Sequences(block: BlockDecoder): void {
  while (block.hasMore) {
    const token = block.readByte();
    block.copyLiterals(readLz4Length(block, token >>> 4));
    // The last sequence has only literals.
    if (!block.hasMore) break;
    const distance = readLittleEndian(block, 2);
    block.copyMatch(distance, readLz4Length(block, token & 15) + 4);
  }
}

function readLz4Length(block: BlockDecoder, nibble: number): number {
  let length = nibble;
  if (nibble < 15) return length;
  for (let byte = 255; byte === 255; ) {
    byte = block.readByte();
    length += byte;
  }
  return length;
}
