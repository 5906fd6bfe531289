/** Requests that are answered before their bodies are read, over raw connections. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import type { HttpAdmit, HttpHandler } from '../../lib/rpc/direct-routes.ts';
import { handleFastifyRequest } from '../../lib/rpc/http-server.ts';
import { type EchoServer, startEchoServer, waitUntil } from './support/echo-server.ts';

/** The content type selects direct handling or fastify on the same path. */
const TYPES = ['text/direct', 'text/framework'];
const BODY_BYTES_MAX = 1 << 20;
const servers: EchoServer[] = [];
const sockets: Socket[] = [];
after(async () => {
  for (const socket of sockets) socket.destroy();
  await Promise.all(servers.map(({ server }) => server.stop()));
});

const handler: HttpHandler = async ({ body, headers }) => {
  if (headers['x-stop'] !== undefined) throw new CubeError('STOPPING', 'this server is stopping');
  return { type: 'text/plain', body: body as Buffer };
};

/** Admitted requests whose bodies have not arrived. */
let arriving = 0;
const admit: HttpAdmit = ({ headers }) => {
  if (headers['x-refuse'] !== undefined) throw new CubeError('OVERLOADED', 'try again later');
  arriving++;
  return () => {
    arriving--;
  };
};

async function start(): Promise<EchoServer> {
  const path = '/guarded';
  const server = await startEchoServer(
    { httpBodyBytes: BODY_BYTES_MAX, inflatedBytes: BODY_BYTES_MAX },
    {},
    0,
    undefined,
    () => true,
    undefined,
    ({ app, directRoutes }) => {
      app.post(path, { config: { admit } }, (request, reply) =>
        handleFastifyRequest(handler, request, reply),
      );
      app.get('/named/:name/do', async () => 'done');
      directRoutes.add({ path, contentTypes: ['text/direct'], admit, handler });
    },
  );
  servers.push(server);
  return server;
}

class RawClient {
  readonly socket: Socket;
  /** Received and not yet taken. */
  text = '';
  hasEnded = false;

  constructor({ port }: EchoServer) {
    this.socket = connect(port, '127.0.0.1');
    sockets.push(this.socket);
    this.socket.setEncoding('latin1');
    this.socket.on('data', (chunk) => {
      this.text += chunk;
    });
    this.socket.on('end', () => {
      this.hasEnded = true;
    });
    this.socket.on('error', () => undefined);
  }

  /** Sends the head of a POST. */
  post(path: string, length: number, more: readonly string[] = []): void {
    const lines = ['host: x', `content-length: ${length}`, ...more];
    this.socket.write(`POST ${path} HTTP/1.1\r\n${lines.join('\r\n')}\r\n\r\n`);
  }

  /** The next response with its body. */
  async takeResponse(): Promise<{ status: number; head: string; body: string }> {
    await waitUntil(() => this.#findEnd() > 0 || this.hasEnded);
    const end = this.#findEnd();
    const response = this.text.slice(0, end);
    this.text = this.text.slice(end);
    const [head = '', body = ''] = response.split('\r\n\r\n');
    return { status: Number(head.slice(9, 12)), head: head.toLowerCase(), body };
  }

  #findEnd(): number {
    const headEnd = this.text.indexOf('\r\n\r\n');
    if (headEnd < 0) return -1;
    const length = Number(/content-length: (\d+)/i.exec(this.text.slice(0, headEnd))?.[1] ?? 0);
    const end = headEnd + 4 + length;
    return this.text.length < end ? -1 : end;
  }
}

test('a body that is too large is refused unread, and the connection closes', async () => {
  const server = await start();
  for (const more of [[], ['expect: 100-continue']]) {
    for (const type of TYPES) {
      const client = new RawClient(server);
      client.post('/guarded', 2 ** 30, [`content-type: ${type}`, ...more]);
      const { status, head } = await client.takeResponse();
      assert.equal(status, 413, `${type} ${more}`);
      assert.match(head, /connection: close/);
      await waitUntil(() => client.hasEnded);
    }
  }
  await waitUntil(() => server.server.connections === 0);
});

test('a chunked body is read up to its limit, then the connection closes', async () => {
  const server = await start();
  const client = new RawClient(server);
  client.socket.write('POST /echo HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n');
  const chunk = `${(64 << 10).toString(16)}\r\n${'x'.repeat(64 << 10)}\r\n`;
  for (let i = 0; i < 1_000 && client.text === ''; i++) {
    if (!client.socket.write(chunk)) await Promise.race([once(client.socket, 'drain'), turn()]);
  }
  const { status, head } = await client.takeResponse();
  assert.equal(status, 413);
  assert.match(head, /connection: close/);
  await waitUntil(() => client.hasEnded);
});

function turn(): Promise<void> {
  return new Promise((resolve) => setTimeout(resolve, 5));
}

test('the body of a request that is answered before its end no longer counts', async () => {
  const server = await start();
  const client = new RawClient(server);
  client.socket.write('POST /guarded HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n');
  await waitUntil(() => arriving === 1);
  const chunkBytes = BODY_BYTES_MAX + 1;
  client.socket.write(`${chunkBytes.toString(16)}\r\n${'x'.repeat(chunkBytes)}\r\n`);
  assert.equal((await client.takeResponse()).status, 413);
  await waitUntil(() => client.hasEnded);
  client.socket.destroy();
  await waitUntil(() => arriving === 0);
});

