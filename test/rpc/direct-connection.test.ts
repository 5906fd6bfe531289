/** Direct requests that are read without node:http are answered as node:http answers them. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import { type AddressInfo, connect, createServer, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import fc from 'fast-check';
import type { AccessGate } from '../../lib/access/access-gate.ts';
import { UNRESTRICTED } from '../../lib/access/principal.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { HttpServer } from '../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { readIntoSharedBuffer } from '../../lib/rpc/shared-read-buffer.ts';
import { TlsIdentity } from '../../lib/rpc/tls-identity.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { CertificateAuthority } from './support/certificates.ts';
import {
  DIRECT_TYPE,
  type DirectServers,
  encodePost,
  exchange,
  startDirectServers,
} from './support/direct-servers.ts';
import { waitUntil } from './support/echo-server.ts';

const BODY_BYTES_MAX = 1 << 20;
const servers: DirectServers[] = [];
after(() => Promise.all(servers.map((each) => each.stop())));

async function start(
  limits: Parameters<typeof startDirectServers>[0] = {},
): Promise<DirectServers> {
  const started = await startDirectServers({ httpBodyBytes: BODY_BYTES_MAX, ...limits });
  servers.push(started);
  return started;
}

const shared = start();
const PLAIN_GET = Buffer.from('GET /hello HTTP/1.1\r\nHost: x\r\n\r\n');
const CHUNKED = Buffer.from(
  `POST /named/text/do HTTP/1.1\r\nHost: x\r\nContent-Type: ${DIRECT_TYPE}\r\n` +
    'Transfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\n\r\n',
);

/** Asserts that both ports answer the same. @returns the answer */
async function compare(pieces: readonly Uint8Array[], note = ''): Promise<string> {
  const { directPort, nodePort } = await shared;
  const [direct, node] = await Promise.all([
    exchange(directPort, pieces),
    exchange(nodePort, pieces),
  ]);
  assert.equal(direct, node, note);
  return direct;
}

function split(bytes: Buffer, positions: readonly number[]): Buffer[] {
  const sorted = [0, ...new Set(positions), bytes.length].sort((a, b) => a - b);
  return sorted.slice(1).map((end, i) => bytes.subarray(sorted[i], end));
}

test('answers have the bytes that node:http sends', async () => {
  const { handled } = await shared;
  const before = handled.direct;
  const cases: [string, Buffer, RegExp][] = [
    ['text', encodePost('text', 'some text', ['X-What:  a value\t ']), /^HTTP\/1\.1 200 OK\r\n/],
    ['bytes', encodePost('bytes', Buffer.from([0, 128, 255])), /x: 1\r\n/],
    ['marked', encodePost('marked', 'x'), /OK\r\nx-marked: true\r\n/],
    ['missing', encodePost('missing', 'x', ['x-what: thing']), /404 Not Found/],
    ['broken', encodePost('broken', 'x'), /500 Internal Server Error/],
    ['slow', encodePost('slow', 'x'), /slow/],
    ['keep-alive', encodePost('text', 'x', ['Connection: Keep-Alive']), /Connection: keep-alive/],
    ['large', encodePost('bytes', 'x'.repeat(200_000)), /content-length: 200000/],
    [
      'grown',
      encodePost('bytes', Buffer.alloc(BODY_BYTES_MAX, 'grown')),
      /content-length: 1048576/,
    ],
    ['gzip', encodePost('bytes', 'x'.repeat(9_000), ['Accept-Encoding: gzip']), /gzip\r\nvary: /],
    ['refused', encodePost('text', 'x', ['x-refuse: 1']), /429 Too Many Requests/],
    ['skipped', encodePost('text', 'x'.repeat(200_000), ['x-refuse: 1']), /retry-after: 1/],
    ['stopping', encodePost('stopping', 'x'), /503 Service Unavailable.*connection: close/s],
  ];
  for (const [name, request, expected] of cases) {
    assert.match(await compare([request], name), expected, name);
  }
  // All but the refused ones.
  assert.equal(handled.direct - before, cases.length - 2);
});

