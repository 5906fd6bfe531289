import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
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

interface Later extends EchoServer {
  /** Deferred calls to be answered by the test, by their text. */
  readonly waiting: Map<string, DeferredResponse>;
}

async function start(limits: Parameters<typeof startEchoServer>[0] = {}): Promise<Later> {
  const waiting = new Map<string, DeferredResponse>();
  const later: RpcHandler = (frame, response) => {
    const text = Buffer.from(frame.bytes.slice(frame.payloadStart, frame.payloadEnd)).toString();
    const deferred = response.defer();
    if (text === 'throws') throw new CubeError('NOT_FOUND', 'thrown after defer()');
    waiting.set(text, deferred);
  };
  const server = await startEchoServer(limits, { later });
  servers.push(server);
  return { ...server, waiting };
}

const call = (correlation: number, text: string): Uint8Array =>
  encodeRequestFrame(correlation, bytes(text), { method: 'later' });

function answer(deferred: DeferredResponse | undefined, payload: string, attachment = ''): void {
  assert.ok(deferred);
  deferred.begin(attachment.length);
  deferred.output.append(bytes(payload));
  deferred.output.append(bytes(attachment));
  deferred.finish();
}

test('deferred responses may be overtaken by others and by immediate ones', async () => {
  const { port, waiting, server } = await start();
  const connection = new RawConnection(port);
  const frames = [
    call(1, 'a'),
    call(2, 'b'),
    encodeRequestFrame(3, bytes('at once')),
    call(4, 'c'),
  ];
  connection.send(Buffer.concat(frames));
  await connection.receive(1);
  await waitUntil(() => waiting.size === 3);
  assert.equal(server.baidu.callsInFlight, 3);
  answer(waiting.get('c'), 'third', 'with attachment');
  await connection.receive(2);
  answer(waiting.get('a'), 'first');
  waiting.get('b')?.fail(new CubeError('CORRUPT', 'a bad block'));
  const answers = await connection.receive(4);
  assert.deepEqual(
    answers.map(({ correlation, payload, errorCode }) => [correlation, payload, errorCode]),
    [
      [3, 'at once', 0],
      [4, 'third', 0],
      [1, 'first', 0],
      [2, '', 3006],
    ],
  );
  assert.equal(answers[1]?.attachment, 'with attachment');
  assert.match(answers[3]?.errorText ?? '', /\[E3006\]a bad block$/);
  assert.equal(server.baidu.callsInFlight, 0);
  assert.equal(server.baidu.unsentBytes, 0);
  connection.socket.destroy();
});

test('finishing a call twice, or writing after it, has no effect', async () => {
  const { port, waiting, server } = await start();
  const connection = new RawConnection(port);
  connection.send(call(1, 'a'));
  await waitUntil(() => waiting.size === 1);
  const deferred = waiting.get('a')!;
  answer(deferred, 'once');
  assert.equal(deferred.isAbandoned, true);
  deferred.output.append(bytes('too late'));
  deferred.finish();
  deferred.fail(new Error('too late'));
  connection.send(encodeRequestFrame(2, bytes('next')));
  const answers = await connection.receive(2);
  assert.deepEqual(
    answers.map(({ payload }) => payload),
    ['once', 'next'],
  );
  assert.equal(server.baidu.callsInFlight, 0);
  connection.socket.destroy();
});

test('a handler that throws after deferring sends the error', async () => {
  const { port, server, routes } = await start();
  const connection = new RawConnection(port);
  connection.send(call(1, 'throws'));
  assert.match((await connection.receive(1))[0]?.errorText ?? '', /thrown after defer/);
  assert.equal(server.baidu.callsInFlight, 0);
  assert.equal(routes.findRoute('test.Echo', 'later')?.errors.get('NOT_FOUND'), 1);
  connection.socket.destroy();
});

test('a deferred call is abandoned when its connection closes; nothing leaks', async () => {
  const { port, waiting, server } = await start();
  for (const end of ['destroy', 'end'] as const) {
    const connection = new RawConnection(port);
    connection.send(call(1, end));
    await waitUntil(() => waiting.has(end));
    const deferred = waiting.get(end)!;
    assert.equal(deferred.isAbandoned, false);
    deferred.begin(5_000_000);
    assert.equal(server.baidu.unsentBytes, 5_000_000);
    connection.socket[end]();
    await waitUntil(() => deferred.isAbandoned);
    deferred.output.append(new Uint8Array(5_000_000));
    deferred.finish();
    await waitUntil(() => server.baidu.unsentBytes === 0 && server.connections === 0);
    assert.equal(server.baidu.callsInFlight, 0);
  }
});

test('calls above the limit of calls in flight are rejected', async () => {
  const { port, waiting, server } = await start({ callsInFlight: 2 });
  const connection = new RawConnection(port);
  connection.send(Buffer.concat([call(1, 'a'), call(2, 'b'), call(3, 'c')]));
  const [refused] = await connection.receive(1);
  assert.equal(refused?.correlation, 3);
  assert.equal(refused?.errorCode, 2004);
  answer(waiting.get('a'), 'one');
  connection.send(call(4, 'd'));
  await waitUntil(() => waiting.has('d'));
  for (const text of ['b', 'd']) answer(waiting.get(text), text);
  assert.equal((await connection.receive(4)).length, 4);
  assert.equal(server.baidu.callsInFlight, 0);
  connection.socket.destroy();
});

test("a deferred call is abandoned after the caller's timeout", async () => {
  const { port, waiting } = await start();
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, bytes('soon'), { method: 'later', timeoutMs: 1000 }));
  await waitUntil(() => waiting.has('soon'));
  const deferred = waiting.get('soon')!;
  assert.equal(deferred.isAbandoned, false);
  await waitUntil(() => deferred.isAbandoned);
  deferred.fail(new CubeError('DEADLINE_EXCEEDED', 'given up'));
  assert.equal((await connection.receive(1))[0]?.errorCode, 1008);
  connection.socket.destroy();
});

test('an idle connection with a call in flight is not closed', async () => {
  const { port, waiting } = await start({ idleMs: 100 });
  const connection = new RawConnection(port);
  connection.send(call(1, 'slow'));
  await sleep(400);
  answer(waiting.get('slow'), 'done');
  assert.equal((await connection.receive(1))[0]?.payload, 'done');
  connection.socket.destroy();
});

test('stopping waits for deferred responses, up to a time limit', async () => {
  const first = await start();
  const connection = new RawConnection(first.port);
  connection.send(call(1, 'slow'));
  await waitUntil(() => first.waiting.size === 1);
  const stopped = first.server.stop();
  await sleep(600);
  answer(first.waiting.get('slow'), 'still answered');
  assert.equal((await connection.receive(1))[0]?.payload, 'still answered');
  await stopped;

  const second = await start({ drainMs: 100 });
  const other = new RawConnection(second.port);
  other.send(call(1, 'never'));
  await waitUntil(() => second.waiting.size === 1);
  await second.server.stop();
  await other.closed;
  answer(second.waiting.get('never'), 'to nobody');
  assert.equal(second.server.baidu.callsInFlight, 0);
  assert.equal(second.server.baidu.unsentBytes, 0);
});
