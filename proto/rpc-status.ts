/**
 * google.rpc.Status with a google.rpc.RetryInfo: how gRPC servers tell callers when to try again.
 */
import { OutputBuffer } from './output-buffer.ts';

/** The trailer of the encoded Status. */
export const STATUS_DETAILS_KEY = 'grpc-status-details-bin';
const RETRY_INFO_TYPE = 'type.googleapis.com/google.rpc.RetryInfo';

/** @param retryAfterMs integer ≥ 0 */
export function encodeRetryStatus(code: number, message: string, retryAfterMs: number): Uint8Array {
  const delay = new OutputBuffer(32);
  appendField(delay, 1, Math.floor(retryAfterMs / 1000)); // Duration.seconds
  appendField(delay, 2, (retryAfterMs % 1000) * 1_000_000); // Duration.nanos
  const retryInfo = new OutputBuffer(64);
  appendMessage(retryInfo, 1, delay); // RetryInfo.retry_delay
  const any = new OutputBuffer(128);
  any.appendString(toTag(1, 2), RETRY_INFO_TYPE); // Any.type_url
  appendMessage(any, 2, retryInfo); // Any.value
  const status = new OutputBuffer(256);
  appendField(status, 1, code); // Status.code
  status.appendString(toTag(2, 2), message); // Status.message
  appendMessage(status, 3, any); // Status.details
  return status.writtenBytes();
}

function toTag(field: number, wireType: number): number {
  return (field << 3) | wireType;
}

/** Zeros are omitted, as in every proto3 message. */
function appendField(output: OutputBuffer, field: number, value: number): void {
  if (value === 0) return;
  output.appendByte(toTag(field, 0));
  output.appendVarint(value);
}

function appendMessage(output: OutputBuffer, field: number, message: OutputBuffer): void {
  output.appendByte(toTag(field, 2));
  output.appendVarint(message.length);
  output.append(message.writtenBytes());
}
