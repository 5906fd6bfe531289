import assert from 'node:assert/strict';
import { connect as connectHttp2 } from 'node:http2';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
import type { ServerLimits } from '../../lib/core/limits.ts';
import type { GrpcCall } from '../../lib/rpc/grpc-calls.ts';
import type { GrpcServer } from '../../lib/rpc/grpc-server.ts';
import {
  type EchoServer,
  encodeRequestFrame,
  RawConnection,
  startEchoServer,
  waitUntil,
} from './support/echo-server.ts';
import { callReflection, checkGrpcHealth, RawGrpcClient } from './support/grpc-client.ts';

const bytes = (text: string): Uint8Array => Buffer.from(text, 'latin1');
const closers: (() => unknown)[] = [];
after(() => Promise.all(closers.reverse().map((close) => close())));

/** The abort signals of the messages of `signals`. */
const signals = new Set<AbortSignal>();

interface GrpcEcho extends EchoServer {
  readonly grpc: GrpcServer;
  readonly client: RawGrpcClient;
  /** Pending calls of `later`, to be answered by the test. */
  readonly waiting: { call: GrpcCall; answer: (bytes: Uint8Array) => void }[];
}

async function start(limits: Partial<ServerLimits> = {}, ready = () => true): Promise<GrpcEcho> {
  const waiting: GrpcEcho['waiting'] = [];
  const server = await startEchoServer(
    limits,
    {},
    0,
    (grpc) => {
      grpc.addUnary('test.Echo', 'echo', (request) => request);
      grpc.addBidi('test.Echo', 'stream', (request) => {
        if (Buffer.from(request).toString() === 'bad') {
          throw new CubeError('WRONG_SHARD', 'not here');
        }
        return request;
      });
      grpc.addBidi('test.Echo', 'signals', (request, call) => {
        signals.add(call.abortSignal);
        return request;
      });
      grpc.addBidi('test.Echo', 'amplify', () => new Uint8Array(1 << 20));
      grpc.addUnary('test.Echo', 'large', () => new Uint8Array(8 << 20));
      grpc.addUnary('test.Echo', 'fails', (request) => {
        throw new CubeError('VERSION_ABSENT', Buffer.from(request).toString());
      });
      grpc.addUnary('test.Echo', 'breaks', () => Promise.reject(new TypeError('a bug')));
      grpc.addUnary('test.Echo', 'asks', (_request, call) =>
        bytes(`${call.getMetadata('log-id')} ${call.peer}`),
      );
      grpc.addUnary('test.Echo', 'later', (_request, call) => {
        return new Promise((answer) => {
          waiting.push({ call, answer });
        });
      });
    },
    ready,
  );
  const client = new RawGrpcClient(server.port);
  closers.push(
    () => server.server.stop(),
    () => client.close(),
  );
  return { ...server, grpc: server.grpc!, client, waiting };
}

/** Collects all responses of a stream, and its end. */
function collect(stream: ReturnType<RawGrpcClient['stream']>): {
  answers: string[];
  ended: Promise<{ code: number; details: string }>;
} {
  const answers: string[] = [];
  stream.on('data', (answer: Buffer) => answers.push(answer.toString()));
  const ended = new Promise<{ code: number; details: string }>((resolve) => {
    stream.on('status', resolve);
  });
  return { answers, ended };
}

test('gRPC, HTTP and baidu_std share the port', async () => {
  const { client, port, address, grpc } = await start();
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, bytes('rpc')));
  const [answer, text] = await Promise.all([
    client.call('/test.Echo/echo', bytes('over gRPC')),
    fetch(`http://${address}/hello`).then((response) => response.text()),
  ]);
  assert.equal(answer.bytes.toString(), 'over gRPC');
  assert.equal(text, 'hello');
  assert.equal((await connection.receive(1))[0]?.payload, 'rpc');
  connection.socket.destroy();
  const large = Buffer.alloc(3 << 20, 'x');
  assert.ok((await client.call('/test.Echo/echo', large)).bytes.equals(large));
  assert.equal((await client.call('/test.Echo/echo', new Uint8Array(0))).code, 0);
  assert.equal(grpc.routes[0]?.requests, 3);
  await waitUntil(() => grpc.callsInFlight === 0 && grpc.unsentBytes === 0);
});

