/**
 * One read buffer for all connections of a thread. Node allocates 64 KiB for each read of a
 * connection, and collecting these buffers costs more than refusing a request with a large body.
 * The option `onread` of net.connect avoids that for outgoing connections. Accepted sockets have no
 * such option, so the fields behind it are set here; without them the caller uses 'data' events.
 */
import { Socket } from 'node:net';
import { TLSSocket } from 'node:tls';

/** Two reads for a body of 500 rows, which fills Node's own buffers twice. */
const BUFFER_BYTES = 256 << 10;

/**
 * Receives `count` bytes at the start of `buffer`, which are overwritten after it returns.
 * @returns whether to go on reading
 */
export type OnRead = (count: number, buffer: Buffer) => boolean;

interface ReadHandle {
  readonly useUserBuffer?: (buffer: Buffer) => void;
}

type ReadFields = Record<symbol, unknown> & { readonly _handle?: ReadHandle | null };

let sharedBuffer: Buffer | undefined;
const fields = findFields();

/** The fields that the option `onread` sets: its buffer, its callback, its source of buffers. */
function findFields(): { buffer: symbol; callback: symbol; generator: symbol } | undefined {
  const symbols = Object.getOwnPropertySymbols(new Socket());
  const find = (name: string): symbol | undefined =>
    symbols.find(({ description }) => description === name);
  const [buffer, callback, generator] = ['kBuffer', 'kBufferCb', 'kBufferGen'].map(find);
  if (buffer === undefined || callback === undefined || generator === undefined) return undefined;
  return { buffer, callback, generator };
}

/**
 * Reads a connection into the shared buffer from now on, for as long as it is open; a second call
 * replaces `onRead`. The handle of the connection keeps the buffer also when another reader takes
 * the connection over, so `onRead` must be ready to push later bytes.
 * @returns false when it is not possible: TLS, or a Node without these fields
 */
export function readIntoSharedBuffer(socket: Socket, onRead: OnRead): boolean {
  if (fields === undefined || socket instanceof TLSSocket) return false;
  const readFields = socket as unknown as ReadFields;
  const handle = readFields._handle;
  const current = readFields[fields.buffer];
  if (current != null && current === sharedBuffer) {
    readFields[fields.callback] = onRead;
    return true;
  }
  if (typeof handle?.useUserBuffer !== 'function' || current != null) return false;
  sharedBuffer ??= Buffer.allocUnsafeSlow(BUFFER_BYTES);
  readFields[fields.buffer] = sharedBuffer;
  readFields[fields.callback] = onRead;
  readFields[fields.generator] = null;
  handle.useUserBuffer(sharedBuffer);
  return true;
}

/** An `OnRead` that leaves the bytes to the stream of the connection. */
export function pushTo(socket: Socket): OnRead {
  return (count, buffer) => socket.push(Buffer.from(buffer.subarray(0, count)));
}
