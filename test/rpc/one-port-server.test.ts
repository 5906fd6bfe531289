import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { connect } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import type { DeferredResponse } from '../../lib/rpc/deferred-response.ts';
import type { RpcHandler } from '../../lib/rpc/rpc-routes.ts';
import {
  type EchoServer,
  encodeRequestFrame,
  RawConnection,
  startEchoServer,
  waitUntil,
} from './support/echo-server.ts';

const bytes = (text: string): Uint8Array => Buffer.from(text, 'latin1');
const servers: EchoServer[] = [];
after(() => Promise.all(servers.map(({ server }) => server.stop())));

async function start(...options: Parameters<typeof startEchoServer>): Promise<EchoServer> {
  const server = await startEchoServer(...options);
  servers.push(server);
  return server;
}

test('pipelined calls of one write are answered in one stream', async () => {
  const { port } = await start();
  const connection = new RawConnection(port);
  const frames = Array.from({ length: 100 }, (_, i) =>
    encodeRequestFrame(i + 1, bytes(`payload ${i}`), { attachment: bytes(`attachment ${i}`) }),
  );
  connection.send(Buffer.concat(frames));
  const answers = await connection.receive(100);
  answers.forEach((answer, i) => {
    assert.equal(answer.correlation, i + 1);
    assert.equal(answer.payload, `payload ${i}`);
    assert.equal(answer.attachment, `attachment ${i}`);
  });
  connection.socket.destroy();
});

test('a call that arrives byte by byte is answered', async () => {
  const { port } = await start();
  const connection = new RawConnection(port);
  for (const byte of encodeRequestFrame(5, bytes('slowly'))) {
    connection.send(Uint8Array.of(byte));
    await new Promise(setImmediate);
  }
  assert.equal((await connection.receive(1))[0]?.payload, 'slowly');
  connection.socket.destroy();
});

test('HTTP and baidu_std share the port', async () => {
  const { port, address } = await start();
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, bytes('rpc')));
  const response = await fetch(`http://${address}/hello`);
  assert.equal(await response.text(), 'hello');
  assert.equal((await connection.receive(1))[0]?.payload, 'rpc');
  const posted = await fetch(`http://${address}/echo`, { method: 'POST', body: 'raw bytes' });
  assert.equal(await posted.text(), 'raw bytes');
  const lost = await fetch(`http://${address}/nowhere`);
  assert.equal(lost.status, 404);
  assert.equal(lost.headers.get('x-bd-error-code'), '1002');
  connection.socket.destroy();
});

test('an HTTP request may arrive in pieces smaller than the magic', async () => {
  const { port } = await start();
  const socket = connect(port, '127.0.0.1');
  for (const piece of [
    'P',
    'OS',
    'T /echo HTTP/1.1\r\nhost: x\r\nconnection: close\r\n',
    'content-length: 2\r\n\r\nok',
  ]) {
    socket.write(piece);
    await sleep(20);
  }
  let text = '';
  for await (const chunk of socket) text += chunk;
  assert.match(text, /^HTTP\/1\.1 200 [\s\S]*ok$/);
});

test("unknown services and methods get brpc's errors; the connection continues", async () => {
  const { port } = await start();
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, bytes(''), { method: 'echoo' }));
  connection.send(encodeRequestFrame(2, bytes(''), { service: 'test.Nobody' }));
  connection.send(encodeRequestFrame(3, bytes('still here'), { service: 'Echo' }));
  const [first, second, third] = await connection.receive(3);
  assert.equal(first?.errorCode, 1002);
  assert.equal(first?.errorText, `[127.0.0.1:${port}][E1002]Fail to find method=test.Echo/echoo`);
  assert.equal(second?.errorCode, 1002);
  assert.equal(third?.payload, 'still here');
  connection.socket.destroy();
});

