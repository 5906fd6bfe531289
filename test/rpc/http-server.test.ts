import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type IncomingMessage, request } from 'node:http';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { deflateSync, gunzipSync, gzipSync, inflateSync } from 'node:zlib';
import type { HttpHandler } from '../../lib/rpc/direct-routes.ts';
import { type HttpServer, handleFastifyRequest } from '../../lib/rpc/http-server.ts';
import { type EchoServer, startEchoServer, waitUntil } from './support/echo-server.ts';

const servers: EchoServer[] = [];
const sockets: Socket[] = [];
after(async () => {
  for (const socket of sockets) socket.destroy();
  await Promise.all(servers.map(({ server }) => server.stop()));
});

async function start(...options: Parameters<typeof startEchoServer>): Promise<EchoServer> {
  const server = await startEchoServer(...options);
  servers.push(server);
  return server;
}

/** Opens a raw HTTP connection; `ended` resolves with the received text. */
function open(port: number): { socket: Socket; ended: Promise<string> } {
  const socket = connect(port, '127.0.0.1');
  sockets.push(socket);
  let text = '';
  socket.on('data', (chunk) => {
    text += chunk;
  });
  socket.on('error', () => undefined);
  return { socket, ended: new Promise((resolve) => socket.on('close', () => resolve(text))) };
}

/** Sends single bytes at intervals until the connection ends. */
async function drip(socket: Socket, bytes: string, everyMs: number): Promise<void> {
  for (const byte of bytes) {
    if (socket.destroyed || !socket.writable) return;
    socket.write(byte);
    await sleep(everyMs);
  }
}

test('a header that arrives too slowly gets 408', async () => {
  const { port } = await start({ httpHeadersMs: 200 });
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n');
  void drip(socket, 'x-slow: yes\r\n'.repeat(100), 30);
  assert.match(await ended, /^HTTP\/1\.1 408 /);
});

test('a body that arrives too slowly gets 408', async () => {
  const { port, http } = await start({ httpHeadersMs: 200, httpRequestMs: 300 });
  const { socket, ended } = open(port);
  socket.write('POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n');
  void drip(socket, 'x'.repeat(1000), 30);
  assert.match(await ended, /^HTTP\/1\.1 408 /);
  await waitUntil(() => http.requestsInFlight === 0);
});

test('a call from another thread has no socket that could be too slow', async () => {
  const { http } = await start({ httpRequestMs: 20 });
  const errors: unknown[] = [];
  const keep = (error: unknown) => errors.push(error);
  process.on('uncaughtException', keep);
  const call = { method: 'POST', url: '/echo', payload: 'x'.repeat(100) } as const;
  assert.equal((await http.app.inject(call)).statusCode, 200);
  // Its body would be too late now.
  await sleep(40);
  process.off('uncaughtException', keep);
  assert.deepEqual(errors, []);
});

test('a streamed body is limited in idle time, not in total time', async () => {
  const { port, http } = await start({ httpHeadersMs: 200, httpRequestMs: 800 });
  const { socket, ended } = open(port);
  socket.write(
    'POST /lines HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n' +
      'content-length: 5000\r\n\r\n',
  );
  await drip(socket, 'x'.repeat(60), 30);
  assert.ok(socket.writable);
  assert.match(await ended, /^HTTP\/1\.1 408 /);
  await waitUntil(() => http.requestsInFlight === 0);
});

test('too many header bytes get 431', async () => {
  const { port, address } = await start();
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n');
  for (let i = 0; i < 2000; i++) socket.write(`x-header-${i}: ${'y'.repeat(50)}\r\n`);
  assert.match(await ended, /^HTTP\/1\.1 431 /);
  assert.equal(await (await fetch(`http://${address}/hello`)).text(), 'hello');
});

test('an idle connection is closed, also after a request', async () => {
  const { port, server } = await start({ idleMs: 200, sniffMs: 200 });
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n\r\n');
  assert.match(await ended, /^HTTP\/1\.1 200 [\s\S]*hello$/);
  await waitUntil(() => server.connections === 0);
});

