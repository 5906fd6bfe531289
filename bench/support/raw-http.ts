/**
 * A minimal HTTP client for benchmarks, so that the client is not the busier side. Requests are
 * encoded in advance, a connection has one in flight, and only the status and the length of a
 * response are read; callers get its bytes.
 */
import { connect, type Socket } from 'node:net';

const HEAD_END = Buffer.from('\r\n\r\n');
const STATUS_AT = 'HTTP/1.1 '.length;

/** Encodes a POST request. */
export function postBytes(
  path: string,
  headers: Readonly<Record<string, string>>,
  body: Uint8Array,
): Buffer {
  const lines = Object.entries({ ...headers, 'content-length': String(body.length) });
  const head = lines.map(([name, value]) => `${name}: ${value}\r\n`).join('');
  return Buffer.concat([Buffer.from(`POST ${path} HTTP/1.1\r\nhost: bench\r\n${head}\r\n`), body]);
}

/** A keep-alive connection. */
export class RawHttp {
  readonly #socket: Socket;
  #received: Buffer = Buffer.alloc(0);
  #settle: { resolve(response: Buffer): void; reject(error: Error): void } | undefined;

  /** @param socket connected to the URL; default: a plain one */
  constructor({ hostname, port }: URL, socket?: Socket) {
    this.#socket = socket ?? connect({ host: hostname, port: Number(port), noDelay: true });
    this.#socket.on('data', (chunk: Buffer) => this.#receive(chunk));
    this.#socket.on('error', (error) => this.#settle?.reject(error));
    this.#socket.on('close', () => this.#settle?.reject(new Error('the connection closed')));
  }

  /** Sends a request. @returns the whole response; rejects unless its status is 200 */
  call(request: Uint8Array): Promise<Buffer> {
    return new Promise((resolve, reject) => {
      this.#settle = { resolve, reject };
      this.#socket.write(request);
    });
  }

  close(): void {
    this.#settle = undefined;
    this.#socket.destroy();
  }

  #receive(chunk: Buffer): void {
    this.#received = this.#received.length === 0 ? chunk : Buffer.concat([this.#received, chunk]);
    const bytes = this.#received;
    const headEnd = bytes.indexOf(HEAD_END);
    if (headEnd < 0) return;
    const head = bytes.toString('latin1', 0, headEnd);
    const length = Number(/content-length: (\d+)/i.exec(head)?.[1]);
    if (bytes.length < headEnd + HEAD_END.length + length) return;
    this.#received = Buffer.alloc(0);
    const settle = this.#settle;
    if (head.startsWith('200', STATUS_AT)) settle?.resolve(bytes);
    else settle?.reject(new Error(bytes.toString('utf8', 0, 1_000)));
  }
}
