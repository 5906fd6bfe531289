/**
 * Decoders of snappy and LZ4 blocks for bytes that may be hostile: every length is checked against what is there and
 * against the announced size before a byte is copied, so the work is bounded by the announced size.
 */
import { CubeError } from '../core/errors.ts';

class Block {
  readonly bytes: Uint8Array;
  readonly output: Uint8Array;
  readonly #name: string;
  at = 0;
  written = 0;

  /** Reads the size in front of the block: how both formats stand in brpc's frames. */
  constructor(name: string, bytes: Uint8Array, outputBytesMax: number) {
    this.#name = name;
    this.bytes = bytes;
    const size = this.#size();
    if (size > outputBytesMax) {
      throw new CubeError(
        'TOO_LARGE',
        `${name}: ${size} bytes when decompressed, the limit is ${outputBytesMax}; send less at once`,
      );
    }
    this.output = new Uint8Array(size);
  }

  get more(): boolean {
    return this.at < this.bytes.length;
  }

  byte(): number {
    if (this.at >= this.bytes.length) this.fail('it ends too early');
    return this.bytes[this.at++]!;
  }

  literals(length: number): void {
    if (length > this.bytes.length - this.at) this.fail('it ends too early');
    if (length > this.output.length - this.written) this.fail('it is longer than announced');
    this.output.set(this.bytes.subarray(this.at, this.at + length), this.written);
    this.at += length;
    this.written += length;
  }

  /** Repeats what was written `distance` bytes before; it may overlap what it writes. */
  copy(distance: number, length: number): void {
    if (distance === 0 || distance > this.written) this.fail('it refers to bytes before its start');
    if (length > this.output.length - this.written) this.fail('it is longer than announced');
    const output = this.output;
    const end = this.written + length;
    for (let at = this.written; at < end; at++) output[at] = output[at - distance]!;
    this.written = end;
  }

  finish(): Uint8Array {
    if (this.written < this.output.length) this.fail('it is shorter than announced');
    return this.output;
  }

  fail(what: string): never {
    throw new CubeError('INVALID_ARGUMENT', `not a ${this.#name} block: ${what}`);
  }

  #size(): number {
    let size = 0;
    for (let scale = 1; scale <= 2 ** 28; scale *= 128) {
      const byte = this.byte();
      size += (byte & 0x7f) * scale;
      if (byte < 0x80) return size;
    }
    return this.fail('its size is not a varint of 32 bits');
  }
}

/** @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
export function decodeSnappy(bytes: Uint8Array, outputBytesMax: number): Uint8Array {
  const block = new Block('snappy', bytes, outputBytesMax);
  while (block.more) {
    const tag = block.byte();
    const kind = tag & 3;
    if (kind === 0) block.literals(snappyLiterals(block, tag >>> 2));
    else if (kind === 1) block.copy(((tag >>> 5) << 8) | block.byte(), ((tag >>> 2) & 7) + 4);
    else block.copy(littleEndian(block, kind === 2 ? 2 : 4), (tag >>> 2) + 1);
  }
  return block.finish();
}

/** Up to 60 in the tag itself, else in the one to four bytes that follow. */
function snappyLiterals(block: Block, coded: number): number {
  return 1 + (coded < 60 ? coded : littleEndian(block, coded - 59));
}

function littleEndian(block: Block, byteCount: number): number {
  let value = 0;
  for (let i = 0, scale = 1; i < byteCount; i++, scale *= 256) value += block.byte() * scale;
  return value;
}

/** The size as a varint, then one LZ4 block: brpc's own framing. @throws CubeError INVALID_ARGUMENT, TOO_LARGE */
export function decodeLz4(bytes: Uint8Array, outputBytesMax: number): Uint8Array {
  const block = new Block('LZ4', bytes, outputBytesMax);
  while (block.more) {
    const token = block.byte();
    block.literals(lz4Length(block, token >>> 4));
    // The last sequence has literals only.
    if (!block.more) break;
    const distance = littleEndian(block, 2);
    block.copy(distance, lz4Length(block, token & 15) + 4);
  }
  return block.finish();
}

function lz4Length(block: Block, nibble: number): number {
  let length = nibble;
  if (nibble < 15) return length;
  for (let byte = 255; byte === 255; ) {
    byte = block.byte();
    length += byte;
  }
  return length;
}
