/** Direct requests are handled, limited and rejected like those of fastify, by the same handler. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
import type { HttpHandler } from '../../lib/rpc/direct-routes.ts';
import { handleFastifyRequest } from '../../lib/rpc/http-server.ts';
import { type EchoServer, startEchoServer } from './support/echo-server.ts';

/** The content type selects direct handling or fastify on the same path. */
const DIRECT = 'text/direct';
const FRAMEWORK = 'text/framework';
const BYTES = Buffer.from(Array.from({ length: 256 }, (_, i) => i));
const servers: EchoServer[] = [];
const sockets: Socket[] = [];
after(async () => {
  for (const socket of sockets) socket.destroy();
  await Promise.all(servers.map(({ server }) => server.stop()));
});

/** Echoes the request, or fails as requested. */
const handler: HttpHandler = async ({ params, headers, body }) => {
  const { name } = params;
  if (name === 'refused') throw new CubeError('UNAVAILABLE', `no ${headers['x-what']} here`);
  if (name === 'broken') throw new Error('broken');
  if (name === 'bytes') return { type: 'application/octet-stream', headers: { x: 1 }, body: BYTES };
  if (name === 'slow') await sleep(200);
  return { type: 'text/plain; charset=utf-8', body: `${name} é ${body}` };
};

async function start(limits: Parameters<typeof startEchoServer>[0] = {}): Promise<EchoServer> {
  const path = '/named/:name/do';
  const server = await startEchoServer(
    limits,
    {},
    0,
    undefined,
    () => true,
    undefined,
    ({ app, directRoutes }) => {
      app.post(path, (request, reply) => handleFastifyRequest(handler, request, reply));
      directRoutes.add({ path, contentTypes: [DIRECT], handler });
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

/** Returns the parts of a response to compare: status, headers without the date, body. */
async function fetchResponse(port: number, name: string, type: string): Promise<unknown> {
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

test('responses are the same with and without fastify', async () => {
  const { port, http } = await start();
  for (const [name, status] of [
    ['text', 200],
    ['bytes', 200],
    ['refused', 503],
    ['broken', 500],
  ] as const) {
    const direct = (await fetchResponse(port, name, DIRECT)) as { status: string; body: string };
    assert.match(direct.status, new RegExp(` ${status} `), name);
    assert.deepEqual(direct, await fetchResponse(port, name, FRAMEWORK), name);
  }
  await until(() => http.requestsInFlight === 0 && http.unsentBytes === 0);
});

test("direct requests count towards the limits together with fastify's", async () => {
  const { port, address, http } = await start({
    httpInFlight: 2,
    httpBodyBytes: 900,
    inputTotalBytes: 1_000,
    // On a busy machine a body that is half sent would count as slow, and make room for others.
    slowReaderBytes: 0,
  });
  const fetchStatus = async (type: string, length: number): Promise<number> => {
    const options = { method: 'POST', headers: { 'content-type': type }, body: 'y'.repeat(length) };
    const response = await fetch(`http://${address}/named/x/do`, options);
    await response.arrayBuffer();
    return response.status;
  };
  for (const type of [DIRECT, FRAMEWORK]) assert.equal(await fetchStatus(type, 901), 413, type);
  const half = open(port);
  half.socket.write(`${head('x', DIRECT, 900)}half`);
  await until(() => http.requestsInFlight === 1);
  for (const type of [DIRECT, FRAMEWORK]) {
    assert.equal(await fetchStatus(type, 200), 429, type);
    assert.equal(await fetchStatus(type, 50), 200, type);
  }
  const other = open(port);
  other.socket.write(`${head('x', DIRECT, 50)}half`);
  await until(() => http.requestsInFlight === 2);
  for (const type of [DIRECT, FRAMEWORK]) assert.equal(await fetchStatus(type, 5), 429, type);
  half.socket.destroy();
  other.socket.destroy();
  await until(() => http.requestsInFlight === 0);
  assert.equal(await fetchStatus(DIRECT, 200), 200);
});

test('the body of a direct request has a time limit', async () => {
  const { port, http } = await start({ httpHeadersMs: 200, httpRequestMs: 300 });
  const { socket, ended } = open(port);
  socket.write(`${head('x', DIRECT, 5_000)}half`);
  assert.match((await ended).toString(), /^HTTP\/1\.1 408 /);
  await until(() => http.requestsInFlight === 0);
});

test('direct requests in flight are answered while the server stops', async () => {
  const { server, port, http } = await start();
  const { socket, ended } = open(port);
  socket.write(`${head('slow', DIRECT, 4)}text`);
  await until(() => http.requestsInFlight === 1);
  await server.stop();
  const answer = (await ended).toString();
  assert.match(answer, /^HTTP\/1\.1 200 /);
  assert.match(answer, /connection: close/i);
  assert.match(answer, /slow é text$/);
});