test('a handler that throws after writing sends only the error', async () => {
  const { port, routes } = await start(
    {},
    {
      fails: (_frame, response) => {
        response.begin(100);
        response.output.append(bytes('half an answer'));
        throw new CubeError('VERSION_ABSENT', 'no such version');
      },
    },
  );
  const connection = new RawConnection(port);
  connection.send(
    Buffer.concat([
      encodeRequestFrame(1, bytes(''), { method: 'fails' }),
      encodeRequestFrame(2, bytes('next')),
    ]),
  );
  const [failed, next] = await connection.receive(2);
  assert.equal(failed?.errorCode, 3003);
  assert.match(failed?.errorText ?? '', /no such version$/);
  assert.equal(failed?.payload, '');
  assert.equal(next?.payload, 'next');
  assert.equal(routes.findRoute('test.Echo', 'fails')?.errors.get('VERSION_ABSENT'), 1);
  connection.socket.destroy();
});

test('bytes of no protocol get an error and end only their connection', async () => {
  const { port, server } = await start();
  const bystander = new RawConnection(port);
  const hostile: [string, RegExp][] = [
    ['PRPC\x05\xf5\xe1\x00\x00\x00\x00\x10', /100000000 bytes is over the limit/],
    ['PRPC\x00\x00\x00\x01\x00\x00\x00\x02', /longer than the body/],
    ['PRPC\x00\x00\x00\x03\x00\x00\x00\x03\x0a\x7f\x00', /protobuf/],
  ];
  for (const [text, message] of hostile) {
    const connection = new RawConnection(port);
    connection.send(bytes(text));
    const [answer] = await connection.receive(1);
    assert.equal(answer?.errorCode, 1003);
    assert.match(answer?.errorText ?? '', message);
    await connection.closed;
  }
  const wrong = new RawConnection(port);
  wrong.send(Buffer.concat([encodeRequestFrame(1, bytes('fine')), bytes('garbage garbage')]));
  const answers = await wrong.receive(2);
  assert.equal(answers[0]?.payload, 'fine');
  assert.match(answers[1]?.errorText ?? '', /must begin with "PRPC"/);
  await wrong.closed;
  bystander.send(encodeRequestFrame(1, bytes('unharmed')));
  assert.equal((await bystander.receive(1))[0]?.payload, 'unharmed');
  bystander.socket.destroy();
  assert.equal(server.baidu.brokenConnections, 4);
});

test('the error reaches a peer that is still sending an oversized frame', async () => {
  const { port } = await start({ frameBytes: 1000 });
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, new Uint8Array(3_000_000)));
  const [answer] = await connection.receive(1);
  assert.match(answer?.errorText ?? '', /over the limit of 1000/);
  await connection.closed;
});

test('an HTTP/2 preface is closed and counted', async () => {
  const { port, server } = await start();
  const connection = new RawConnection(port);
  connection.send(bytes('PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n'));
  await connection.closed;
  assert.equal(server.http2Refused, 1);
});

test('a connection without a complete magic is closed after a timeout', async () => {
  const { port } = await start({ sniffMs: 100 });
  const silent = new RawConnection(port);
  const half = new RawConnection(port);
  half.send(bytes('PR'));
  await Promise.all([silent.closed, half.closed]);
});

test('an idle connection is closed, a used one is not', async () => {
  const { port } = await start({ idleMs: 1000 });
  const idle = new RawConnection(port);
  const used = new RawConnection(port);
  idle.send(encodeRequestFrame(1, bytes('once')));
  let open = true;
  idle.closed.then(() => {
    open = false;
  });
  for (let i = 1; open; i++) {
    used.send(encodeRequestFrame(i, bytes('again')));
    await used.receive(i);
    await sleep(20);
  }
  assert.equal(used.socket.destroyed, false);
  used.socket.destroy();
});

test('connections stay open while TCP finds their peers alive', async () => {
  assert.equal(DEFAULT_SERVER_LIMITS.idleMs, 0);
  const { port } = await start();
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, bytes('a')));
  await connection.receive(1);
  const { localPort = 0 } = connection.socket;
  if (process.platform === 'linux') {
    const hex = (number: number): string => number.toString(16).padStart(4, '0').toUpperCase();
    const [, timer] =
      new RegExp(`:${hex(port)} \\S+:${hex(localPort)} 01 \\S+ (\\d\\d):`).exec(
        readFileSync('/proc/net/tcp', 'utf8'),
      ) ?? [];
    assert.equal(timer, '02', 'the timer of keep-alive probes runs');
  }
  connection.socket.destroy();
});