test('answers do not depend on how the bytes arrive', async () => {
  const request = Buffer.concat([
    encodePost('text', 'body', ['X-What: a']),
    encodePost('text', 'refused', ['x-refuse: 1']),
    encodePost('slow', 'slow'),
    PLAIN_GET,
  ]);
  const whole = await compare([request]);
  assert.equal(whole.match(/HTTP\/1\.1 (200|429) /g)?.length, 4);
  const { directPort } = await shared;
  const cuts = Array.from({ length: request.length - 1 }, (_, i) => i + 1);
  for (let i = 0; i < cuts.length; i += 50) {
    const answers = cuts
      .slice(i, i + 50)
      .map(async (cut) => [cut, await exchange(directPort, split(request, [cut]))] as const);
    for (const [cut, answer] of await Promise.all(answers)) assert.equal(answer, whole, `${cut}`);
  }
  const bytes = Array.from(request, (byte) => Buffer.of(byte));
  assert.equal(await exchange(directPort, bytes), whole, 'byte by byte');
});

/** One request of many kinds, direct or not. */
const requests = fc.oneof(
  { weight: 5, arbitrary: fc.constantFrom('text', 'bytes', 'slow', 'missing', 'marked') },
  { weight: 2, arbitrary: fc.constantFrom('refused', 'refused-large') },
  { weight: 1, arbitrary: fc.constantFrom('get', 'chunked', 'not-found', 'large') },
);

function encode(kind: string): Buffer {
  if (kind === 'get') return PLAIN_GET;
  if (kind === 'chunked') return CHUNKED;
  if (kind === 'not-found') return encodePost('a/b', 'x');
  if (kind === 'large') return encodePost('text', 'l'.repeat(70_000));
  if (kind === 'refused') return encodePost('text', 'no', ['x-refuse: 1']);
  if (kind === 'refused-large') return encodePost('text', 'n'.repeat(150_000), ['x-refuse: 1']);
  return encodePost(kind, `body of ${kind}`, ['x-what: w']);
}

test('sequences of requests in any pieces get the same answers', async () => {
  const input = fc.record({
    kinds: fc.array(requests, { minLength: 1, maxLength: 6 }),
    cuts: fc.array(fc.double({ min: 0, max: 1, noNaN: true }), { maxLength: 6 }),
  });
  await fc.assert(
    fc.asyncProperty(input, async ({ kinds, cuts }) => {
      const bytes = Buffer.concat(kinds.map(encode));
      const positions = cuts.map((part) => Math.floor(part * bytes.length));
      const answer = await compare(split(bytes, positions));
      assert.equal(answer.match(/HTTP\/1\.1 \d+ /g)?.length, kinds.length);
    }),
    { numRuns: 60 },
  );
  const { echo } = await shared;
  await waitUntil(() => echo.http.requestsInFlight === 0 && echo.http.unsentBytes === 0);
});

