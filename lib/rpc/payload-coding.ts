/**
 * What may be between a frame and its protobuf: a checksum over the payload as it was sent, and a compression under it.
 * Requests are opened before their handler runs, answers get what their request had. Rare: plain frames never come here.
 */
import {
  COMPRESSION_NAMES,
  type Frame,
  type ReplyTo,
  setChecksum,
  setUncompressed,
} from '../../proto/baidu-std.ts';
import type { OutputBuffer } from '../../proto/output-buffer.ts';
import { CubeError } from '../core/errors.ts';
import { COMPRESSION_LZ4, compress, decompress } from './compression.ts';
import { crc32c, maskCrc } from './crc32c.ts';

export function isCoded({ compressType, checksumType }: ReplyTo): boolean {
  return compressType !== 0 || checksumType !== 0;
}

/**
 * The frame with its checksum verified and its payload decompressed: the same one when there was nothing to
 * decompress, else one with bytes of its own.
 * @param payloadBytesMax once decompressed
 * @throws CubeError INVALID_ARGUMENT, TOO_LARGE
 */
export function openPayload(frame: Frame, payloadBytesMax: number): Frame {
  if (frame.checksumType !== 0) verifyChecksum(frame);
  if (frame.compressType === 0) return frame;
  const { bytes, metaStart, payloadStart, payloadEnd, attachmentStart, attachmentEnd } = frame;
  const packed = bytes.subarray(payloadStart, payloadEnd);
  const payload = open(frame.compressType, packed, payloadBytesMax);
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

/** A request's payload as it will travel, and what its meta says of it and of the attachment. */
export function sealRequest(
  payload: Uint8Array,
  attachment: Uint8Array,
  { compressType = 0, checksum = false }: { compressType?: number; checksum?: boolean },
): { payload: Uint8Array; compressType: number; checksum: number | undefined } {
  // brpc takes an LZ4 block of nothing for damage.
  const type = compressType === COMPRESSION_LZ4 && payload.length === 0 ? 0 : compressType;
  const sealed = type === 0 ? payload : compress(type, payload);
  if (!checksum) return { payload: sealed, compressType: type, checksum: undefined };
  const ofPayload = crc32c(sealed, 0, sealed.length);
  const sum = maskCrc(crc32c(attachment, 0, attachment.length, ofPayload));
  return { payload: sealed, compressType: type, checksum: sum };
}

/**
 * Compresses the payload of the message that began at `frameStart` and fills in its checksum, as its meta promises.
 * The attachment, the last `attachmentBytes`, stays as it is.
 */
export function sealPayload(
  output: OutputBuffer,
  at: { frameStart: number; metaEnd: number; attachmentBytes: number },
  request: ReplyTo,
): void {
  const { frameStart, metaEnd, attachmentBytes } = at;
  const { compressType, checksumType, checksumWithAttachment } = request;
  const payloadEnd = output.length - attachmentBytes;
  // brpc takes an LZ4 block of nothing for damage.
  if (compressType === COMPRESSION_LZ4 && payloadEnd === metaEnd) {
    setUncompressed(output, frameStart);
  } else if (compressType !== 0) {
    const packed = compress(compressType, output.bytes.subarray(metaEnd, payloadEnd));
    // Of a Buffer, slice() would be a view of what is overwritten next.
    const attachment = Uint8Array.prototype.slice.call(output.bytes, payloadEnd, output.length);
    output.truncate(metaEnd);
    output.append(packed);
    output.append(attachment);
  }
  if (checksumType === 0) return;
  const end = output.length - (checksumWithAttachment ? 0 : attachmentBytes);
  setChecksum(output, metaEnd, request, maskCrc(crc32c(output.bytes, metaEnd, end)));
}

function open(type: number, packed: Uint8Array, payloadBytesMax: number): Uint8Array {
  try {
    return decompress(type, packed, payloadBytesMax);
  } catch (error) {
    const { code, message } = CubeError.from(error);
    const what = `CompressType=${COMPRESSION_NAMES[type]}, payload_size=${packed.length}`;
    throw new CubeError(code, `Fail to decompress the payload, ${what}: ${message}`);
  }
}

function verifyChecksum(frame: Frame): void {
  const { bytes, checksumStart, checksumEnd, payloadStart, payloadEnd, attachmentEnd } = frame;
  if (checksumEnd - checksumStart !== 4) {
    throw new CubeError(
      'INVALID_ARGUMENT',
      `checksum_value has ${checksumEnd - checksumStart} bytes, a crc32c has 4`,
    );
  }
  const sent = new DataView(bytes.buffer, bytes.byteOffset).getUint32(checksumStart);
  const end = frame.checksumWithAttachment ? attachmentEnd : payloadEnd;
  if (maskCrc(crc32c(bytes, payloadStart, end)) === sent) return;
  throw new CubeError(
    'DAMAGED',
    `the message (${end - payloadStart} bytes) is not what its crc32c says: it was damaged on the way; send it again`,
  );
}
