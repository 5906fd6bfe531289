import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { gzipSync } from 'node:zlib';
import { type EchoServer, startEcho } from './one-port.ts';

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

async function until(condition: () => boolean): Promise<void> {
  for (let i = 0; i < 500 && !condition(); i++) await sleep(10);
  assert.ok(condition(), 'did not happen within five seconds');
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
