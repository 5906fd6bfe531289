/** HTTP/2 requests that are not gRPC, on the shared port: brpc's `h2` protocol, curl, browsers. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { readFileSync } from 'node:fs';
import {
  type ClientHttp2Session,
  type ClientHttp2Stream,
  type ClientSessionOptions,
  connect,
  type SecureClientSessionOptions,
} from 'node:http2';
import { type TestContext, test } from 'node:test';
import { connect as connectTls } from 'node:tls';
import type { ServerLimits } from '../../lib/core/limits.ts';
import type { GrpcServer } from '../../lib/rpc/grpc-server.ts';
import { TlsIdentity } from '../../lib/rpc/tls-identity.ts';
import { onTestEnd, temporaryFolder } from '../repository/support/fixtures.ts';
import { CertificateAuthority } from './support/certificates.ts';
import { type EchoServer, startEchoServer, waitUntil } from './support/echo-server.ts';

interface Answer {
  readonly status: number;
  readonly text: string;
  readonly headers: Record<string, unknown>;
}

const addGrpc = (grpc: GrpcServer): void => {
  grpc.addUnary('test.Who', 'who', async () => Buffer.from('grpc'));
};

async function start(
  t: TestContext,
  limits: Partial<ServerLimits> = {},
  tls?: TlsIdentity,
): Promise<EchoServer> {
  const echo = await startEchoServer(limits, {}, 0, addGrpc, () => true, tls);
  onTestEnd(t, () => echo.server.stop());
  return echo;
}

function openSession(
  t: TestContext,
  url: string,
  options: ClientSessionOptions | SecureClientSessionOptions = {},
): ClientHttp2Session {
  const session = connect(url, options);
  session.on('error', () => undefined);
  onTestEnd(t, async () => session.destroy());
  return session;
}

async function send(
  session: ClientHttp2Session,
  headers: Record<string, string>,
  body?: Uint8Array,
): Promise<Answer> {
  const stream = session.request(headers, { endStream: body === undefined });
  const answered = once(stream, 'response');
  if (body !== undefined) stream.end(body);
  const [received] = (await answered) as [Record<string, unknown>];
  const pieces: Buffer[] = [];
  for await (const piece of stream) pieces.push(piece as Buffer);
  const text = Buffer.concat(pieces).toString('latin1');
  return { status: Number(received[':status']), text, headers: received };
}

const get = (session: ClientHttp2Session, path: string, headers: Record<string, string> = {}) =>
  send(session, { ':path': path, ...headers });

/** A gRPC call with an empty message. @returns the response's message */
async function callGrpc(session: ClientHttp2Session): Promise<string> {
  const headers = { ':method': 'POST', ':path': '/test.Who/who', te: 'trailers' };
  const { text } = await send(
    session,
    { ...headers, 'content-type': 'application/grpc' },
    Buffer.alloc(5),
  );
  return text.slice(5);
}

test('plain requests and gRPC calls share an HTTP/2 connection', async (t) => {
  const { port, http } = await start(t, { httpBodyBytes: 100_000 });
  const session = openSession(t, `http://127.0.0.1:${port}`);
  assert.equal((await get(session, '/hello')).text, 'hello');
  assert.equal(await callGrpc(session), 'grpc');
  const post = { ':method': 'POST', ':path': '/echo', 'content-type': 'application/proto' };
  const body = Buffer.alloc(90_000, 'body');
  assert.equal((await send(session, post, body)).text, body.toString());
  const unknown = await get(session, '/nothing');
  assert.deepEqual([unknown.status, unknown.headers['x-bd-error-code']], [404, '1002']);
  const large = await send(session, post, Buffer.alloc(100_001));
  assert.deepEqual([large.status, JSON.parse(large.text).code], [413, 'TOO_LARGE']);
  const forged = { subject: 'CN=forged', validUntilMs: 1e15 };
  const header = { 'x-hypercube-inner-certificate': JSON.stringify(forged) };
  assert.equal((await get(session, '/who', header)).text, '{}');
  await waitUntil(() => http.requestsInFlight === 0 && http.unsentBytes === 0);
});