test('at the limit the longest idle connection makes room, busy ones never', async () => {
  const deferred: DeferredResponse[] = [];
  const later: RpcHandler = (_frame, response) => void deferred.push(response.defer());
  const { port, server } = await start({ connections: 2 }, { later });
  const first = new RawConnection(port);
  const second = new RawConnection(port);
  for (const connection of [first, second]) {
    connection.send(encodeRequestFrame(1, bytes('a'), { method: 'later' }));
  }
  await waitUntil(() => deferred.length === 2);
  const refused = new RawConnection(port);
  await refused.closed;
  assert.deepEqual([server.connectionsRefused, server.connectionsEvicted], [1, 0]);
  deferred[1]?.begin(0);
  deferred[1]?.finish();
  await second.receive(1);
  let accepted: RawConnection | undefined;
  // The answer is recent at first.
  while (accepted === undefined) {
    const attempt = new RawConnection(port);
    attempt.send(encodeRequestFrame(2, bytes('b')));
    if ((await attempt.receive(1)).length === 1) accepted = attempt;
  }
  await second.closed;
  assert.equal(server.connectionsEvicted, 1);
  deferred[0]?.begin(0);
  deferred[0]?.finish();
  assert.equal((await first.receive(1))[0]?.correlation, 1);
  for (const { socket } of [first, accepted]) socket.destroy();
});

/** Answers a small request with a large payload, to build up unread output. */
const large = 256 << 10;
const amplify: Record<string, RpcHandler> = {
  amplify: (_frame, response) => {
    response.begin(0);
    response.output.append(new Uint8Array(large));
  },
};

test('a slow reader uses bounded memory, and is served when it reads', async () => {
  const { port, server } = await start({ outputHighWaterBytes: 1 << 20 }, amplify);
  const connection = new RawConnection(port);
  connection.socket.pause();
  const calls = 1000; // would be 256 MB of answers
  for (let i = 1; i <= calls; i++)
    connection.send(encodeRequestFrame(i, bytes(''), { method: 'amplify' }));
  await waitUntil(() => server.baidu.unsentBytes > 1 << 20);
  let most = 0;
  for (let i = 0; i < 20; i++) {
    most = Math.max(most, server.baidu.unsentBytes);
    await sleep(10);
  }
  assert.ok(most < 4 << 20, `${most} bytes are held for one connection`);
  connection.socket.resume();
  const answers = await connection.receive(calls);
  assert.equal(answers.length, calls);
  assert.ok(
    answers.every((answer, i) => answer.correlation === i + 1 && answer.payload.length === large),
  );
  await waitUntil(() => server.baidu.unsentBytes === 0);
  connection.socket.destroy();
});

test('a reader that never reads is closed', async () => {
  const limits = { outputHighWaterBytes: 1 << 16, slowReaderMs: 200 };
  const { port, server } = await start(limits, amplify);
  const connection = new RawConnection(port);
  connection.socket.pause();
  for (let i = 1; i <= 200; i++)
    connection.send(encodeRequestFrame(i, bytes(''), { method: 'amplify' }));
  await waitUntil(() => server.slowReaders === 1);
  await waitUntil(() => server.baidu.unsentBytes === 0 && server.connections === 0);
  connection.socket.destroy();
});

test('over HTTP, a reader that never reads is closed, a slow one is not', async () => {
  const { port, server, address } = await start({ slowReaderMs: 200 });
  const never = connect(port, '127.0.0.1');
  never.on('error', () => undefined).pause();
  never.write('GET /large HTTP/1.1\r\nhost: x\r\n\r\n');
  await waitUntil(() => server.connections === 1);
  await waitUntil(() => server.connections === 0);
  never.destroy();
  const response = await fetch(`http://${address}/slow`);
  assert.equal(await response.text(), 'slow');
  await sleep(300);
  assert.equal(await (await fetch(`http://${address}/hello`)).text(), 'hello');
});