const LINES = [`Content-Type: ${DIRECT_TYPE}`, 'Content-Length: 4'];
const HOSTILE: readonly [name: string, head: string][] = [
  ['two lengths', post([...LINES, 'Content-Length: 5'])],
  ['two equal lengths', post([...LINES, 'Content-Length: 4'])],
  ['a list of lengths', post([LINES[0] ?? '', 'Content-Length: 4, 4'])],
  ['length and chunked', post([...LINES, 'Transfer-Encoding: chunked'])],
  ['length and an unknown encoding', post([...LINES, 'Transfer-Encoding: x'])],
  ['a signed length', post([LINES[0] ?? '', 'Content-Length: +4'])],
  ['a negative length', post([LINES[0] ?? '', 'Content-Length: -4'])],
  ['a hexadecimal length', post([LINES[0] ?? '', 'Content-Length: 0x4'])],
  ['a length with a leading zero', post([LINES[0] ?? '', 'Content-Length: 04'])],
  ['a huge length', post([LINES[0] ?? '', `Content-Length: ${'9'.repeat(30)}`])],
  ['no length', post([LINES[0] ?? ''])],
  ['a length of 0', post([LINES[0] ?? '', 'Content-Length: 0'])],
  ['an empty length', post([LINES[0] ?? '', 'Content-Length:'])],
  ['space before a colon', post([...LINES, 'X-What : a'])],
  ['an empty name', post([...LINES, ': a'])],
  ['a folded value', post([...LINES, 'X-What: a', ' b'])],
  ['a folded length', post([LINES[0] ?? '', 'Content-Length:', ' 4'])],
  ['a line without a colon', post([...LINES, 'nothing'])],
  ['NUL in a value', post([...LINES, 'X-What: a\0b'])],
  ['a control character in a value', post([...LINES, 'X-What: a\u0001b'])],
  ['bytes above ASCII in a value', post([...LINES, 'X-What: é'])],
  ['a bare CR in a value', post([...LINES, 'X-What: a\rb'])],
  ['bare LF after lines', post(LINES).replaceAll('\r\n', '\n')],
  ['bare LF at the end', `${post(LINES).slice(0, -4)}\r\n\n`],
  ['a bare LF in the request line', post(LINES).replace(' HTTP/1.1\r\n', ' HTTP/1.1\n')],
  ['two hosts', post([...LINES, 'Host: y'])],
  ['no host', post(LINES).replace('Host: x\r\n', '')],
  ['a repeated header', post([...LINES, 'X-What: a', 'X-What: b'])],
  ['names of object members', post([...LINES, '__proto__: a', 'constructor: b', 'x-what: c'])],
  ['the whole address as target', post(LINES).replace('/named', 'http://x/named')],
  ['an authority as target', post(LINES).replace('/named/text/do', 'x:80')],
  ['a star as target', post(LINES).replace('/named/text/do', '*')],
  ['a space in the target', post(LINES).replace('/text/', '/te xt/')],
  ['NUL in the target', post(LINES).replace('/text/', '/te\0xt/')],
  ['a query', post(LINES).replace('/do', '/do?x=1')],
  ['an escape in the path', post(LINES).replace('/text/', '/te%78t/')],
  ['two spaces', post(LINES).replace('POST ', 'POST  ')],
  ['lower case', post(LINES).replace('POST', 'post')],
  ['an unknown method', post(LINES).replace('POST', 'POSTS')],
  ['HTTP/1.0', post(LINES).replace('HTTP/1.1', 'HTTP/1.0')],
  ['HTTP/1.2', post(LINES).replace('HTTP/1.1', 'HTTP/1.2')],
  ['HTTP/2.0', post(LINES).replace('HTTP/1.1', 'HTTP/2.0')],
  ['a lower case version', post(LINES).replace('HTTP/1.1', 'http/1.1')],
  ['Connection: close', post([...LINES, 'Connection: close'])],
  ['Connection: upgrade', post([...LINES, 'Connection: upgrade', 'Upgrade: websocket'])],
  ['Upgrade', post([...LINES, 'Upgrade: websocket'])],
  ['Expect', post([...LINES, 'Expect: 100-continue'])],
  ['an unknown expectation', post([...LINES, 'Expect: more'])],
  ['a page of another origin', post([...LINES, 'Origin: http://page.example'])],
  ['a compressed body', post([...LINES, 'Content-Encoding: gzip'])],
  ['a head of 5 KB', post([...LINES, `X-What: ${'w'.repeat(5_000)}`])],
  ['a head of 20 KB', post([...LINES, `X-What: ${'w'.repeat(20_000)}`])],
  ['many headers', post([...LINES, ...Array.from({ length: 3_000 }, (_, i) => `a${i}: b`)])],
  ['empty lines before', `\r\n\r\n${post(LINES)}`],
  ['a body that is too large', post([LINES[0] ?? '', `Content-Length: ${BODY_BYTES_MAX + 1}`])],
  ['a large body that is refused', post([LINES[0] ?? '', 'Content-Length: 999999', 'x-refuse: 1'])],
];

function post(lines: readonly string[]): string {
  return `POST /named/text/do HTTP/1.1\r\nHost: x\r\n${lines.join('\r\n')}\r\n\r\n`;
}

test('unusual and hostile heads get the answers of node:http', async () => {
  const { directPort } = await shared;
  const smuggled = encodePost('smuggled', 'inner');
  const request = encodePost('text', 'before');
  const before = await compare([request]);
  for (const [name, head] of HOSTILE) {
    const first = Buffer.from(`${head}body`, 'latin1');
    await compare([first], name);
    const answer = await compare([Buffer.concat([first, smuggled])], `${name}, then another`);
    // node:http drops the answer in progress when a broken request follows.
    const later = [
      [Buffer.concat([request, first, smuggled])],
      [request, first.subarray(0, 30), Buffer.concat([first.subarray(30), smuggled])],
    ];
    for (const pieces of later) assert.equal(await exchange(directPort, pieces), before + answer);
  }
});