test('a half-closed connection gets all responses, and no connection leaks', async () => {
  const { port, server, http, releaseHeldRequests } = await start();
  const get = (path: string): string => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`;
  const answersTo = async (bytes: string): Promise<string[]> => {
    const { socket, ended } = open(port);
    socket.end(bytes);
    return (await ended).match(/HTTP\/1\.1 \d+/g)?.map((line) => line.slice(-3)) ?? [];
  };
  assert.deepEqual(await answersTo(get('/slow')), ['200']);
  assert.deepEqual(await answersTo(get('/slow') + get('/hello') + get('/slow')), [
    '200',
    '200',
    '200',
  ]);
  const { socket, ended } = open(port);
  socket.write(get('/held'));
  await waitUntil(() => http.requestsInFlight === 1);
  socket.end();
  await sleep(50); // The end is there before the answer.
  releaseHeldRequests();
  assert.match(await ended, /200 OK[\s\S]*held$/);
  // A truncated header, a truncated body, a truncated streamed body, and no bytes.
  const post = 'HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n';
  assert.deepEqual(await answersTo('GET /hello HT'), ['400']);
  assert.deepEqual(await answersTo(`POST /echo ${post}\r\nhalf`), ['400']);
  const type = 'content-type: application/x-ndjson\r\n';
  assert.deepEqual(await answersTo(`POST /lines ${post}${type}\r\nhalf`), ['400']);
  for (const nothing of ['', 'P', 'PRP', 'PRPC', 'PRI ', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n']) {
    assert.deepEqual(await answersTo(nothing), []);
  }
  await waitUntil(
    () => server.connections === 0 && http.requestsInFlight === 0 && server.unsentBytes === 0,
  );
});

test('malformed requests get an error, except in the middle of a response', async () => {
  const { port, server, http } = await start();
  const answerTo = async (bytes: string): Promise<string> => {
    const { socket, ended } = open(port);
    socket.end(bytes);
    return ended;
  };
  const post = 'POST /echo HTTP/1.1\r\nhost: x\r\n';
  for (const [bytes, words] of [
    ['\u0016\u0003\u0001 a TLS hello', /400 [\s\S]*"the request is not HTTP\/1.1 \(Invalid method/],
    [`${post}content-length: 5\r\ncontent-length: 6\r\n\r\n`, /400 [\s\S]*INVALID_ARGUMENT/],
    [`${post}content-length: 5\r\ntransfer-encoding: chunked\r\n\r\n`, /400 [\s\S]*not HTTP/],
    [`${post}content-length: 50\r\n\r\nhalf`, /400 [\s\S]*"the request was truncated/],
    [`${post}x: ${'y'.repeat(100_000)}\r\n\r\n`, /431 [\s\S]*"the request has too large a header/],
  ] as const) {
    const answer = await answerTo(bytes);
    assert.match(answer, words, bytes.slice(0, 80));
    assert.equal(typeof JSON.parse(answer.split('\r\n\r\n')[1]!).error, 'string');
  }
  const { socket, ended } = open(port);
  socket.write('POST /endless HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\n');
  socket.write('transfer-encoding: chunked\r\n\r\n');
  await once(socket, 'data');
  socket.write('this is no chunk\r\n');
  assert.equal((await ended).match(/HTTP\/1\.1/g)?.length, 1);
  await waitUntil(() => server.connections === 0 && http.requestsInFlight === 0);
});

test('a gzip or deflate body is accepted within its limit', async () => {
  const { address } = await start({ inflatedBytes: 10_000 });
  const post = (body: Uint8Array, encoding: string): Promise<Response> =>
    fetch(`http://${address}/echo`, {
      method: 'POST',
      body: Buffer.from(body),
      headers: { 'content-encoding': encoding, 'content-type': 'application/proto' },
    });
  const text = 'to be compressed '.repeat(100);
  assert.equal(await (await post(gzipSync(text), 'gzip')).text(), text);
  assert.equal(await (await post(deflateSync(text), 'deflate')).text(), text);
  assert.equal(await (await post(Buffer.from(text), 'identity')).text(), text);
  const refused = async (body: Uint8Array, encoding: string, message: RegExp): Promise<void> => {
    const response = await post(body, encoding);
    assert.ok([400, 413].includes(response.status), String(response.status));
    assert.match(await response.text(), message);
  };
  await refused(gzipSync(Buffer.alloc(10_001)), 'gzip', /more than 10000 bytes when decompressed/);
  await refused(
    deflateSync(Buffer.alloc(10_001)),
    'deflate',
    /more than 10000 bytes when decompressed/,
  );
  await refused(Buffer.from('not gzip'), 'gzip', /not gzip: incorrect header check/);
  await refused(Buffer.from('x'), 'br', /Content-Encoding br is not supported; send gzip/);
});

test('large responses are compressed for callers that accept it', async () => {
  const addRoute = ({ app, directRoutes }: HttpServer): void => {
    const path = '/direct';
    const handler: HttpHandler = async ({ body }) => ({ type: 'text/plain', body: String(body) });
    app.post(path, (request, reply) => handleFastifyRequest(handler, request, reply));
    directRoutes.add({ path, contentTypes: ['text/plain'], handler });
  };
  const { port } = await start({}, {}, 0, undefined, () => true, undefined, addRoute);
  const decoders = { gzip: gunzipSync, deflate: inflateSync } as const;
  const large = 'é to be compressed '.repeat(500);
  const ask = async (path: string, accepted: string, body: string): Promise<string | undefined> => {
    const call = request({ port, path, method: 'POST' });
    call.setHeader('content-type', 'text/plain');
    if (accepted !== '') call.setHeader('accept-encoding', accepted);
    call.end(body);
    const [response] = (await once(call, 'response')) as [IncomingMessage];
    const bytes = Buffer.concat(await response.toArray());
    const encoding = response.headers['content-encoding'] as 'gzip' | 'deflate' | undefined;
    const plain = encoding === undefined ? bytes : decoders[encoding](bytes);
    assert.equal(plain.toString(), body);
    assert.equal(response.headers['content-length'], String(bytes.length));
    assert.equal(response.headers.vary, encoding && 'accept-encoding');
    return encoding;
  };
  for (const path of ['/direct', '/echo']) {
    for (const [accepted, encoding] of [
      ['gzip, deflate, br', 'gzip'],
      ['deflate', 'deflate'],
      ['gzip;q=0.2, deflate;q=0.5', 'deflate'],
      ['*;q=0.5', 'gzip'],
      ['gzip;q=0, identity', undefined],
      ['br', undefined],
      ['', undefined],
    ] as const) {
      assert.equal(await ask(path, accepted, large), encoding, `${path} ${accepted}`);
    }
    assert.equal(await ask(path, 'gzip', 'small'), undefined);
  }
});

test('a request completed after the server stopped gets STOPPING', async () => {
  const { port, server } = await start();
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n');
  await waitUntil(() => server.connections === 1);
  await sleep(20);
  const stopped = server.stop();
  await sleep(20);
  socket.write('\r\n');
  const answer = await ended;
  assert.match(answer, /^HTTP\/1\.1 503 /);
  assert.match(answer, /"code":"STOPPING"/);
  assert.match(answer, /retry-after: 1/i);
  await stopped;
});