test('errors have a gRPC status and their own code in a trailer', async () => {
  const { client, grpc } = await start();
  const text = `${'x'.repeat(1023)}😀 and more`;
  const absent = await client.call('/test.Echo/fails', Buffer.from(text));
  assert.equal(absent.code, 9);
  assert.equal(absent.cubeCode, 'VERSION_ABSENT');
  assert.ok(absent.details.startsWith('x'.repeat(1023)) && absent.details.length <= 1024);
  const broken = await client.call('/test.Echo/breaks', new Uint8Array(0));
  assert.deepEqual([broken.code, broken.cubeCode], [13, 'INTERNAL']);
  assert.equal((await client.call('/test.Echo/nothing', new Uint8Array(0))).code, 12);
  assert.equal((await client.call('/test.Nobody/echo', new Uint8Array(0))).code, 12);
  const tooLarge = await client.call('/test.Echo/echo', new Uint8Array((4 << 20) + 1));
  assert.equal(tooLarge.code, 8);
  assert.equal((await client.call('/test.Echo/echo', bytes('still here'))).code, 0);
  assert.equal(
    grpc.routes.find(({ method }) => method === 'fails')?.errors.get('VERSION_ABSENT'),
    1,
  );
  await waitUntil(() => grpc.callsInFlight === 0);
});

test('a stream answers each message in order; an error ends it', async () => {
  const { client, grpc } = await start();
  const stream = client.stream('/test.Echo/stream');
  const { answers, ended } = collect(stream);
  const texts = Array.from({ length: 200 }, (_, i) => `message ${i}`);
  for (const text of texts) stream.write(Buffer.from(text));
  stream.end();
  assert.equal((await ended).code, 0);
  assert.deepEqual(answers, texts);
  const failing = client.stream('/test.Echo/stream');
  const outcome = collect(failing);
  for (const text of ['good', 'bad', 'never']) failing.write(Buffer.from(text));
  const status = await outcome.ended;
  assert.deepEqual([status.code, status.details], [9, 'not here']);
  assert.deepEqual(outcome.answers, ['good']);
  await waitUntil(() => grpc.callsInFlight === 0 && grpc.unsentBytes === 0);
});

test('messages of a stream share one signal, which aborts when it is cancelled', async (t) => {
  const warnings: Error[] = [];
  const onWarning = (warning: Error): unknown => warnings.push(warning);
  process.on('warning', onWarning);
  t.after(() => process.off('warning', onWarning));
  const { client } = await start();
  const stream = client.stream('/test.Echo/signals');
  let answers = 0;
  stream.on('data', () => {
    answers++;
  });
  for (let i = 0; i < 50; i++) stream.write(Buffer.from('x'));
  await waitUntil(() => answers === 50);
  const [signal, ...others] = signals;
  assert.deepEqual(others, []);
  assert.equal(signal?.aborted, false);
  stream.cancel();
  await waitUntil(() => signal?.aborted === true);
  // Node warns of more than ten listeners on one event.
  assert.deepEqual(warnings, []);
});

test('a stream whose responses are not read is not read further', async () => {
  const { grpc, port } = await start({ outputHighWaterBytes: 1 << 20 });
  const amplify = grpc.routes.find(({ method }) => method === 'amplify')!;
  const session = connectHttp2(`http://127.0.0.1:${port}`);
  const stream = session.request({
    ':method': 'POST',
    ':path': '/test.Echo/amplify',
    te: 'trailers',
    'content-type': 'application/grpc',
  });
  stream.end(Buffer.alloc(200 * 5));
  await waitUntil(() => grpc.unsentBytes > 1 << 20);
  await sleep(100);
  assert.ok(grpc.unsentBytes < 8 << 20, `${grpc.unsentBytes} bytes wait`);
  assert.ok(amplify.requests < 8, `${amplify.requests} messages were answered`);
  let byteCount = 0;
  for await (const part of stream) byteCount += (part as Buffer).length;
  assert.equal(byteCount, 200 * ((1 << 20) + 5));
  await waitUntil(() => grpc.unsentBytes === 0);
  session.close();
});