test('requests that end too early get the answers of node:http', async () => {
  const request = encodePost('text', 'body', ['X-What: a']);
  const refused = encodePost('text', 'x'.repeat(100), ['x-refuse: 1']);
  for (const bytes of [request.length - 1, request.length - 5, request.length - 9, 20, 3]) {
    const part = request.subarray(0, bytes);
    await compare([part], `the first ${bytes} bytes`);
    await compare([request, part], `a whole request, then the first ${bytes} bytes`);
  }
  assert.match(await compare([request.subarray(0, -1)]), /400 Bad Request.*was truncated/s);
  await compare([refused.subarray(0, -10)], 'a refused request');
  const { echo, bodiesArriving } = await shared;
  await waitUntil(() => echo.http.requestsInFlight === 0 && bodiesArriving() === 0);
});

test('random damage to a head gets the answer of node:http', async () => {
  const request = encodePost('text', 'body', ['X-What: a', 'Timeout-Ms: 5']);
  const headBytes = request.indexOf('\r\n\r\n') + 4;
  const input = fc.record({
    at: fc.nat({ max: headBytes - 1 }),
    removed: fc.nat({ max: 3 }),
    added: fc.uint8Array({ maxLength: 3 }),
  });
  await fc.assert(
    fc.asyncProperty(input, async ({ at, removed, added }) => {
      const damaged = [request.subarray(0, at), added, request.subarray(at + removed)];
      // A longer body ends within the next request, and node:http drops the answer to the first.
      fc.pre(!/content-length: *\d\d/i.test(Buffer.concat(damaged).toString('latin1')));
      await compare([Buffer.concat([...damaged, encodePost('text', 'next')])]);
    }),
    { numRuns: 300 },
  );
});

test('bursts of more requests than a turn begins get the same answers', async () => {
  const { directPort, echo } = await shared;
  const request = encodePost('text', 'body', ['X-What: a']);
  const cases: [string, Uint8Array[]][] = [
    ['one request', [request]],
    ['two requests', [Buffer.concat([request, request])]],
    ['one request in two pieces', [request.subarray(0, 90), request.subarray(90)]],
    ['a request and a part', [Buffer.concat([request, request.subarray(0, 50)])]],
    ['a part', [request.subarray(0, -1)]],
    ['node:http', [Buffer.concat([request, PLAIN_GET])]],
  ];
  const expected = new Map<string, string>();
  for (const [name, pieces] of cases) expected.set(name, await compare(pieces, name));
  const burst = Array.from({ length: 50 }, () => cases).flat();
  await Promise.all(
    burst.map(async ([name, pieces]) =>
      assert.equal(await exchange(directPort, pieces), expected.get(name), name),
    ),
  );
  await waitUntil(() => echo.http.requestsInFlight === 0);
});

test('connections that break off leave no request in flight', async () => {
  const { echo, directPort, bodiesArriving } = await shared;
  const whole = encodePost('slow', 'x'.repeat(1_000));
  for (const part of [10, whole.length - 100, whole.length]) {
    const socket = connect(directPort, '127.0.0.1');
    socket.on('error', () => undefined);
    socket.write(whole.subarray(0, part));
    if (part > 100) await waitUntil(() => echo.http.requestsInFlight === 1);
    socket.resetAndDestroy();
    await waitUntil(() => echo.http.requestsInFlight === 0 && bodiesArriving() === 0);
  }
});

test('bodies that arrive too slowly get 408, slow heads the limit of node:http', async () => {
  const { directPort, nodePort, echo } = await start({ httpHeadersMs: 300, httpRequestMs: 300 });
  const request = encodePost('text', 'x'.repeat(100));
  for (const bytes of [request.length - 1, 40]) {
    const answers = [directPort, nodePort].map(async (port) => {
      const socket = connect(port, '127.0.0.1');
      let text = '';
      socket.setEncoding('latin1');
      socket.on('data', (chunk) => {
        text += chunk;
      });
      socket.write(request.subarray(0, bytes));
      await waitUntil(() => socket.readableEnded);
      return text.replace(/^Date: .*\r\n/m, '');
    });
    const [direct = '', node] = await Promise.all(answers);
    assert.match(direct, /^HTTP\/1\.1 408 /);
    assert.equal(direct, node);
  }
  await waitUntil(() => echo.http.requestsInFlight === 0);
});

