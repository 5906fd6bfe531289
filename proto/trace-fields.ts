/**
 * The trace of a call in the meta of baidu_std. brpc's own fields have 64 bits for each id: they
 * get the span id and the low half of the trace id. The user field `traceparent` has all of it.
 */
import { formatTraceparent, parseTraceparent } from '../lib/core/trace-span.ts';
import type { Frame } from './baidu-std.ts';
import { OutputBuffer } from './output-buffer.ts';
import { WIRE_BYTES, WIRE_VARINT, WireReader } from './wire.ts';

const KEY = 'traceparent';
const NO_BYTES = new Uint8Array(0);
/** brpc sends ids only of calls that it records. */
const RECORDED = 1;

/**
 * Returns the fields to append to the meta of a request: a second `request`, which a reader merges
 * with the first, and a user field. Empty for an invalid value.
 */
export function encodeTraceFields(traceparent: string): Uint8Array {
  const ids = parseTraceparent(traceparent);
  if (ids === undefined) return NO_BYTES;
  const request = new OutputBuffer(32);
  appendVarint64(request, 0x20, BigInt(`0x${ids.traceId.slice(16)}`));
  appendVarint64(request, 0x28, BigInt(`0x${ids.spanId}`));
  const field = new OutputBuffer(80);
  field.appendString(0x0a, KEY);
  field.appendString(0x12, traceparent);
  const meta = new OutputBuffer(128);
  for (const [tag, { length, bytes }] of [
    [0x0a, request],
    [0x4a, field],
  ] as const) {
    meta.appendByte(tag);
    meta.appendVarint(length);
    meta.append(bytes.subarray(0, length));
  }
  return meta.writtenBytes();
}

/**
 * Reads the caller's trace while the frame is valid. It reads the meta again, which only traced
 * processes do.
 * @returns undefined without a valid one
 */
export function readTraceparent({ bytes, metaStart, payloadStart }: Frame): string | undefined {
  const reader = new WireReader(bytes, metaStart, payloadStart);
  let traceId = 0n;
  let spanId = 0n;
  while (reader.next()) {
    const { field, wireType } = reader;
    if (field === 9 && wireType === WIRE_BYTES) {
      const value = readUserField(reader.message());
      if (value !== undefined && parseTraceparent(value) !== undefined) return value;
    } else if (field === 1 && wireType === WIRE_BYTES) {
      const request = reader.message();
      while (request.next()) {
        if (request.field === 4 && request.wireType === WIRE_VARINT) traceId = request.uint64();
        else if (request.field === 5 && request.wireType === WIRE_VARINT) spanId = request.uint64();
        else request.skip();
      }
    } else reader.skip();
  }
  if (traceId === 0n || spanId === 0n) return undefined;
  return formatTraceparent({
    traceId: toHex(traceId).padStart(32, '0'),
    spanId: toHex(spanId),
    traceFlags: RECORDED,
  });
}

/** @returns the value when the key is ours */
function readUserField(entry: WireReader): string | undefined {
  let key = '';
  let value = '';
  while (entry.next()) {
    if (entry.field === 1 && entry.wireType === WIRE_BYTES) key = entry.string();
    else if (entry.field === 2 && entry.wireType === WIRE_BYTES && key === KEY) {
      value = entry.string();
    } else entry.skip();
  }
  return key === KEY ? value : undefined;
}

function toHex(id: bigint): string {
  return id.toString(16).padStart(16, '0');
}

function appendVarint64(output: OutputBuffer, tag: number, value: bigint): void {
  output.appendByte(tag);
  let rest = value;
  for (; rest > 0x7fn; rest >>= 7n) output.appendByte(Number(rest & 0x7fn) | 0x80);
  output.appendByte(Number(rest));
}
