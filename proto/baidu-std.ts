/**
 * baidu_std, the framing of brpc: decodes frames to views and encodes frames into a caller's
 * buffer. Knows bytes only: no socket, no service. Drawn in docs/wire/README.md; the meta is
 * rpc-meta.proto.
 *
 * The decoder never buffers a frame over its limit (the header alone is enough to refuse it), and
 * copies nothing when one read contains whole frames.
 */
import { ERROR_DETAILS_KEY } from '../lib/core/error-details.ts';
import { CubeError } from '../lib/core/errors.ts';
import { xxh64 } from '../lib/core/hash.ts';
import {
  CHECKSUM_XXH64,
  decodeFrame,
  ERROR_CHECKSUM_KEY,
  ERROR_NAME_KEY,
  emptyFrame,
  FRAME_HEADER_BYTES,
  FRAME_MAGIC,
  type FrameFields,
  getChecksumBytes,
  readU32,
} from './frame-fields.ts';
import { type OutputBuffer, varintBytes } from './output-buffer.ts';
import { NameCache, WireReader } from './wire.ts';

const DEFAULT_MAX_FRAME_BYTES: number = 64 << 20;
/**
 * Maximum bytes of the meta. Its fields are read one by one: more would delay other connections.
 */
const META_BYTES_MAX = 256 << 10;
/** A larger buffer is released after the split frame that needed it. */
const KEPT_BUFFER_BYTES = 1 << 20;
const textDecoder = new TextDecoder('utf-8');
const NO_BYTES = new Uint8Array(0);
/** content_type, checksum_type = 0, checksum_value = "". */
const NO_CONTENT_TYPE_AND_CHECKSUM: Uint8Array = Uint8Array.of(0x50, 0, 0x58, 0, 0x62, 0);

export { COMPRESSION_NAMES, CONTENT_NAMES } from './frame-fields.ts';

/** One frame; FrameFields says how long it is valid. */
export type Frame = Readonly<FrameFields>;

/** The fields of a request that its response needs. */
export type ResponseContext = Pick<
  Frame,
  | 'bytes'
  | 'correlationStart'
  | 'correlationEnd'
  | 'compressType'
  | 'contentType'
  | 'checksumType'
  | 'checksumWithAttachment'
>;

/** A copy that does not keep the request's bytes, for a response that is sent later. */
export function copyResponseContext(request: ResponseContext): ResponseContext {
  const { compressType, contentType, checksumType, checksumWithAttachment } = request;
  const { slice } = Uint8Array.prototype;
  const bytes = slice.call(request.bytes, request.correlationStart, request.correlationEnd);
  return {
    bytes,
    correlationStart: 0,
    correlationEnd: bytes.length,
    compressType,
    contentType,
    checksumType,
    checksumWithAttachment,
  };
}

/**
 * Push parser: `push` bytes as they arrive, then call `next` until it returns false. It is unusable
 * after a throw.
 */
export class FrameDecoder {
  readonly frame: Frame;
  readonly #frame: FrameFields = emptyFrame();
  readonly #maxFrameBytes: number;
  readonly #names = new NameCache();
  #chunk: Uint8Array = NO_BYTES;
  #at = 0;
  /**
   * Two buffers for split frames: the caller may still read one while the next split frame is
   * collected.
   */
  #gathering: Uint8Array = NO_BYTES;
  #delivered: Uint8Array = NO_BYTES;
  #gathered = 0;

  constructor(maxFrameBytes: number = DEFAULT_MAX_FRAME_BYTES) {
    this.#maxFrameBytes = maxFrameBytes;
    this.frame = this.#frame;
  }

  /** Passes bytes to the decoder. `next` must have returned false for the bytes before. */
  push(chunk: Uint8Array): void {
    this.#chunk = chunk;
    this.#at = 0;
  }