test('plain requests over HTTP/2 are limited as over HTTP/1.1', async (t) => {
  const limits = { httpInFlight: 1, slowReaderMs: 300, httpRequestMs: 300 };
  const { port, http, releaseHeldRequests } = await start(t, limits);
  const session = openSession(t, `http://127.0.0.1:${port}`);
  const held = get(session, '/held');
  await waitUntil(() => http.requestsInFlight === 1);
  assert.equal((await get(session, '/hello')).status, 429);
  releaseHeldRequests();
  assert.equal((await held).text, 'held');
  const upload = session.request({ ':method': 'POST', ':path': '/echo' });
  upload.on('error', () => undefined);
  upload.write('a part');
  await once(upload, 'close');
  await waitUntil(() => http.requestsInFlight === 0);
  const unread = session.request({ ':path': '/large' });
  unread.on('error', () => undefined);
  await waitUntil(() => http.unsentBytes > 0);
  await waitUntil(() => http.unsentBytes === 0);
  assert.equal((await get(session, '/hello')).text, 'hello');
});

test('a body over HTTP/2 that has no length and never comes is ended', async (t) => {
  // With a type: fastify answers at once to a POST without type and length.
  const post = { ':path': '/echo', ':method': 'POST', 'content-type': 'application/proto' };
  const open = (session: ClientHttp2Session): ClientHttp2Stream => {
    const stream = session.request(post, { endStream: false });
    stream.on('error', () => undefined);
    return stream;
  };
  const { address, http } = await start(t, { httpRequestMs: 200, httpInFlight: 2 });
  await once(open(openSession(t, `http://${address}`)), 'close');
  await waitUntil(() => http.requestsInFlight === 0);
  const patient = await start(t, { httpInFlight: 2 });
  const other = openSession(t, `http://${patient.address}`);
  const closed = once(open(other), 'close');
  open(other);
  await waitUntil(() => patient.http.requestsInFlight === 2);
  const get = { ':path': '/hello', ':method': 'GET' };
  await waitUntil(async () => (await send(other, get)).status === 200);
  await closed;
});

test('a stopping server answers plain requests in flight', async (t) => {
  const { port, http, server, releaseHeldRequests } = await start(t);
  const session = openSession(t, `http://127.0.0.1:${port}`);
  const held = get(session, '/held');
  await waitUntil(() => http.requestsInFlight === 1);
  const stopped = server.stop();
  await once(session, 'goaway');
  releaseHeldRequests();
  assert.equal((await held).text, 'held');
  await stopped;
});

test('within TLS the first bytes decide, whatever ALPN has negotiated', async (t) => {
  const authority = new CertificateAuthority(temporaryFolder(t), 'authority');
  const ca = readFileSync(authority.path);
  const { port } = await start(t, {}, new TlsIdentity(authority.issue({ name: 'server' })));
  const url = `https://127.0.0.1:${port}`;
  for (const offered of [undefined, ['http/1.1'], ['h2', 'http/1.1'], ['http/1.1', 'h2'], ['h2']]) {
    const alpn = offered === undefined ? {} : { ALPNProtocols: offered };
    const socket = connectTls({ host: '127.0.0.1', port, ca, ...alpn });
    await once(socket, 'secureConnect');
    const expected = offered === undefined ? false : offered.includes('h2') ? 'h2' : 'http/1.1';
    assert.equal(socket.alpnProtocol, expected);
    // Node's client insists on h2; brpc's does not look.
    socket.alpnProtocol = 'h2';
    const session = openSession(t, url, { createConnection: () => socket });
    assert.equal(await callGrpc(session), 'grpc', offered?.join());
    assert.equal((await get(session, '/hello')).text, 'hello', offered?.join());
    session.destroy();
  }
});
