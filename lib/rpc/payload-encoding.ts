/**
 * The optional encoding of payloads in frames: compression, and a checksum over the compressed
 * payload. Requests are decoded before their handler runs; responses use the encoding of their
 * request. Plain frames bypass this file.
 */
import {
  COMPRESSION_NAMES,
  type Frame,
  findChecksum,
  type ResponseContext,
  setUncompressed,
} from '../../proto/baidu-std.ts';
import { CHECKSUM_XXH64, getChecksumBytes } from '../../proto/frame-fields.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { hasChecksum, writeChecksum } from './checksums.ts';
import { COMPRESSION_LZ4, compress, decompress } from './compression.ts';

export function isEncoded({ compressType, checksumType }: ResponseContext): boolean {
  return compressType !== 0 || checksumType !== 0;
}

/**
 * Verifies the checksum and decompresses the payload. Returns the same frame when there is nothing
 * to decompress, else a frame with its own bytes.
 * @param payloadBytesMax limit of the decompressed payload
 * @throws CubeError INVALID_ARGUMENT, TOO_LARGE
 */
export function decodePayload(frame: Frame, payloadBytesMax: number): Frame {
  if (frame.checksumType !== 0) verifyChecksum(frame);
  if (frame.compressType === 0) return frame;
  const { bytes, metaStart, payloadStart, payloadEnd, attachmentStart, attachmentEnd } = frame;
  const packed = bytes.subarray(payloadStart, payloadEnd);
  const payload = decompressPayload(frame.compressType, packed, payloadBytesMax);
  const start = payloadStart - metaStart;
  const end = start + payload.length;
  const opened = new Uint8Array(end + attachmentEnd - attachmentStart);
  opened.set(bytes.subarray(metaStart, payloadStart));
  opened.set(payload, start);
  opened.set(bytes.subarray(attachmentStart, attachmentEnd), end);
  return {
    ...frame,
    bytes: opened,
    metaStart: 0,
    correlationStart: frame.correlationStart - metaStart,
    correlationEnd: frame.correlationEnd - metaStart,
    logIdStart: frame.logIdStart - metaStart,
    logIdEnd: frame.logIdEnd - metaStart,
    requestIdStart: frame.requestIdStart - metaStart,
    requestIdEnd: frame.requestIdEnd - metaStart,
    authenticationStart: frame.authenticationStart - metaStart,
    authenticationEnd: frame.authenticationEnd - metaStart,
    payloadStart: start,
    payloadEnd: end,
    attachmentStart: end,
    attachmentEnd: opened.length,
  };
}

/** Compresses a request's payload; returns it with the type for the meta. */
export function compressRequestPayload(
  payload: Uint8Array,
  compressType: number,
): { payload: Uint8Array; compressType: number } {
  // brpc rejects an empty LZ4 block.
  const isPlain = compressType === 0 || (compressType === COMPRESSION_LZ4 && payload.length === 0);
  if (isPlain) return { payload, compressType: 0 };
  return { payload: compress(compressType, payload), compressType };
}

/**
 * Compresses the payload of the response that begins at `frameStart`, and fills in its checksum, as
 * declared in its meta. The attachment (the last `attachmentBytes`) is not compressed.
 */
export function encodeResponsePayload(
  output: OutputBuffer,
  at: { frameStart: number; metaEnd: number; attachmentBytes: number },
  request: ResponseContext,
): void {
  const { frameStart, metaEnd, attachmentBytes } = at;
  const { compressType, checksumType, checksumWithAttachment } = request;
  const payloadEnd = output.length - attachmentBytes;
  // brpc rejects an empty LZ4 block.
  if (compressType === COMPRESSION_LZ4 && payloadEnd === metaEnd) {
    setUncompressed(output, frameStart);
  } else if (compressType !== 0) {
    const packed = compress(compressType, output.bytes.subarray(metaEnd, payloadEnd));
    // Buffer's own slice() would return a view of bytes that are overwritten next.
    const attachment = Uint8Array.prototype.slice.call(output.bytes, payloadEnd, output.length);
    output.truncate(metaEnd);
    output.append(packed);
    output.append(attachment);
  }
  if (checksumType === 0) return;
  const end = output.length - (checksumWithAttachment ? 0 : attachmentBytes);
  const range = { at: findChecksum(metaEnd, request), start: metaEnd, end };
  writeChecksum(output.bytes, checksumType, range);
}

function decompressPayload(type: number, packed: Uint8Array, payloadBytesMax: number): Uint8Array {
  try {
    return decompress(type, packed, payloadBytesMax);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const details = `CompressType=${COMPRESSION_NAMES[type]}, payload_size=${packed.length}`;
    throw new CubeError(code, `Fail to decompress the payload, ${details}: ${message}`);
  }
}

function verifyChecksum(frame: Frame): void {
  const { bytes, checksumStart, checksumEnd, payloadStart, payloadEnd, attachmentEnd } = frame;
  const name = frame.checksumType === CHECKSUM_XXH64 ? 'xxh64' : 'crc32c';
  const byteCount = getChecksumBytes(frame.checksumType);
  if (checksumEnd - checksumStart !== byteCount) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `checksum_value has ${checksumEnd - checksumStart} bytes, a ${name} has ${byteCount}`,
    );
  }
  const end = frame.checksumWithAttachment ? attachmentEnd : payloadEnd;
  const range = { at: checksumStart, start: payloadStart, end };
  if (hasChecksum(bytes, frame.checksumType, range)) return;
  throw new CubeError(
    'DAMAGED',
    `the ${name} of the message (${end - payloadStart} bytes) does not match: ` +
      'it was corrupted in transit; send it again',
  );
}