test('a response that is never read ends its connection, the others continue', async () => {
  const { client, grpc, port } = await start({ slowReaderMs: 200, slowReaderBytes: 8 << 20 });
  const session = connectHttp2(`http://127.0.0.1:${port}`, { settings: { initialWindowSize: 10 } });
  session.on('error', () => undefined);
  const closed = new Promise((resolve) => session.once('close', resolve));
  const stream = session.request({
    ':method': 'POST',
    ':path': '/test.Echo/large',
    te: 'trailers',
    'content-type': 'application/grpc',
  });
  stream.on('error', () => undefined);
  stream.end(Buffer.alloc(5));
  await waitUntil(() => grpc.unsentBytes === 8 << 20);
  await closed;
  assert.equal(grpc.slowReaders, 1);
  await waitUntil(() => grpc.unsentBytes === 0 && grpc.callsInFlight === 0);
  assert.equal((await client.call('/test.Echo/echo', bytes('x'))).code, 0);
});

test('the deadline travels: an expired call ends, and its handler sees it', async () => {
  const { client, grpc, waiting } = await start();
  // A request that expires before it arrives is sent again with a longer timeout.
  for (let timeoutMs = 100; waiting.length === 0; timeoutMs *= 2) {
    const expired = await client.call('/test.Echo/later', bytes('x'), timeoutMs);
    assert.equal(expired.code, 4);
  }
  const listOpen = () => waiting.filter(({ call }) => !call.isAbandoned);
  await waitUntil(() => listOpen().length === 0);
  for (const { answer } of waiting) answer(bytes('too late'));
  const call = client.call('/test.Echo/later', bytes('x'));
  await waitUntil(() => listOpen().length === 1);
  listOpen()[0]!.answer(bytes('in time'));
  assert.equal((await call).bytes.toString(), 'in time');
  await waitUntil(() => grpc.callsInFlight === 0 && grpc.unsentBytes === 0);
});

test('a caller that disconnects leaks nothing', async () => {
  const { grpc, waiting, port } = await start();
  const client = new RawGrpcClient(port);
  const lost = client.call('/test.Echo/later', bytes('x'));
  const stream = client.stream('/test.Echo/stream');
  stream.write(Buffer.from('one'));
  await waitUntil(() => waiting.length === 1 && grpc.callsInFlight === 2);
  stream.cancel();
  client.client.getChannel().close();
  client.close();
  const session = connectHttp2(`http://127.0.0.1:${port}`);
  const half = session.request({
    ':method': 'POST',
    ':path': '/test.Echo/stream',
    te: 'trailers',
    'content-type': 'application/grpc',
  });
  half.on('error', () => undefined);
  half.write(Buffer.from('00000000ff0102', 'hex'));
  await sleep(50);
  session.destroy();
  waiting[0]!.answer(bytes('to nobody'));
  await lost;
  await waitUntil(() => grpc.callsInFlight === 0 && grpc.unsentBytes === 0);
});

test('calls above the limit are rejected, and accepted again later', async () => {
  const { client, grpc, waiting } = await start({ grpcInFlight: 2 });
  const calls = [1, 2].map(() => client.call('/test.Echo/later', bytes('x')));
  await waitUntil(() => waiting.length === 2);
  const refused = await client.call('/test.Echo/echo', bytes('x'));
  assert.deepEqual([refused.code, refused.cubeCode], [8, 'OVERLOADED']);
  for (const { answer } of waiting) answer(bytes('ok'));
  await Promise.all(calls);
  await waitUntil(() => grpc.callsInFlight === 0);
  assert.equal((await client.call('/test.Echo/echo', bytes('x'))).code, 0);
});

test('calls that wait for a message make room for other callers', async () => {
  const { client, port, grpc, waiting } = await start({ grpcInFlight: 3 });
  const busy = client.call('/test.Echo/later', bytes('x'));
  await waitUntil(() => waiting.length === 1);
  const session = connectHttp2(`http://127.0.0.1:${port}`);
  for (const path of ['/test.Echo/stream', '/test.Echo/echo']) {
    const call = session.request({
      ':method': 'POST',
      ':path': path,
      te: 'trailers',
      'content-type': 'application/grpc',
    });
    call.on('error', () => undefined);
    call.resume();
  }
  await waitUntil(() => grpc.callsInFlight === 3);
  assert.equal((await client.call('/test.Echo/echo', bytes('x'))).code, 8, 'they are young');
  await waitUntil(async () => (await client.call('/test.Echo/echo', bytes('x'))).code === 0);
  assert.equal(grpc.callsInFlight, 2, 'one of them has ended');
  waiting[0]?.answer(bytes('ok'));
  assert.equal((await busy).code, 0, 'the call that is handled has not');
  session.destroy();
});