test('pipelined requests are read no faster than they are answered', async () => {
  const { directPort, handled } = await shared;
  const request = encodePost('slow', 'x'.repeat(10_000));
  const socket = connect({ port: directPort, host: '127.0.0.1' });
  let text = '';
  socket.setEncoding('latin1');
  socket.on('data', (chunk) => {
    text += chunk;
  });
  const before = handled.direct;
  for (let i = 0; i < 100; i++) socket.write(request);
  await waitUntil(() => handled.direct > before);
  assert.ok(handled.direct - before < 50, 'one request at a time');
  await waitUntil(() => text.match(/HTTP\/1\.1 200 /g)?.length === 100);
  socket.destroy();
});

test('direct requests over TLS are read without node:http', async (t) => {
  const folder = temporaryFolder(t);
  const authority = new CertificateAuthority(folder, 'authority');
  const files = authority.issue({ name: 'server' });
  const secure = await startDirectServers({}, new TlsIdentity(files));
  servers.push(secure);
  const socket = connectTls({
    port: secure.directPort,
    host: '127.0.0.1',
    ca: readFileSync(files.ca),
  });
  socket.on('error', () => undefined);
  let text = '';
  socket.setEncoding('latin1');
  socket.on('data', (chunk) => {
    text += chunk;
  });
  const request = encodePost('text', 'body');
  socket.write(request.subarray(0, -2));
  socket.write(request.subarray(-2));
  socket.write(encodePost('bytes', 'b'.repeat(300_000)));
  socket.write(PLAIN_GET);
  await waitUntil(() => text.endsWith('hello'));
  assert.deepEqual(secure.handled, { direct: 2, node: 0 });
  assert.match(text, /text Ã© {2}body/);
  assert.ok(text.includes('b'.repeat(300_000)));
  socket.destroy();
});

test('this version of Node can read into a shared buffer', async () => {
  const server = createServer();
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect((server.address() as AddressInfo).port, '127.0.0.1');
  const [socket] = (await once(server, 'connection')) as [Socket];
  const received: string[] = [];
  const isShared = readIntoSharedBuffer(socket, (count, buffer) => {
    received.push(buffer.toString('latin1', 0, count));
    return true;
  });
  assert.ok(isShared, 'requests with large bodies cost twice as much without it');
  socket.resume();
  client.write('some bytes');
  await waitUntil(() => received.join('') === 'some bytes');
  client.destroy();
  socket.destroy();
  server.close();
});

test('the grant of a caller ends with its response or its connection', async (t) => {
  let [granted, ended] = [0, 0];
  const admitCaller: AccessGate['admit'] = ({ apiKey }, { path }) => {
    assert.equal(path, '/named/:name/do');
    if (apiKey !== 'good') throw new CubeError('UNAUTHENTICATED', 'send a key');
    granted++;
    const nothing = (): void => undefined;
    return { principal: UNRESTRICTED, check: nothing, next: nothing, end: () => void ended++ };
  };
  const gate = { admit: admitCaller } as AccessGate;
  const limits = DEFAULT_SERVER_LIMITS;
  const logger = createLogger('test', { level: 'silent' });
  const http = new HttpServer(limits, logger, '', { gate });
  http.directRoutes.add({
    path: '/named/:name/do',
    contentTypes: [DIRECT_TYPE],
    admit: ({ grant, headers }) => {
      assert.ok(grant);
      if (headers['x-refuse'] !== undefined) throw new CubeError('OVERLOADED', 'try again later');
      return undefined;
    },
    handler: async ({ grant }) => ({ type: 'text/plain', body: String(grant !== undefined) }),
  });
  const server = new OnePortServer({ http, limits, logger });
  const port = Number((await server.listen('127.0.0.1', 0)).split(':').at(-1));
  t.after(() => server.stop());
  const key = 'X-Api-Key: good';
  assert.match(await exchange(port, [encodePost('text', 'x')]), /401 Unauthorized/);
  assert.match(await exchange(port, [encodePost('text', 'x', ['X-Api-Key: bad'])]), /401 /);
  assert.match(await exchange(port, [encodePost('text', 'x', [key])]), /true$/);
  assert.match(await exchange(port, [encodePost('text', 'x', [key, 'x-refuse: 1'])]), /429 /);
  assert.deepEqual([granted, ended], [2, 2]);
  const socket = connect(port, '127.0.0.1');
  socket.write(encodePost('text', 'not whole', [key]).subarray(0, -3));
  await waitUntil(() => granted === 3);
  socket.destroy();
  await waitUntil(() => ended === 3);
});