test('100 Continue is sent once a request is admitted', async () => {
  const server = await start();
  for (const type of TYPES) {
    const client = new RawClient(server);
    const heads = [`content-type: ${type}`, 'expect: 100-continue'];
    client.post('/guarded', 5, heads);
    assert.equal((await client.takeResponse()).status, 100, type);
    client.socket.write('hello');
    assert.deepEqual((await client.takeResponse()).body, 'hello');
    client.post('/guarded', 5, [...heads, 'x-refuse: 1']);
    assert.equal((await client.takeResponse()).status, 429, type);
    client.socket.destroy();
    const lost = new RawClient(server);
    lost.post('/nowhere', 5, heads);
    assert.equal((await lost.takeResponse()).status, 404);
  }
});

test('a refused request keeps its connection, and later bodies are read', async () => {
  const server = await start();
  for (const type of TYPES) {
    const client = new RawClient(server);
    const heads = [`content-type: ${type}`];
    const refused = 'r'.repeat(100_000);
    for (let round = 0; round < 3; round++) {
      client.post('/guarded', refused.length, [...heads, 'x-refuse: 1']);
      const { status, head } = await client.takeResponse();
      assert.equal(status, 429, type);
      assert.match(head, /retry-after: 1/);
      assert.doesNotMatch(head, /connection: close/);
      client.socket.write(refused);
      const body = `accepted ${round} `.repeat(1_000);
      client.post('/guarded', body.length, heads);
      client.socket.write(body);
      assert.deepEqual(await client.takeResponse().then((answer) => answer.body), body, type);
    }
    client.post('/guarded', refused.length, [...heads, 'x-refuse: 1']);
    client.socket.write('only a part');
    client.socket.destroy();
    await waitUntil(() => arriving === 0);
    const broken = new RawClient(server);
    broken.post('/guarded', 5, heads);
    await waitUntil(() => arriving === 1);
    broken.socket.destroy();
    await waitUntil(() => arriving === 0);
    // The parser of the closed connection is used again, and must read bodies.
    const next = new RawClient(server);
    next.post('/guarded', 5, heads);
    next.socket.write('again');
    assert.equal((await next.takeResponse()).body, 'again', type);
  }
  await waitUntil(() => server.http.requestsInFlight === 0);
});

test('a refused request with a long body closes its connection', async () => {
  const server = await start();
  for (const type of TYPES) {
    const client = new RawClient(server);
    client.post('/guarded', 500_000, [`content-type: ${type}`, 'x-refuse: 1']);
    const { status, head } = await client.takeResponse();
    assert.equal(status, 429, type);
    assert.match(head, /connection: close/);
    await waitUntil(() => client.hasEnded);
  }
});

test('STOPPING closes the connection', async () => {
  const server = await start();
  for (const type of TYPES) {
    const client = new RawClient(server);
    client.post('/guarded', 5, [`content-type: ${type}`, 'x-stop: 1']);
    client.socket.write('hello');
    const { status, head } = await client.takeResponse();
    assert.equal(status, 503, type);
    assert.equal(head.match(/connection: close/g)?.length, 1);
    await waitUntil(() => client.hasEnded);
  }
});

test('a request without Host is told so; HTTP/1.0 needs none', async () => {
  const server = await start();
  const client = new RawClient(server);
  client.socket.write('GET /hello HTTP/1.1\r\n\r\n');
  const { status, head, body } = await client.takeResponse();
  assert.equal(status, 400);
  assert.match(head, /connection: close/);
  assert.deepEqual(JSON.parse(body), {
    code: 'INVALID_ARGUMENT',
    error: 'the request has no Host header, which HTTP/1.1 requires',
  });
  const old = new RawClient(server);
  old.socket.write('GET /hello HTTP/1.0\r\n\r\n');
  assert.equal((await old.takeResponse()).body, 'hello');
});

test('a wrong method gets 405 with the methods of the path, an unknown path 404', async () => {
  const { address } = await start();
  for (const [method, path, allow] of [
    ['GET', '/echo', 'POST'],
    ['DELETE', '/echo?x=1', 'POST'],
    ['POST', '/hello', 'GET, HEAD'],
    ['POST', '/named/a%20name/do', 'GET, HEAD'],
    ['PUT', '/guarded/', 'POST'],
  ] as const) {
    const response = await fetch(`http://${address}${path}`, { method });
    assert.equal(response.status, 405, `${method} ${path}`);
    assert.equal(response.headers.get('allow'), allow);
    const { code, error } = (await response.json()) as { code: string; error: string };
    assert.equal(code, 'UNSUPPORTED');
    assert.match(error, new RegExp(`^${method} /.* is not supported; this path supports ${allow}`));
  }
  for (const path of ['/nowhere', '/named/x', '/named/x/do/more', '/']) {
    const response = await fetch(`http://${address}${path}`, { method: 'POST', body: 'x' });
    assert.equal(response.status, 404, path);
    assert.equal(response.headers.get('allow'), null);
    await response.arrayBuffer();
  }
  const long = await fetch(`http://${address}/${'n'.repeat(8_000)}`);
  assert.equal(long.status, 404);
  assert.ok((await long.text()).length < 300);
});
