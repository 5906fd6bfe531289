/**
 * The body of a request that was answered before it was read. A short one is discarded, so that the
 * connection can be used again. Before a long one the connection is closed: the caller can read the
 * response, and the rest of the body is never read.
 */
import type { IncomingMessage } from 'node:http';
import type { Socket } from 'node:net';

/** Reading this much costs about as much as a new connection. A longer body is not read. */
export const DISCARD_BYTES_MAX: number = 256 << 10;
/** The time for the caller to read the response before its connection is reset. */
const LINGER_MS = 1_000;

/** Node's parser of a connection: callbacks in numbered fields. */
type Parser = Record<string, unknown>;

/** For each connection whose parser discards a body: makes it read bodies again. */
const restores = new WeakMap<Socket, () => void>();

/**
 * Call it before the response to an unread body is sent.
 * @returns whether the response must say `Connection: close`
 */
export function abandonBody(request: IncomingMessage): boolean {
  const { headers, socket, httpVersionMajor } = request;
  // Over HTTP/2, the end of the stream ends the body.
  if (httpVersionMajor > 1) return false;
  const isChunked = headers['transfer-encoding'] !== undefined;
  if (!isChunked && Number(headers['content-length'] ?? 0) <= DISCARD_BYTES_MAX) {
    discardBody(socket);
    return false;
  }
  // Node calls it once the response is sent. Closing at once would reset the connection, and the
  // caller, which may still be sending, could lose the response.
  socket.destroySoon = () => closeSlowly(socket);
  return true;
}

/** Reads nothing more of a body whose caller is refused while it arrives. */
export function skipBody({ socket, httpVersionMajor }: IncomingMessage): void {
  if (httpVersionMajor === 1) discardBody(socket);
}

/** Makes a connection read bodies. Call it before each request, and when the connection closes. */
export function restoreBodies(socket: Socket): void {
  restores.get(socket)?.();
}

/**
 * Discards the rest of a body without copying it. Node's parser copies each piece of a body into a
 * new buffer, also when nobody reads it, and the garbage collection of these buffers costs more
 * than refusing the request. Without its callback for bodies it skips them. Where Node has no such
 * callback, the body is copied and dropped.
 */
function discardBody(socket: Socket): void {
  const { parser } = socket as Socket & { parser?: Parser };
  if (parser === undefined || restores.has(socket)) return;
  for (const key in parser) {
    const callback = parser[key];
    if (typeof callback !== 'function' || callback.name !== 'parserOnBody') continue;
    parser[key] = undefined;
    restores.set(socket, () => {
      parser[key] = callback;
      restores.delete(socket);
    });
    return;
  }
}

/** Ends a connection without reading the rest of a body. */
export function closeSlowly(socket: Socket): void {
  socket.end();
  socket.pause();
  const timer = setTimeout(() => socket.destroy(), LINGER_MS);
  timer.unref();
  socket.once('close', () => clearTimeout(timer));
}