  /**
   * @returns true when `frame` is the next whole frame
   * @throws CubeError when the bytes are not baidu_std, or exceed the limit
   */
  next(): boolean {
    if (this.#gathered > 0) return this.#nextGathered();
    const left = this.#chunk.length - this.#at;
    if (left < FRAME_HEADER_BYTES) return this.#keepRest(left);
    const total = FRAME_HEADER_BYTES + this.#checkHeader(this.#chunk, this.#at);
    if (left < total) return this.#keepRest(left);
    decodeFrame(this.#chunk, this.#at, total, this.#frame, this.#names);
    this.#at += total;
    return true;
  }

  /** Bytes of an unfinished frame in the buffer. */
  get bufferedBytes(): number {
    return this.#gathered;
  }

  /** Size of the buffers for split frames, also while there is none. */
  get capacityBytes(): number {
    return this.#gathering.length + this.#delivered.length;
  }

  /**
   * Releases the buffers that hold no unfinished frame. The last frame's bytes must not be read
   * afterwards.
   */
  releaseBuffers(): void {
    this.#delivered = NO_BYTES;
    if (this.#gathered === 0) this.#gathering = NO_BYTES;
  }

  #keepRest(left: number): false {
    if (left > 0) this.#gather(left);
    this.#chunk = NO_BYTES;
    this.#at = 0;
    return false;
  }

  #nextGathered(): boolean {
    if (this.#gathered < FRAME_HEADER_BYTES && !this.#gatherUpTo(FRAME_HEADER_BYTES)) return false;
    const total = FRAME_HEADER_BYTES + this.#checkHeader(this.#gathering, 0);
    if (!this.#gatherUpTo(total)) return false;
    const bytes = this.#gathering;
    this.#gathering = this.#delivered.length > KEPT_BUFFER_BYTES ? NO_BYTES : this.#delivered;
    this.#delivered = bytes.length > KEPT_BUFFER_BYTES ? NO_BYTES : bytes;
    this.#gathered = 0;
    decodeFrame(bytes, 0, total, this.#frame, this.#names);
    return true;
  }

  #gatherUpTo(total: number): boolean {
    const left = this.#chunk.length - this.#at;
    this.#gather(Math.min(left, total - this.#gathered));
    if (this.#gathered === total) return true;
    this.#chunk = NO_BYTES;
    this.#at = 0;
    return false;
  }

  /** Memory grows with the bytes received, not with the size that a header claims. */
  #gather(count: number): void {
    const needed = this.#gathered + count;
    if (needed > this.#gathering.length) {
      const grown = new Uint8Array(Math.max(needed, 2 * this.#gathering.length, 4096));
      grown.set(this.#gathering.subarray(0, this.#gathered));
      this.#gathering = grown;
    }
    this.#gathering.set(this.#chunk.subarray(this.#at, this.#at + count), this.#gathered);
    this.#at += count;
    this.#gathered = needed;
  }

  /** @returns the body size */
  #checkHeader(bytes: Uint8Array, at: number): number {
    if (readU32(bytes, at) !== FRAME_MAGIC) {
      throw new CubeError('INVALID_ARGUMENT', 'baidu_std: a frame must begin with "PRPC"');
    }
    const bodySize = readU32(bytes, at + 4);
    const metaSize = readU32(bytes, at + 8);
    if (bodySize > this.#maxFrameBytes) {
      throw new CubeError(
        'TOO_LARGE',
        `baidu_std: a frame body of ${bodySize} bytes is over the limit of ` +
          `${this.#maxFrameBytes}; send smaller batches`,
      );
    }
    if (metaSize > bodySize) {
      throw new CubeError(
        'INVALID_ARGUMENT',
        `baidu_std: the meta (${metaSize} bytes) is longer than the body (${bodySize} bytes)`,
      );
    }
    if (metaSize > META_BYTES_MAX) {
      throw new CubeError(
        'TOO_LARGE',
        `baidu_std: a meta of ${metaSize} bytes, the limit is ${META_BYTES_MAX}; ` +
          'send data as payload or attachment',
      );
    }
    return bodySize;
  }
}

/** The frame's correlation id as a number; exact up to 2^53, 0 without one. */
export function readCorrelationId(frame: Frame): number {
  let value = 0;
  let scale = 1;
  for (let at = frame.correlationStart; at < frame.correlationEnd; at++) {
    value += (frame.bytes[at]! & 0x7f) * scale;
    scale *= 0x80;
  }
  return value;
}

/** The caller's log id; 0 without one. */
export function readLogId(frame: Frame): bigint {
  const { bytes, logIdStart, logIdEnd } = frame;
  return logIdStart === logIdEnd ? 0n : new WireReader(bytes, logIdStart, logIdEnd).int64();
}

/** The caller's request id; empty without one. */
export function readRequestId(frame: Frame): string {
  return textDecoder.decode(frame.bytes.subarray(frame.requestIdStart, frame.requestIdEnd));
}

/** The caller's credential (`authentication_data`); empty without one. */
export function readAuthentication(frame: Frame): string {
  const { bytes, authenticationStart, authenticationEnd } = frame;
  return textDecoder.decode(bytes.subarray(authenticationStart, authenticationEnd));
}

/**
 * Begins a success response to `request` that will carry `attachmentBytes`: header and meta. Then
 * append the payload and exactly that many attachment bytes, and call `finishFrame(output,
 * frameStart, metaEnd)`, where frameStart is the output's length before this call and metaEnd its
 * result. The meta is equal to that of brpc 1.17. It declares the compression, content type and
 * checksum of the request: where there are any, seal the payload before finishing.
 */
export function beginResponse(
  output: OutputBuffer,
  request: ResponseContext,
  attachmentBytes: number,
): number {
  let at = output.reserve(FRAME_HEADER_BYTES + 48);
  const bytes = output.bytes;
  at += FRAME_HEADER_BYTES;
  bytes[at++] = 0x12; // response { error_code = 0 }
  bytes[at++] = 2;
  bytes[at++] = 0x08;
  bytes[at++] = 0;
  bytes[at++] = 0x18;
  bytes[at++] = request.compressType;
  bytes[at++] = 0x20;
  if (request.correlationStart === request.correlationEnd) bytes[at++] = 0;
  for (let i = request.correlationStart; i < request.correlationEnd; i++) {
    bytes[at++] = request.bytes[i]!;
  }
  if (attachmentBytes > 0) {
    bytes[at++] = 0x28;
    for (let rest = attachmentBytes; ; rest >>>= 7) {
      if (rest < 0x80) {
        bytes[at++] = rest;
        break;
      }
      bytes[at++] = (rest & 0x7f) | 0x80;
    }
  }
  bytes[at++] = 0x50;
  bytes[at++] = request.contentType;
  bytes[at++] = 0x58;
  bytes[at++] = request.checksumType;
  bytes[at++] = 0x62;
  if (request.checksumType === 0) bytes[at++] = 0;
  else {
    const checksumBytes = getChecksumBytes(request.checksumType);
    bytes[at++] = checksumBytes;
    at += checksumBytes;
  }
  if (request.checksumWithAttachment) {
    bytes[at++] = 0x68;
    bytes[at++] = 1;
  }
  output.truncate(at);
  return at;
}

/** Resets the compression that `beginResponse` declared. */
export function setUncompressed(output: OutputBuffer, frameStart: number): void {
  output.bytes[frameStart + FRAME_HEADER_BYTES + 5] = 0;
}

/** Where the checksum of a response to a request that had one must be written. */
export function findChecksum(metaEnd: number, request: ResponseContext): number {
  const bytesAfter = request.checksumWithAttachment ? 2 : 0;
  return metaEnd - bytesAfter - getChecksumBytes(request.checksumType);
}

/**
 * Appends a whole error response.
 * @param request undefined: an error of the connection, without correlation id
 * @param errorName the exact code where several share the number
 * @param errorDetails what `encodeErrorDetails` returned
 */
export function writeErrorResponse(
  output: OutputBuffer,
  request: ResponseContext | undefined,
  errorCode: number,
  errorText: string,
  errorName = '',
  errorDetails = '',
): void {
  const frameStart = output.reserve(FRAME_HEADER_BYTES);
  const text = new TextEncoder().encode(errorText);
  output.appendByte(0x12);
  output.appendVarint(1 + varintBytes(errorCode) + 1 + varintBytes(text.length) + text.length);
  output.appendByte(0x08);
  output.appendVarint(errorCode);
  output.appendByte(0x12);
  output.appendVarint(text.length);
  output.append(text);
  output.appendByte(0x18);
  output.appendByte(0);
  if (request !== undefined) {
    output.appendByte(0x20);
    const { bytes, correlationStart, correlationEnd } = request;
    if (correlationStart === correlationEnd) output.appendByte(0);
    output.appendRange(bytes, correlationStart, correlationEnd);
  }
  if (errorName !== '') appendUserField(output, ERROR_NAME_KEY, errorName);
  if (errorDetails !== '') appendUserField(output, ERROR_DETAILS_KEY, errorDetails);
  // Only our clients ask for xxh64; others get the bytes of brpc.
  if (request?.checksumType === CHECKSUM_XXH64) {
    const meta = output.bytes.subarray(frameStart + FRAME_HEADER_BYTES, output.length);
    appendUserField(output, ERROR_CHECKSUM_KEY, formatChecksum(meta));
  }
  output.append(NO_CONTENT_TYPE_AND_CHECKSUM);
  finishFrame(output, frameStart, output.length);
}

/** @returns false if the error was changed on its way; an error without a checksum is accepted */
export function hasIntactError(frame: FrameFields): boolean {
  const { bytes, metaStart, errorChecksum, errorChecksumStart } = frame;
  if (errorChecksum === '') return true;
  return formatChecksum(bytes.subarray(metaStart, errorChecksumStart)) === errorChecksum;
}

function formatChecksum(bytes: Uint8Array): string {
  return xxh64(bytes).toString(16).padStart(16, '0');
}

/** Appends one of the meta's user_fields; both texts are ASCII. */
function appendUserField(output: OutputBuffer, key: string, value: string): void {
  const keyBytes = 1 + varintBytes(key.length) + key.length;
  output.appendByte(0x4a);
  output.appendVarint(keyBytes + 1 + varintBytes(value.length) + value.length);
  output.appendString(0x0a, key);
  output.appendString(0x12, value);
}

/** Writes the header of the frame from `frameStart` to the end of the output. */
export function finishFrame(output: OutputBuffer, frameStart: number, metaEnd: number): void {
  const bodyStart = frameStart + FRAME_HEADER_BYTES;
  output.view.setUint32(frameStart, FRAME_MAGIC);
  output.view.setUint32(frameStart + 4, output.length - bodyStart);
  output.view.setUint32(frameStart + 8, metaEnd - bodyStart);
}
