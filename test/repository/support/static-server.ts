/**
 * A server of static files over a folder, with Range, ETag and If-Range, and with faults that a
 * test asks for.
 */
import { createReadStream, readFileSync, statSync } from 'node:fs';
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http';
import type { AddressInfo } from 'node:net';
import { join, normalize } from 'node:path';
import type { TestContext } from 'node:test';
import { onTestEnd } from './fixtures.ts';

export interface ServerFaults {
  /** Bodies of other paths are as they should be. */
  paths: RegExp;
  /** The next so many bodies end after half of their bytes. */
  cut: number;
  /** The next so many requests are answered 500. */
  fail: number;
  /** Nothing is sent after the head of the next so many bodies. */
  stall: number;
  /** Bodies come byte by byte, with a pause after each. */
  drips: boolean;
  /** The next so many bodies have another bit in the middle. */
  flip: number;
  /** Another file whose bytes are sent. */
  instead: ((path: string) => string) | undefined;
  etag: (() => string) | undefined;
  ignoresRange: boolean;
  ignoresHead: boolean;
  /** Sent with every answer. */
  headers: Record<string, string>;
  /** Where requests are redirected. */
  redirect: ((path: string) => string) | undefined;
}

const NO_FAULTS: ServerFaults = {
  paths: /./,
  cut: 0,
  fail: 0,
  stall: 0,
  drips: false,
  flip: 0,
  instead: undefined,
  etag: undefined,
  ignoresRange: false,
  ignoresHead: false,
  headers: {},
  redirect: undefined,
};

export class StaticServer {
  readonly faults: ServerFaults = { ...NO_FAULTS };
  readonly requests: { method: string; path: string; authorization: string | undefined }[] = [];
  readonly #folder: string;
  readonly #server: Server;

  private constructor(folder: string) {
    this.#folder = folder;
    this.#server = createServer((request, response) => this.#answer(request, response));
  }

  static async start(t: TestContext, folder: string): Promise<StaticServer> {
    const server = new StaticServer(folder);
    await new Promise<void>((resolve) => server.#server.listen(0, '127.0.0.1', resolve));
    onTestEnd(t, () => {
      server.#server.closeAllConnections();
      server.#server.close();
    });
    return server;
  }

  /** Everything is as it should be. */
  heal(): void {
    Object.assign(this.faults, NO_FAULTS);
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`;
  }

  #answer(request: IncomingMessage, response: ServerResponse): void {
    const path = normalize(decodeURIComponent(new URL(request.url ?? '', this.url).pathname));
    const { method = '' } = request;
    this.requests.push({ method, path, authorization: request.headers.authorization });
    const { faults } = this;
    for (const [name, value] of Object.entries(faults.headers)) response.setHeader(name, value);
    if (faults.fail > 0) {
      faults.fail -= 1;
      response.writeHead(500).end('broken');
    } else if (faults.redirect !== undefined) {
      response.writeHead(302, { location: faults.redirect(path) }).end();
    } else if (method === 'HEAD' && faults.ignoresHead) {
      response.writeHead(405).end();
    } else {
      const active = faults.paths.test(path) ? faults : NO_FAULTS;
      const sent = active.instead?.(path) ?? path;
      this.#sendFile(join(this.#folder, sent), active, request, response);
    }
  }

  #sendFile(
    file: string,
    faults: ServerFaults,
    request: IncomingMessage,
    response: ServerResponse,
  ): void {
    const stat = statSync(file, { throwIfNoEntry: false });
    if (!stat?.isFile()) {
      response.writeHead(404).end('no such file');
      return;
    }
    const etag = faults.etag?.() ?? `"${stat.size}-${stat.mtimeMs}"`;
    const range = /^bytes=(\d+)-(\d+)$/.exec(request.headers.range ?? '');
    const isWanted = (request.headers['if-range'] ?? etag) === etag && !faults.ignoresRange;
    const isRange = range !== null && isWanted;
    const start = isRange ? Number(range[1]) : 0;
    const end = isRange ? Math.min(Number(range[2]), stat.size - 1) : stat.size - 1;
    if (isRange && start >= stat.size) {
      response.writeHead(416, { 'content-range': `bytes */${stat.size}` }).end();
      return;
    }
    const length = end - start + 1;
    const contentRange = { 'content-range': `bytes ${start}-${end}/${stat.size}` };
    response.writeHead(isRange ? 206 : 200, {
      'content-length': length,
      etag,
      ...(isRange ? contentRange : {}),
    });
    if (request.method === 'HEAD' || length === 0) response.end();
    else sendBody(file, faults, start, end, response);
  }
}

function sendBody(
  file: string,
  faults: ServerFaults,
  start: number,
  end: number,
  response: ServerResponse,
): void {
  if (faults.stall > 0) {
    faults.stall -= 1;
    response.flushHeaders();
    return;
  }
  if (faults.drips) {
    drip(readFileSync(file).subarray(start, end + 1), response);
    return;
  }
  if (faults.flip > 0) {
    faults.flip -= 1;
    const bytes = readFileSync(file).subarray(start, end + 1);
    const middle = bytes.length >> 1;
    bytes[middle] = bytes[middle]! ^ 1;
    response.end(bytes);
    return;
  }
  const isCut = faults.cut > 0;
  if (isCut) faults.cut -= 1;
  const last = isCut ? start + Math.floor((end - start) / 2) : end;
  const stream = createReadStream(file, { start, end: last });
  // The folder may be removed at the end of a test, before the file is open.
  stream.on('error', () => response.destroy());
  stream.pipe(response, { end: !isCut });
  if (isCut) stream.on('end', () => setImmediate(() => response.destroy()));
}

/** For ever: the last byte does not come. */
function drip(bytes: Uint8Array, response: ServerResponse): void {
  let at = 0;
  const timer = setInterval(() => {
    if (at === bytes.length - 1 || response.destroyed) clearInterval(timer);
    else response.write(bytes.subarray(at, ++at));
  }, 10);
}