test('the bytes of unanswered messages are limited', async () => {
  const { client, grpc, waiting } = await start({ inputTotalBytes: 1_000_000 });
  const first = client.call('/test.Echo/later', new Uint8Array(700_000));
  await waitUntil(() => waiting.length === 1);
  const refused = await client.call('/test.Echo/later', new Uint8Array(700_000));
  assert.equal(refused.cubeCode, 'OVERLOADED');
  waiting[0]!.answer(bytes('ok'));
  assert.equal((await first).code, 0);
  await waitUntil(() => grpc.callsInFlight === 0);
  const later = await client.call('/test.Echo/echo', new Uint8Array(700_000));
  assert.equal(later.code, 0);
});

test('metadata and peer address of a call reach the handler', async () => {
  const { port } = await start();
  const session = connectHttp2(`http://127.0.0.1:${port}`);
  const stream = session.request({
    ':method': 'POST',
    ':path': '/test.Echo/asks',
    te: 'trailers',
    'content-type': 'application/grpc',
    'log-id': '42',
  });
  stream.end(Buffer.alloc(5));
  const parts: Buffer[] = [];
  for await (const part of stream) parts.push(part);
  assert.match(Buffer.concat(parts).subarray(5).toString(), /^42 127\.0\.0\.1:\d+$/);
  session.close();
});

test('health reflects readiness, for the server and each service', async () => {
  let ready = false;
  const { port } = await start({}, () => ready);
  assert.equal(await checkGrpcHealth(port, ''), 'NOT_SERVING');
  ready = true;
  assert.equal(await checkGrpcHealth(port, ''), 'SERVING');
  assert.equal(await checkGrpcHealth(port, 'test.Echo'), 'SERVING');
  assert.equal(await checkGrpcHealth(port, 'test.Nobody'), 5);
});

test('reflection lists the services and returns their files, in both versions', async () => {
  const { port } = await start();
  for (const version of ['v1', 'v1alpha']) {
    const files = await callReflection(port, version, {
      fileContainingSymbol: 'hypercube.LookupService',
    });
    const [file] = files.fileDescriptorResponse?.fileDescriptorProto ?? [];
    assert.ok(file?.includes('LookupRequest'));
    const list = await callReflection(port, version, { listServices: '*' });
    const names = list.listServicesResponse?.service.map(({ name }) => name);
    assert.deepEqual(names, ['grpc.health.v1.Health']);
  }
});

test('stopping answers calls in flight, ends streams, then closes', async () => {
  const { client, server, waiting, port } = await start();
  const pending = client.call('/test.Echo/later', bytes('x'));
  const stream = client.stream('/test.Echo/stream');
  const { ended, answers } = collect(stream);
  stream.write(Buffer.from('one'));
  await waitUntil(() => waiting.length === 1 && answers.length === 1);
  const stopped = server.stop();
  assert.equal((await ended).code, 14);
  await sleep(300);
  waiting[0]!.answer(bytes('still answered'));
  assert.equal((await pending).bytes.toString(), 'still answered');
  await stopped;
  const late = new RawGrpcClient(port);
  assert.equal((await late.call('/test.Echo/echo', bytes('x'), 500)).code, 14);
  late.close();
});

test('stopping has a time limit', async () => {
  const { client, server, waiting, grpc } = await start({ drainMs: 100 });
  const pending = client.call('/test.Echo/later', bytes('x'));
  await waitUntil(() => waiting.length === 1);
  await server.stop();
  assert.equal((await pending).code, 14);
  waiting[0]!.answer(bytes('to nobody'));
  await waitUntil(() => grpc.callsInFlight === 0);
});

test('an HTTP/2 preface followed by garbage affects no other connection', async () => {
  const { client, port, server } = await start({ grpcPingMs: 500 });
  for (const garbage of [
    '',
    'XX\r\n\r\n',
    '\xff'.repeat(5000),
    '\0\0\x04\x04\0\0\0\0\0'.repeat(9),
  ]) {
    const connection = new RawConnection(port);
    connection.socket.removeAllListeners('data').resume();
    connection.send(bytes(`PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n${garbage}`));
    await sleep(20);
    connection.socket.destroy();
  }
  assert.equal((await client.call('/test.Echo/echo', bytes('unharmed'))).code, 0);
  await waitUntil(() => server.connections === 1);
});
