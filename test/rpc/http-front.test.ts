import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { type EchoServer, startEcho, until } from './one-port.ts';

const servers: EchoServer[] = [];
const sockets: Socket[] = [];
after(async () => {
  for (const socket of sockets) socket.destroy();
  await Promise.all(servers.map(({ server }) => server.stop()));
});

async function start(...options: Parameters<typeof startEcho>): Promise<EchoServer> {
  const server = await startEcho(...options);
  servers.push(server);
  return server;
}

/** A raw HTTP connection: what came back when it ended. */
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

/** Sends a byte now and then until the connection ends. */
async function drip(socket: Socket, bytes: string, everyMs: number): Promise<void> {
  for (const byte of bytes) {
    if (socket.destroyed || !socket.writable) return;
    socket.write(byte);
    await sleep(everyMs);
  }
}

test('a head that drips in is refused in time', async () => {
  const { port } = await start({ httpHeadersMs: 200 });
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n');
  void drip(socket, 'x-slow: yes\r\n'.repeat(100), 30);
  assert.match(await ended, /^HTTP\/1\.1 408 /);
});

test('a body that drips in is refused in time', async () => {
  const { port, http } = await start({ httpHeadersMs: 200, httpRequestMs: 300 });
  const { socket, ended } = open(port);
  socket.write('POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 5000\r\n\r\n');
  void drip(socket, 'x'.repeat(1000), 30);
  assert.match(await ended, /^HTTP\/1\.1 408 /);
  await until(() => http.inFlight === 0);
});

test('a body that streams may take longer than a request, but not be silent for so long', async () => {
  const { port, http } = await start({ httpHeadersMs: 200, httpRequestMs: 800 });
  const { socket, ended } = open(port);
  socket.write(
    'POST /lines HTTP/1.1\r\nhost: x\r\ncontent-type: application/x-ndjson\r\ncontent-length: 5000\r\n\r\n',
  );
  await drip(socket, 'x'.repeat(60), 30);
  assert.ok(socket.writable);
  assert.match(await ended, /^HTTP\/1\.1 408 /);
  await until(() => http.inFlight === 0);
});

test('a flood of headers is refused', async () => {
  const { port, address } = await start();
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n');
  for (let i = 0; i < 2000; i++) socket.write(`x-header-${i}: ${'y'.repeat(50)}\r\n`);
  assert.match(await ended, /^HTTP\/1\.1 431 /);
  assert.equal(await (await fetch(`http://${address}/hello`)).text(), 'hello');
});

test('an idle connection is closed, after a request as before', async () => {
  const { port, server } = await start({ idleMs: 200, sniffMs: 200 });
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n\r\n');
  assert.match(await ended, /^HTTP\/1\.1 200 [\s\S]*hello$/);
  await until(() => server.connections === 0);
});

test('who has said all and closes its half gets every answer, and no connection stays behind', async () => {
  const { port, server, http, release } = await start();
  const get = (path: string): string => `GET ${path} HTTP/1.1\r\nhost: x\r\n\r\n`;
  const answersTo = async (bytes: string): Promise<string[]> => {
    const { socket, ended } = open(port);
    socket.end(bytes);
    return (await ended).match(/HTTP\/1\.1 \d+/g)?.map((line) => line.slice(-3)) ?? [];
  };
  assert.deepEqual(await answersTo(get('/slow')), ['200']);
  assert.deepEqual(await answersTo(get('/slow') + get('/hello') + get('/slow')), [
    ...['200', '200', '200'],
  ]);
  const { socket, ended } = open(port);
  socket.write(get('/held'));
  await until(() => http.inFlight === 1);
  socket.end();
  await sleep(50); // The end is there before the answer.
  release();
  assert.match(await ended, /200 OK[\s\S]*held$/);
  // Half a head, half a body, a body that streams, and nothing at all.
  const post = 'HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n';
  assert.deepEqual(await answersTo('GET /hello HT'), ['400']);
  assert.deepEqual(await answersTo(`POST /echo ${post}\r\nhalf`), ['400']);
  const type = 'content-type: application/x-ndjson\r\n';
  assert.deepEqual(await answersTo(`POST /lines ${post}${type}\r\nhalf`), ['400']);
  for (const nothing of ['', 'P', 'PRP', 'PRPC', 'PRI ', 'PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n']) {
    assert.deepEqual(await answersTo(nothing), []);
  }
  await until(() => server.connections === 0 && http.inFlight === 0 && server.unsentBytes === 0);
});

test('bytes that are no request are refused in words, but not in the middle of an answer', async () => {
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
    [`${post}content-length: 50\r\n\r\nhalf`, /400 [\s\S]*"the request ended half-way/],
    [`${post}x: ${'y'.repeat(100_000)}\r\n\r\n`, /431 [\s\S]*"the request has too large a head/],
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
  await until(() => server.connections === 0 && http.inFlight === 0);
});

test('a body may be gzip, within its limit', async () => {
  const { address } = await start({ inflatedBytes: 10_000 });
  const post = (body: Uint8Array, encoding: string): Promise<Response> =>
    fetch(`http://${address}/echo`, {
      ...{ method: 'POST', body: Buffer.from(body) },
      headers: { 'content-encoding': encoding, 'content-type': 'application/proto' },
    });
  const text = 'to be compressed '.repeat(100);
  assert.equal(await (await post(gzipSync(text), 'gzip')).text(), text);
  assert.equal(await (await post(Buffer.from(text), 'identity')).text(), text);
  const refused = async (body: Uint8Array, encoding: string, message: RegExp): Promise<void> => {
    const response = await post(body, encoding);
    assert.ok([400, 413].includes(response.status), String(response.status));
    assert.match(await response.text(), message);
  };
  await refused(gzipSync(Buffer.alloc(10_001)), 'gzip', /over 10000 bytes when decompressed/);
  await refused(Buffer.from('not gzip'), 'gzip', /not gzip: incorrect header check/);
  await refused(Buffer.from('x'), 'br', /Content-Encoding br is not supported; send gzip/);
});

test('a request that comes whole only when the server has stopped is told to go elsewhere', async () => {
  const { port, server } = await start();
  const { socket, ended } = open(port);
  socket.write('GET /hello HTTP/1.1\r\nhost: x\r\n');
  await until(() => server.connections === 1);
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
