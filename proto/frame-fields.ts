/**
 * The fields of one baidu_std frame: its meta (rpc-meta.proto), read without a copy, and the
 * positions of payload and attachment.
 */
import { ERROR_DETAILS_CHARS_MAX, ERROR_DETAILS_KEY } from '../lib/core/error-details.ts';
import { CubeError } from '../lib/core/errors.ts';
import type { NameCache } from './wire.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader } from './wire.ts';

export const FRAME_HEADER_BYTES = 12;
export const FRAME_MAGIC = 0x50525043; // "PRPC"
/** Names by number of `compress_type` and `content_type`. */
export const COMPRESSION_NAMES: readonly string[] = ['none', 'snappy', 'gzip', 'zlib', 'lz4'];
export const CONTENT_NAMES: readonly string[] = ['pb', 'json', 'proto-json', 'proto-text'];
export const CHECKSUM_CRC32C = 1;
/** Not in brpc: xxh64 with seed 0. */
export const CHECKSUM_XXH64 = 100;

/** Bytes of a checksum's value. */
export function getChecksumBytes(type: number): number {
  return type === CHECKSUM_XXH64 ? 8 : 4;
}

/** The same key as in the trailers of gRPC errors. */
export const ERROR_NAME_KEY = 'hypercube-code';
/** Checksum of an error: 16 hex digits of the xxh64 of the meta's bytes before this user field. */
export const ERROR_CHECKSUM_KEY = 'hypercube-checksum';
/** Longer than any code. */
const ERROR_NAME_BYTES_MAX = 64;
const NO_BYTES = new Uint8Array(0);
const textDecoder = new TextDecoder('utf-8');

/**
 * One frame: positions in `bytes`. The decoder (baidu-std.ts) reuses this object and, for split
 * frames, the bytes: the object is valid until the next frame, the bytes until the next `push`.
 */
export interface FrameFields {
  bytes: Uint8Array;
  metaStart: number;
  isRequest: boolean;
  service: string;
  method: string;
  /** Milliseconds that the caller waits; 0: unknown. */
  timeoutMs: number;
  /** Positions of the caller's log id (a varint) and request id (UTF-8); start = end: none. */
  logIdStart: number;
  logIdEnd: number;
  requestIdStart: number;
  requestIdEnd: number;
  errorCode: number;
  errorText: string;
  /**
   * Name of the code when several share `errorCode` (user_fields, key ERROR_NAME_KEY); empty: the
   * number identifies it.
   */
  errorName: string;
  /** JSON of the error's details (user_fields, key ERROR_DETAILS_KEY); empty: none. */
  errorDetails: string;
  /** Checksum of the error (user_fields, key ERROR_CHECKSUM_KEY); empty: none. */
  errorChecksum: string;
  /** Where its user field starts: it covers the meta up to here. */
  errorChecksumStart: number;
  /**
   * Compression of the payload: 0 none, 1 snappy, 2 gzip, 3 zlib, 4 LZ4. The attachment is never
   * compressed.
   */
  compressType: number;
  /** Content of the payload: 0 protobuf, 1 JSON. */
  contentType: number;
  /**
   * 0 none, 1 CRC-32C of the payload as sent, followed by the attachment when
   * `checksumWithAttachment`.
   */
  checksumType: number;
  checksumWithAttachment: boolean;
  checksumStart: number;
  checksumEnd: number;
  /** The caller's credential (`authentication_data`); start = end: none. */
  authenticationStart: number;
  authenticationEnd: number;
  /** Raw varint bytes of the correlation id; start = end: none. */
  correlationStart: number;
  correlationEnd: number;
  payloadStart: number;
  payloadEnd: number;
  attachmentStart: number;
  attachmentEnd: number;
  /**
   * The response to a frame that is well delimited but unusable (an unknown compression, an
   * impossible size).
   */
  error: CubeError | undefined;
}

export function emptyFrame(): FrameFields {
  return {
    bytes: NO_BYTES,
    metaStart: 0,
    isRequest: false,
    service: '',
    method: '',
    timeoutMs: 0,
    logIdStart: 0,
    logIdEnd: 0,
    requestIdStart: 0,
    requestIdEnd: 0,
    errorCode: 0,
    errorText: '',
    errorName: '',
    errorDetails: '',
    errorChecksum: '',
    errorChecksumStart: 0,
    compressType: 0,
    contentType: 0,
    checksumType: 0,
    checksumWithAttachment: false,
    checksumStart: 0,
    checksumEnd: 0,
    authenticationStart: 0,
    authenticationEnd: 0,
    correlationStart: 0,
    correlationEnd: 0,
    payloadStart: 0,
    payloadEnd: 0,
    attachmentStart: 0,
    attachmentEnd: 0,
    error: undefined,
  };
}

export function readU32(bytes: Uint8Array, at: number): number {
  return (
    ((bytes[at]! << 24) | (bytes[at + 1]! << 16) | (bytes[at + 2]! << 8) | bytes[at + 3]!) >>> 0
  );
}

