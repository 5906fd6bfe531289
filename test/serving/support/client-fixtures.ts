/**
 * Requests of other systems' clients, as they sent them (data/golden/clients).
 * `<client>-<case>.http` is a request of HTTP/1.1 with its head, `.grpc` the message of a gRPC
 * call. The client is the first part of the name: tritonclient is Triton's for Python,
 * triton-javascript its example for Node.
 */
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { fileURLToPath } from 'node:url';

const FOLDER = fileURLToPath(new URL('../../../../data/golden/clients/', import.meta.url));

export interface RawAnswer {
  readonly status: number;
  /** Names in lower case. */
  readonly headers: ReadonlyMap<string, string>;
  readonly body: Buffer;
}

export function readFixture(name: string): Buffer {
  return readFileSync(FOLDER + name);
}

/** Sends a recorded request unchanged and reads the response. */
export async function sendFixture(url: string, name: string): Promise<RawAnswer> {
  return sendRaw(url, readFixture(`${name}.http`));
}

/** Sends the bytes of a request and reads the response, which has a Content-Length. */
export async function sendRaw(url: string, request: Uint8Array): Promise<RawAnswer> {
  const { hostname, port } = new URL(url);
  const socket = connect(Number(port), hostname);
  await once(socket, 'connect');
  socket.write(request);
  let received: Buffer = Buffer.alloc(0);
  for await (const piece of socket) {
    received = Buffer.concat([received, piece]);
    const answer = readAnswer(received);
    if (answer !== undefined) return answer;
  }
  throw new Error(`the connection ended after ${received.length} bytes of a response`);
}

/** The head of a message of HTTP/1.1, without its end, and the bytes after it. */
export function splitHead(message: Buffer): { head: string; body: Buffer } {
  const end = message.indexOf('\r\n\r\n');
  return { head: message.toString('latin1', 0, end), body: message.subarray(end + 4) };
}

/** @returns undefined while bytes are missing */
function readAnswer(bytes: Buffer): RawAnswer | undefined {
  if (!bytes.includes('\r\n\r\n')) return undefined;
  const { head, body } = splitHead(bytes);
  const [statusLine = '', ...lines] = head.split('\r\n');
  const headers = new Map(
    lines.map((line) => {
      const colon = line.indexOf(':');
      return [line.slice(0, colon).toLowerCase(), line.slice(colon + 1).trim()] as const;
    }),
  );
  const length = Number(headers.get('content-length') ?? 0);
  if (body.length < length) return undefined;
  return { status: Number(statusLine.split(' ')[1]), headers, body: body.subarray(0, length) };
}