test('when too many responses are unread, new calls get OVERLOADED', async () => {
  const huge: RpcHandler = (_frame, response) => {
    response.begin(0);
    response.output.append(new Uint8Array(32 << 20));
  };
  const { port, server } = await start({ outputTotalBytes: 1 << 20 }, { huge });
  const slow = new RawConnection(port);
  slow.socket.pause();
  slow.send(encodeRequestFrame(1, bytes(''), { method: 'huge' }));
  await waitUntil(() => server.baidu.unsentBytes > 1 << 20);
  const other = new RawConnection(port);
  other.send(encodeRequestFrame(1, bytes('now')));
  assert.equal((await other.receive(1))[0]?.errorCode, 2004);
  slow.socket.resume();
  assert.equal((await slow.receive(1))[0]?.payload.length, 32 << 20);
  await waitUntil(() => server.baidu.unsentBytes === 0);
  other.send(encodeRequestFrame(2, bytes('later')));
  assert.equal((await other.receive(2))[1]?.payload, 'later');
  for (const { socket } of [slow, other]) socket.destroy();
});

test('the unfinished frames of all connections together are limited', async () => {
  const { port, server } = await start({ inputTotalBytes: 100_000 });
  const frame = encodeRequestFrame(1, new Uint8Array(200_000));
  const first = new RawConnection(port);
  first.send(frame.subarray(0, 60_000));
  await waitUntil(() => server.baidu.unfinishedFrameBytes === 60_000);
  const second = new RawConnection(port);
  second.send(frame.subarray(0, 60_000));
  assert.equal((await second.receive(1))[0]?.errorCode, 2004);
  await second.closed;
  assert.equal(server.baidu.unfinishedFrameBytes, 60_000);
  first.socket.destroy();
  await waitUntil(() => server.baidu.unfinishedFrameBytes === 0);
});

test('stopping refuses connections, answers calls in flight, then ends', async () => {
  const { server, http, port, address, releaseHeldRequests } = await startEchoServer();
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, bytes('before')));
  await connection.receive(1);
  const held = fetch(`http://${address}/held`);
  await waitUntil(() => http.requestsInFlight === 1);
  connection.send(encodeRequestFrame(2, bytes('in flight')));
  const stopped = server.stop();
  assert.equal((await connection.receive(2))[1]?.payload, 'in flight');
  await assert.rejects(fetch(`http://${address}/hello`));
  await waitUntil(() => server.baidu.isStopping);
  connection.send(encodeRequestFrame(3, bytes('late')));
  assert.equal((await connection.receive(3))[2]?.errorCode, 2003);
  releaseHeldRequests();
  assert.equal(await (await held).text(), 'held');
  await stopped;
  await connection.closed;
  await waitUntil(() => server.connections === 0);
});

test('listening on a port in use fails with a clear error', async () => {
  const { port } = await start();
  await assert.rejects(startEchoServer({}, {}, port), (error: CubeError) => {
    assert.equal(error.code, 'IO');
    assert.match(
      error.message,
      /cannot listen on 127\.0\.0\.1:\d+: it is in use by another process/,
    );
    return true;
  });
});

test('HTTP bodies and requests in flight are limited', async () => {
  const { address, http, releaseHeldRequests } = await start({
    httpBodyBytes: 1000,
    httpInFlight: 2,
  });
  const body = 'x'.repeat(1001);
  const refused = await fetch(`http://${address}/echo`, { method: 'POST', body });
  assert.equal(refused.status, 413);
  assert.equal(((await refused.json()) as { code: string }).code, 'TOO_LARGE');
  const ask = (): Promise<number> => fetch(`http://${address}/held`).then(({ status }) => status);
  const held = [ask(), ask()];
  await waitUntil(() => http.requestsInFlight === 2);
  assert.deepEqual(await Promise.all([ask(), ask()]), [429, 429]);
  releaseHeldRequests();
  assert.deepEqual(await Promise.all(held), [200, 200]);
  assert.equal((await fetch(`http://${address}/hello`)).status, 200);
});
