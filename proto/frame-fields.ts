/** What one baidu_std frame says: its meta (rpc-meta.proto) read where it lies, and where payload and attachment are. */
import { CubeError } from '../lib/core/errors.ts';
import type { NameCache } from './name-cache.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader } from './wire.ts';

export const FRAME_HEADER_BYTES = 12;
const COMPRESSION_NAMES = ['none', 'snappy', 'gzip', 'zlib', 'lz4'];
const NO_BYTES = new Uint8Array(0);
const textDecoder = new TextDecoder('utf-8');

/**
 * One frame: positions into `bytes`. The decoder (baidu-std.ts) reuses this object and, for split frames, the bytes: both are
 * valid until the decoder is asked for the next frame (the bytes: until the next `push`).
 */
export interface FrameFields {
  bytes: Uint8Array;
  isRequest: boolean;
  service: string;
  method: string;
  /** Milliseconds the caller waits; 0: it did not say. */
  timeoutMs: number;
  errorCode: number;
  errorText: string;
  /** The correlation id's raw varint bytes; start = end when the frame has none. */
  correlationStart: number;
  correlationEnd: number;
  payloadStart: number;
  payloadEnd: number;
  attachmentStart: number;
  attachmentEnd: number;
  /** The frame is well delimited but cannot be used (compressed, impossible attachment size): answer with this. */
  defect: CubeError | undefined;
}

export function emptyFrame(): FrameFields {
  return {
    bytes: NO_BYTES,
    isRequest: false,
    service: '',
    method: '',
    timeoutMs: 0,
    errorCode: 0,
    errorText: '',
    correlationStart: 0,
    correlationEnd: 0,
    payloadStart: 0,
    payloadEnd: 0,
    attachmentStart: 0,
    attachmentEnd: 0,
    defect: undefined,
  };
}

export function readU32(bytes: Uint8Array, at: number): number {
  return (
    ((bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!) >>> 0
  );
}

/** Reads the meta of the frame at `at` and where payload and attachment lie. */
export function decodeFrame(
  bytes: Uint8Array,
  at: number,
  total: number,
  frame: FrameFields,
  names: NameCache,
): void {
  const metaStart = at + FRAME_HEADER_BYTES;
  const metaEnd = metaStart + readU32(bytes, at + 8);
  const bodyEnd = at + total;
  frame.bytes = bytes;
  frame.isRequest = false;
  frame.service = '';
  frame.method = '';
  frame.timeoutMs = 0;
  frame.errorCode = 0;
  frame.errorText = '';
  frame.correlationStart = 0;
  frame.correlationEnd = 0;
  frame.defect = undefined;
  const attachmentBytes = decodeMeta(bytes, metaStart, metaEnd, frame, names);
  frame.payloadStart = metaEnd;
  frame.attachmentEnd = bodyEnd;
  if (attachmentBytes < 0 || attachmentBytes > bodyEnd - metaEnd) {
    frame.defect ??= new CubeError(
      'INVALID_ARGUMENT',
      `attachment_size=${attachmentBytes} does not fit the ${bodyEnd - metaEnd} bytes after the meta`,
    );
    frame.payloadEnd = bodyEnd;
    frame.attachmentStart = bodyEnd;
    return;
  }
  frame.payloadEnd = bodyEnd - attachmentBytes;
  frame.attachmentStart = frame.payloadEnd;
}

/** @returns attachment_size as sent */
function decodeMeta(
  bytes: Uint8Array,
  start: number,
  end: number,
  frame: FrameFields,
  names: NameCache,
): number {
  const reader = new WireReader(bytes, start, end);
  let attachmentBytes = 0;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (field === 1 && wireType === WIRE_BYTES) decodeRequestMeta(reader.message(), frame, names);
    else if (field === 2 && wireType === WIRE_BYTES) decodeResponseMeta(reader.message(), frame);
    else if (field === 4 && wireType === WIRE_VARINT) {
      frame.correlationStart = reader.position;
      skipVarint(reader);
      frame.correlationEnd = reader.position;
    } else if (field === 5 && wireType === WIRE_VARINT) attachmentBytes = reader.int32();
    else if (field === 3 && wireType === WIRE_VARINT) {
      const type = reader.int32();
      if (type !== 0) frame.defect = compressionDefect(type);
    } else if (field === 10 && wireType === WIRE_VARINT) {
      const type = reader.int32();
      if (type !== 0) {
        frame.defect = new CubeError(
          'INVALID_ARGUMENT',
          `content_type ${type} is not supported; send protobuf (0)`,
        );
      }
    } else reader.skip();
  }
  return attachmentBytes;
}

function compressionDefect(type: number): CubeError {
  const name = COMPRESSION_NAMES[type] ?? 'unknown';
  return new CubeError(
    'INVALID_ARGUMENT',
    `compress_type ${type} (${name}) is not supported; send uncompressed (0)`,
  );
}

function decodeRequestMeta(reader: WireReader, frame: FrameFields, names: NameCache): void {
  frame.isRequest = true;
  while (reader.next()) {
    if (reader.field === 1 && reader.wireType === WIRE_BYTES) frame.service = name(reader, names);
    else if (reader.field === 2 && reader.wireType === WIRE_BYTES) {
      frame.method = name(reader, names);
    } else if (reader.field === 8 && reader.wireType === WIRE_VARINT) {
      frame.timeoutMs = Math.max(0, reader.int32());
    } else reader.skip();
  }
}

function decodeResponseMeta(reader: WireReader, frame: FrameFields): void {
  while (reader.next()) {
    if (reader.field === 1 && reader.wireType === WIRE_VARINT) frame.errorCode = reader.int32();
    else if (reader.field === 2 && reader.wireType === WIRE_BYTES) {
      frame.errorText = textDecoder.decode(reader.view());
    } else reader.skip();
  }
}

function name(reader: WireReader, names: NameCache): string {
  const view = reader.message();
  return names.name(view.bytes, view.position, view.end);
}

/** Passes over a varint without making a bigint of it. */
function skipVarint(reader: WireReader): void {
  const limit = Math.min(reader.end, reader.position + 10);
  while (reader.position < limit) {
    if (reader.bytes[reader.position++]! < 0x80) return;
  }
  throw new CubeError('INVALID_ARGUMENT', 'baidu_std: correlation_id is not a varint');
}