/** Reads the meta of the frame at `at` and the positions of payload and attachment. */
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
  frame.metaStart = metaStart;
  frame.isRequest = false;
  frame.service = '';
  frame.method = '';
  frame.timeoutMs = 0;
  frame.logIdStart = 0;
  frame.logIdEnd = 0;
  frame.requestIdStart = 0;
  frame.requestIdEnd = 0;
  frame.errorCode = 0;
  frame.errorText = '';
  frame.errorName = '';
  frame.errorDetails = '';
  frame.errorChecksum = '';
  frame.compressType = 0;
  frame.contentType = 0;
  frame.checksumType = 0;
  frame.checksumWithAttachment = false;
  frame.checksumStart = 0;
  frame.checksumEnd = 0;
  frame.authenticationStart = 0;
  frame.authenticationEnd = 0;
  frame.correlationStart = 0;
  frame.correlationEnd = 0;
  frame.error = undefined;
  const attachmentBytes = decodeMeta(bytes, metaStart, metaEnd, frame, names);
  frame.payloadStart = metaEnd;
  frame.attachmentEnd = bodyEnd;
  if (attachmentBytes < 0 || attachmentBytes > bodyEnd - metaEnd) {
    const what = attachmentBytes < 0 ? 'negative' : `larger than request_size=${bodyEnd - metaEnd}`;
    frame.error ??= new CubeError(
      'INVALID_ARGUMENT',
      `attachment_size=${attachmentBytes} is ${what}`,
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
      reader.skipVarint();
      frame.correlationEnd = reader.position;
    } else if (field === 5 && wireType === WIRE_VARINT) attachmentBytes = reader.int32();
    else if (field === 3 && wireType === WIRE_VARINT) frame.compressType = reader.int32();
    else decodeOptionalMeta(reader, frame);
  }
  if (frame.compressType !== 0 || frame.contentType !== 0 || frame.checksumType !== 0) {
    checkTypes(frame);
  }
  return attachmentBytes;
}

/** Decodes the fields that brpc 1.17, authenticators and streams add. */
function decodeOptionalMeta(reader: WireReader, frame: FrameFields): void {
  const { field, wireType } = reader;
  if (field === 10 && wireType === WIRE_VARINT) frame.contentType = reader.int32();
  else if (field === 11 && wireType === WIRE_VARINT) frame.checksumType = reader.int32();
  else if (field === 12 && wireType === WIRE_BYTES) {
    const value = reader.message();
    frame.checksumStart = value.position;
    frame.checksumEnd = value.end;
  } else if (field === 13 && wireType === WIRE_VARINT) {
    frame.checksumWithAttachment = reader.uint32() !== 0;
  } else if (field === 7 && wireType === WIRE_BYTES) {
    const value = reader.message();
    frame.authenticationStart = value.position;
    frame.authenticationEnd = value.end;
  } else if (field === 9 && wireType === WIRE_BYTES) {
    decodeUserField(reader.message(), frame, reader.fieldStart);
  } else {
    if (field === 8 && wireType === WIRE_BYTES) {
      frame.error = new CubeError(
        'UNSUPPORTED',
        'streams (stream_settings) are not supported here; make plain calls',
      );
    }
    reader.skip();
  }
}

/** Reads code, details and checksum of an error; other user fields are the peer's own. */
function decodeUserField(reader: WireReader, frame: FrameFields, start: number): void {
  let key = '';
  let value = '';
  while (reader.next()) {
    const { field, wireType } = reader;
    if (frame.isRequest || wireType !== WIRE_BYTES || field > 2) reader.skip();
    else if (field === 1) key = readShortText(reader, ERROR_NAME_BYTES_MAX);
    else value = readShortText(reader, ERROR_DETAILS_CHARS_MAX);
  }
  if (key === ERROR_NAME_KEY && value.length <= ERROR_NAME_BYTES_MAX) frame.errorName = value;
  if (key === ERROR_DETAILS_KEY) frame.errorDetails = value;
  if (key === ERROR_CHECKSUM_KEY) {
    frame.errorChecksum = value;
    frame.errorChecksumStart = start;
  }
}

function readShortText(reader: WireReader, bytesMax: number): string {
  const bytes = reader.view();
  return bytes.length > bytesMax ? '' : textDecoder.decode(bytes);
}

function checkTypes(frame: FrameFields): void {
  const { compressType, contentType, checksumType } = frame;
  if (COMPRESSION_NAMES[compressType] === undefined) {
    frame.error ??= new CubeError(
      'INVALID_ARGUMENT',
      `compress_type ${compressType} is unknown; send 0 to 4 (${COMPRESSION_NAMES.join(', ')})`,
    );
    frame.compressType = 0;
  }
  if (CONTENT_NAMES[contentType] === undefined) {
    frame.error ??= new CubeError(
      'INVALID_ARGUMENT',
      `content_type ${contentType} is unknown; send protobuf (0)`,
    );
    frame.contentType = 0;
  }
  if (![0, CHECKSUM_CRC32C, CHECKSUM_XXH64].includes(checksumType)) {
    frame.error ??= new CubeError(
      'INVALID_ARGUMENT',
      `checksum_type ${checksumType} is unknown; ` +
        `send none (0), crc32c (${CHECKSUM_CRC32C}) or xxh64 (${CHECKSUM_XXH64})`,
    );
    frame.checksumType = 0;
  }
}

function decodeRequestMeta(reader: WireReader, frame: FrameFields, names: NameCache): void {
  frame.isRequest = true;
  while (reader.next()) {
    if (reader.field === 1 && reader.wireType === WIRE_BYTES)
      frame.service = readName(reader, names);
    else if (reader.field === 2 && reader.wireType === WIRE_BYTES) {
      frame.method = readName(reader, names);
    } else if (reader.field === 8 && reader.wireType === WIRE_VARINT) {
      frame.timeoutMs = Math.max(0, reader.int32());
    } else if (reader.field === 3 && reader.wireType === WIRE_VARINT) {
      frame.logIdStart = reader.position;
      reader.skipVarint();
      frame.logIdEnd = reader.position;
    } else if (reader.field === 7 && reader.wireType === WIRE_BYTES) {
      const value = reader.message();
      frame.requestIdStart = value.position;
      frame.requestIdEnd = value.end;
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

function readName(reader: WireReader, names: NameCache): string {
  const view = reader.message();
  return names.getName(view.bytes, view.position, view.end);
}
