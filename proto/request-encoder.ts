/** Encodes requests of baidu_std (baidu-std.ts). */
import { CubeError } from '../lib/core/errors.ts';
import { FRAME_HEADER_BYTES, FRAME_MAGIC, getChecksumBytes } from './frame-fields.ts';
import { OutputBuffer, varintBytes } from './output-buffer.ts';

const NO_BYTES = new Uint8Array(0);

export interface RequestCall {
  /** In 0 … 2^53. */
  readonly correlation: number;
  /** 0: unbounded. */
  readonly timeoutMs: number;
  /** Already compressed as `compressType` states. */
  readonly payload: Uint8Array;
  readonly attachment: Uint8Array;
  readonly compressType?: number;
  /** The caller writes the checksum, which covers payload and attachment. Default 0: none. */
  readonly checksumType?: number;
  /** Further fields of the meta, as `encodeTraceFields` returns them. Default: none. */
  readonly traceFields?: Uint8Array;
}

/** Maximum bytes of the meta's fields after the prefix. */
const META_REST_BYTES = 10 + 6 + 2 + 14;

/**
 * Encodes requests to one method. Their common part is encoded once: frame header, names, timeout.
 * A client keeps the same timeout for many calls, so the prefix includes it.
 */
export class RequestEncoder {
  readonly service: string;
  readonly method: string;
  readonly #names: Uint8Array;
  #authentication: Uint8Array = NO_BYTES;
  #timeoutMs = -1;
  #prefix: Uint8Array = NO_BYTES;

  constructor(service: string, method: string) {
    this.service = service;
    this.method = method;
    const encoder = new TextEncoder();
    const serviceBytes = encoder.encode(service);
    const methodBytes = encoder.encode(method);
    if (serviceBytes.length > 127 || methodBytes.length > 127) {
      throw new CubeError('INVALID_ARGUMENT', `service and method names are at most 127 bytes`);
    }
    this.#names = Uint8Array.from([
      0x0a,
      serviceBytes.length,
      ...serviceBytes,
      0x12,
      methodBytes.length,
      ...methodBytes,
    ]);
  }

  /** The credential that every further request carries; empty: none. */
  set authentication(text: string) {
    this.#authentication = new TextEncoder().encode(text);
    this.#timeoutMs = -1;
  }

  /**
   * Appends one whole request frame.
   * @returns where its payload begins, after the bytes reserved for the checksum
   */
  write(output: OutputBuffer, call: RequestCall): number {
    const {
      payload,
      attachment,
      compressType = 0,
      checksumType = 0,
      traceFields = NO_BYTES,
    } = call;
    const timeoutMs = Math.ceil(Math.min(call.timeoutMs, 0x7fff_ffff));
    if (timeoutMs !== this.#timeoutMs) this.#setPrefix(timeoutMs);
    const prefix = this.#prefix;
    const bodyBytes = payload.length + attachment.length;
    const metaBytesMax = prefix.length + META_REST_BYTES + traceFields.length;
    const start = output.reserve(metaBytesMax + bodyBytes);
    const bytes = output.bytes;
    bytes.set(prefix, start);
    let at = writeVarint(bytes, start + prefix.length, call.correlation);
    if (attachment.length > 0) {
      bytes[at++] = 0x28;
      at = writeVarint(bytes, at, attachment.length);
    }
    if (compressType !== 0) {
      bytes[at++] = 0x18;
      bytes[at++] = compressType;
    }
    if (traceFields.length > 0) {
      bytes.set(traceFields, at);
      at += traceFields.length;
    }
    if (checksumType !== 0) {
      bytes[at++] = 0x68; // checksum_with_attachment
      bytes[at++] = 1;
      bytes[at++] = 0x58;
      bytes[at++] = checksumType;
      bytes[at++] = 0x62; // checksum_value
      bytes[at++] = getChecksumBytes(checksumType);
      at += getChecksumBytes(checksumType);
    }
    bytes.set(payload, at);
    if (attachment.length > 0) bytes.set(attachment, at + payload.length);
    output.truncate(at + bodyBytes);
    const bodyStart = start + FRAME_HEADER_BYTES;
    output.view.setUint32(start + 4, at + bodyBytes - bodyStart);
    output.view.setUint32(start + 8, at - bodyStart);
    return at;
  }

  #setPrefix(timeoutMs: number): void {
    const prefix = new OutputBuffer(512);
    prefix.reserve(FRAME_HEADER_BYTES);
    prefix.view.setUint32(0, FRAME_MAGIC);
    prefix.appendByte(0x0a);
    prefix.appendVarint(this.#names.length + (timeoutMs > 0 ? 1 + varintBytes(timeoutMs) : 0));
    prefix.append(this.#names);
    if (timeoutMs > 0) {
      prefix.appendByte(0x40);
      prefix.appendVarint(timeoutMs);
    }
    if (this.#authentication.length > 0) {
      prefix.appendByte(0x3a); // authentication_data
      prefix.appendVarint(this.#authentication.length);
      prefix.append(this.#authentication);
    }
    prefix.appendByte(0x20);
    this.#prefix = prefix.writtenBytes();
    this.#timeoutMs = timeoutMs;
  }
}

/**
 * Writes a number in 0 … 2^53 as a varint. It works on 28-bit parts, because shifts of small
 * integers are fast.
 */
function writeVarint(bytes: Uint8Array, start: number, value: number): number {
  let at = start;
  let rest = value;
  while (rest >= 0x1000_0000) {
    const low = rest % 0x1000_0000;
    bytes[at++] = (low & 0x7f) | 0x80;
    bytes[at++] = ((low >>> 7) & 0x7f) | 0x80;
    bytes[at++] = ((low >>> 14) & 0x7f) | 0x80;
    bytes[at++] = (low >>> 21) | 0x80;
    rest = (rest - low) / 0x1000_0000;
  }
  let small = rest | 0;
  for (; small > 0x7f; small >>>= 7) bytes[at++] = (small & 0x7f) | 0x80;
  bytes[at++] = small;
  return at;
}
