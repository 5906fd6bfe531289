/** Requests past the framework are answered, limited and refused as those that go through it, and by the same handler. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
import type { HttpHandler } from '../../lib/rpc/http-direct.ts';
import { answerBy } from '../../lib/rpc/http-front.ts';
import { type EchoServer, startEcho } from './one-port.ts';

/** Which way it goes is the content type's: the same path has both. */
const DIRECT = 'text/direct';
const FRAMEWORK = 'text/framework';
const BYTES = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
const servers: EchoServer[] = [];
const sockets: Socket[] = [];
after(async () => {
  for (const socket of sockets) socket.destroy();
  await Promise.all(servers.map(({ server }) => server.stop()));
});

/** Says back what it was asked, or fails as it is asked to. */
const handler: HttpHandler = async ({ params, headers, body }) => {
  const { name } = params;
  if (name === 'refused') throw new CubeError('UNAVAILABLE', `no ${headers['x-what']} here`);
  if (name === 'broken') throw new Error('broken');
  if (name === 'bytes') return { type: 'application/octet-stream', headers: { x: 1 }, body: BYTES };
  if (name === 'slow') await sleep(200);
  return { type: 'text/plain; charset=utf-8', body: `${name} é ${body}` };
};

async function start(limits: Parameters<typeof startEcho>[0] = {}): Promise<EchoServer> {
  const path = '/named/:name/do';
  const server = await startEcho(
    limits,
    {},
    0,
    undefined,
    () => true,
    undefined,
    ({ app, direct }) => {
      app.post(path, (request, reply) => answerBy(handler, request, reply));
      direct.add({ path, types: [DIRECT], handler });
    },
  );
  servers.push(server);
  return server;
}

function head(name: string, type: string, length: number, more = ''): string {
  const lines = ['host: x', 'x-what: é', `content-type: ${type}`, `content-length: ${length}`];
  return `POST /named/${name}/do HTTP/1.1\r\n${lines.join('\r\n')}\r\n${more}\r\n`;
}

function open(port: number): { socket: Socket; ended: Promise<Buffer> } {
  const socket = connect(port, '127.0.0.1');
  sockets.push(socket);
  const pieces: Buffer[] = [];
  socket.on('data', (piece: Buffer) => pieces.push(piece));
  socket.on('error', () => undefined);
  return { socket, ended: once(socket, 'close').then(() => Buffer.concat(pieces)) };
}

/** The whole answer in pieces to compare: status, heads without the date, body. */
async function answerOf(port: number, name: string, type: string): Promise<unknown> {
  const { socket, ended } = open(port);
  const body = 'some text';
  socket.write(head(name, type, body.length, 'connection: close\r\n') + body.slice(0, 4));
  await sleep(5);
  socket.write(body.slice(4));
  const bytes = await ended;
  const headEnd = bytes.indexOf('\r\n\r\n');
  const [status, ...lines] = bytes.toString('latin1', 0, headEnd).toLowerCase().split('\r\n');
  const heads = lines.filter((line) => !line.startsWith('date:')).sort();
  return { status, heads, body: bytes.toString('latin1', headEnd) };
}

async function until(condition: () => boolean): Promise<void> {
  for (let i = 0; i < 1_000 && !condition(); i++) await sleep(10);
  assert.ok(condition(), 'did not happen within ten seconds');
}

test('an answer is the same whichever way the request went', async () => {
  const { port, http } = await start();
  for (const [name, status] of [
    ['text', 200],
    ['bytes', 200],
    ['refused', 503],
    ['broken', 500],
  ] as const) {
    const direct = (await answerOf(port, name, DIRECT)) as { status: string; body: string };
    assert.match(direct.status, new RegExp(` ${status} `), name);
    assert.deepEqual(direct, await answerOf(port, name, FRAMEWORK), name);
  }
  await until(() => http.inFlight === 0 && http.unsentBytes === 0);
});

test('requests past the framework count: in number, in bytes, and together with the others', async () => {
  const { port, address, http } = await start({
    ...{ httpInFlight: 2, httpBodyBytes: 900, inputTotalBytes: 1_000 },
  });
  const statusOf = async (type: string, length: number): Promise<number> => {
    const options = { method: 'POST', headers: { 'content-type': type }, body: 'y'.repeat(length) };
    const response = await fetch(`http://${address}/named/x/do`, options);
    await response.arrayBuffer();
    return response.status;
  };
  for (const type of [DIRECT, FRAMEWORK]) assert.equal(await statusOf(type, 901), 413, type);
  const half = open(port);
  half.socket.write(`${head('x', DIRECT, 900)}half`);
  await until(() => http.inFlight === 1);
  for (const type of [DIRECT, FRAMEWORK]) {
    assert.equal(await statusOf(type, 200), 429, type);
    assert.equal(await statusOf(type, 50), 200, type);
  }
  const other = open(port);
  other.socket.write(`${head('x', DIRECT, 50)}half`);
  await until(() => http.inFlight === 2);
  for (const type of [DIRECT, FRAMEWORK]) assert.equal(await statusOf(type, 5), 429, type);
  half.socket.destroy();
  other.socket.destroy();
  await until(() => http.inFlight === 0);
  assert.equal(await statusOf(DIRECT, 200), 200);
});

test('a body past the framework must be there in time', async () => {
  const { port, http } = await start({ httpHeadersMs: 200, httpRequestMs: 300 });
  const { socket, ended } = open(port);
  socket.write(`${head('x', DIRECT, 5_000)}half`);
  assert.match((await ended).toString(), /^HTTP\/1\.1 408 /);
  await until(() => http.inFlight === 0);
});

test('what is in flight past the framework is answered while the server stops', async () => {
  const { server, port, http } = await start();
  const { socket, ended } = open(port);
  socket.write(`${head('slow', DIRECT, 4)}text`);
  await until(() => http.inFlight === 1);
  await server.stop();
  const answer = (await ended).toString();
  assert.match(answer, /^HTTP\/1\.1 200 /);
  assert.match(answer, /connection: close/i);
  assert.match(answer, /slow é text$/);
});
