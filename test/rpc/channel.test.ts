import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, createServer, type Server, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { Worker } from 'node:worker_threads';
import { CubeError, ERROR_STATUS, type ErrorCode } from '../../lib/core/errors.ts';
import type { ChannelLimits } from '../../lib/core/limits.ts';
import { Channel } from '../../lib/rpc/channel.ts';
import { beginResponse, FrameDecoder, finishFrame } from '../../proto/baidu-std.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { startEchoServer } from './support/echo-server.ts';

const NO_BYTES = new Uint8Array(0);
const closers: (() => unknown)[] = [];
after(() => Promise.all(closers.map((close) => close())));

function channelTo(port: number, limits: Partial<ChannelLimits> = {}): Channel {
  const channel = new Channel(`127.0.0.1:${port}`, limits);
  closers.push(() => channel.close());
  return channel;
}

/** A server whose connections the test handles. */
async function listen(
  accept: (socket: Socket) => void,
  port = 0,
): Promise<{ server: Server; port: number; sockets: Socket[] }> {
  const sockets: Socket[] = [];
  const server = createServer((socket) => {
    sockets.push(socket);
    socket.on('error', () => undefined);
    accept(socket);
  });
  await new Promise<void>((resolve) => server.listen(port, '127.0.0.1', resolve));
  closers.push(() => {
    for (const socket of sockets) socket.destroy();
    server.close();
  });
  return { server, sockets, port: (server.address() as { port: number }).port };
}

async function echo(channel: Channel, text: string, timeoutMs = 5000): Promise<string> {
  const payload = Buffer.from(text);
  const result = await channel.call('test.Echo', 'echo', payload, NO_BYTES, timeoutMs);
  return Buffer.from(result.payload).toString();
}

function failsWith(code: string, message = /./): (error: unknown) => boolean {
  return (error) => {
    assert.ok(error instanceof CubeError, String(error));
    assert.equal(error.code, code, error.message);
    assert.match(error.message, message);
    return true;
  };
}

test('many calls share one connection, and each gets its own response', async () => {
  const { server, port } = await startEchoServer();
  const channel = channelTo(port);
  assert.equal(channel.isConnected, false);
  const texts = Array.from({ length: 500 }, (_, i) => `call ${i} ${'x'.repeat((i * 997) % 5000)}`);
  const answers = await Promise.all(texts.map((text) => echo(channel, text)));
  assert.deepEqual(answers, texts);
  assert.equal(server.connections, 1);
  assert.equal(channel.isConnected, true);
  assert.equal(channel.callsInFlight, 0);
  channel.close();
  await server.stop();
});

test('payload and attachment are returned separately, also large ones', async () => {
  const { server, port } = await startEchoServer();
  const channel = channelTo(port);
  const payload = new Uint8Array(3_000_000).map((_, i) => i);
  const attachment = new Uint8Array(5_000_001).map((_, i) => i * 3);
  const result = await channel.call('test.Echo', 'echo', payload, attachment, 10_000);
  assert.ok(Buffer.from(result.payload).equals(payload));
  assert.ok(Buffer.from(result.attachment).equals(attachment));
  channel.close();
  await server.stop();
});

test('calls may be compressed and have checksums, in both directions', async () => {
  const { server, port } = await startEchoServer();
  const channel = channelTo(port);
  const attachment = Buffer.from('attached');
  for (const compressType of [undefined, 1, 2, 3, 4] as const) {
    for (const checksum of [undefined, 'crc32c', 'xxh64'] as const) {
      for (const text of ['', 'repeat '.repeat(300), 'x'.repeat(3_000_000)]) {
        const compressed = compressType === undefined ? {} : { compressType };
        const options = { ...compressed, ...(checksum === undefined ? {} : { checksum }) };
        const call = channel.call(
          'test.Echo',
          'echo',
          Buffer.from(text),
          attachment,
          5000,
          options,
        );
        const result = await call;
        assert.equal(Buffer.from(result.payload).toString(), text);
        assert.equal(Buffer.from(result.attachment).toString(), 'attached');
      }
    }
  }
  channel.close();
  await server.stop();
});

test('a corrupted response is not returned', async () => {
  const { port } = await listen((socket) => {
    const decoder = new FrameDecoder();
    socket.on('data', (chunk) => {
      decoder.push(chunk);
      while (decoder.next()) {
        const output = new OutputBuffer();
        const metaEnd = beginResponse(output, decoder.frame, 0);
        output.append(Buffer.from('not what the checksum says'));
        finishFrame(output, 0, metaEnd);
        socket.write(output.writtenBytes());
      }
    });
  });
  const call = channelTo(port).call('a', 'b', NO_BYTES, NO_BYTES, 5000, { checksum: 'crc32c' });
  await assert.rejects(call, failsWith('UNAVAILABLE', /the response cannot be decoded: .*crc32c/));
});

test('with checksums, corrupted requests and responses are detected', async () => {
  const { server, port } = await startEchoServer();
  let turn = 'attached';
  /** The fields of the checksum, of which the type becomes 0. */
  let stripped: Buffer | undefined;
  const between = await listen((near) => {
    const far = connect({ port, host: '127.0.0.1' });
    near.on('close', () => far.destroy());
    near.on('data', (chunk) => {
      const at = Buffer.from(chunk).indexOf(turn);
      if (at >= 0) chunk[at] = chunk[at]! ^ 1;
      if (stripped !== undefined) chunk[Buffer.from(chunk).indexOf(stripped) + 1] = 0;
      far.write(chunk);
    });
    far.on('data', (chunk) => near.write(chunk));
  });
  const channel = channelTo(between.port);
  for (const [checksum, fields] of [
    ['crc32c', Buffer.of(0x58, 1, 0x62, 4)],
    ['xxh64', Buffer.of(0x58, 100, 0x62, 8)],
  ] as const) {
    const call = (isChecksumOptional = false): Promise<unknown> => {
      const [payload, attachment] = [Buffer.from('payload'), Buffer.from('attached')];
      const options = { checksum, isChecksumOptional };
      return channel.call('test.Echo', 'echo', payload, attachment, 5000, options);
    };
    const damaged = failsWith('DAMAGED', new RegExp(`the ${checksum} of the message .* not match`));
    turn = 'attached';
    await assert.rejects(call(), damaged);
    turn = 'payload';
    await assert.rejects(call(), damaged);
    turn = 'neither';
    await call();
    stripped = fields;
    await assert.rejects(call(), failsWith('UNAVAILABLE', /the response has no checksum/));
    await call(true);
    stripped = undefined;
  }
  channel.close();
  await server.stop();
});

test('with xxh64, an error that was changed on its way is not believed', async () => {
  const { server, port } = await startEchoServer();
  const between = await listen((near) => {
    const far = connect({ port, host: '127.0.0.1' });
    near.on('close', () => far.destroy());
    near.on('data', (chunk) => far.write(chunk));
    far.on('data', (chunk) => {
      const bytes = Buffer.from(chunk);
      const at = bytes.indexOf('Fail to find');
      if (at >= 0) bytes[at] = 0x66;
      near.write(bytes);
    });
  });
  const channel = channelTo(between.port);
  const call = (options: object): Promise<unknown> =>
    channel.call('test.Echo', 'nothing', NO_BYTES, NO_BYTES, 5000, options);
  const corrupted = failsWith('UNAVAILABLE', /the error response was corrupted in transit/);
  await assert.rejects(call({ checksum: 'xxh64' }), corrupted);
  await assert.rejects(call({}), failsWith('UNSUPPORTED', /fail to find method/));
  channel.close();
  await server.stop();
});

test('error codes that share a brpc number are told apart', async () => {
  const codes = Object.keys(ERROR_STATUS) as ErrorCode[];
  const handlers = codes.map((code) => [
    code,
    () => {
      throw new CubeError(code, `told to say ${code}`);
    },
  ]);
  const { server, port } = await startEchoServer({}, Object.fromEntries(handlers));
  const channel = channelTo(port);
  for (const code of codes) {
    const call = channel.call('test.Echo', code, NO_BYTES, NO_BYTES, 5000);
    await assert.rejects(call, failsWith(code, /told to say/));
  }
  assert.equal(CubeError.fromBrpc(1003, 'x', 'NOT_FOUND').code, 'INVALID_ARGUMENT');
  assert.equal(CubeError.fromBrpc(1003, 'x', 'toString').code, 'INVALID_ARGUMENT');
  channel.close();
  await server.stop();
});

test('an error of the server keeps its code', async () => {
  const { server, port } = await startEchoServer();
  const channel = channelTo(port);
  const call = channel.call('test.Echo', 'nothing', NO_BYTES, NO_BYTES, 1000);
  await assert.rejects(call, failsWith('UNSUPPORTED', /Fail to find method=test\.Echo\/nothing/));
  assert.equal(await echo(channel, 'goes on'), 'goes on');
  channel.close();
  await server.stop();
});

test('responses may arrive in any order', async () => {
  const { port } = await listen((socket) => {
    const decoder = new FrameDecoder();
    const answers: Uint8Array[] = [];
    socket.on('data', (chunk) => {
      decoder.push(chunk);
      while (decoder.next()) {
        const { frame } = decoder;
        const output = new OutputBuffer();
        const metaEnd = beginResponse(output, frame, 0);
        output.append(frame.bytes.subarray(frame.payloadStart, frame.payloadEnd));
        finishFrame(output, 0, metaEnd);
        answers.push(output.writtenBytes());
      }
      if (answers.length === 10) for (const answer of answers.reverse()) socket.write(answer);
    });
  });
  const channel = channelTo(port);
  const texts = Array.from({ length: 10 }, (_, i) => `call ${i}`);
  assert.deepEqual(await Promise.all(texts.map((text) => echo(channel, text))), texts);
});

test('without a listener, calls fail with UNAVAILABLE, and attempts are limited', async () => {
  const { server, port } = await listen(() => undefined);
  await new Promise((resolve) => server.close(resolve));
  const channel = channelTo(port, { backoffMinMs: 60_000, backoffMaxMs: 60_000 });
  await assert.rejects(echo(channel, 'a'), failsWith('UNAVAILABLE', /ECONNREFUSED/));
  const late = await listen(() => undefined, port);
  await assert.rejects(echo(channel, 'b'), failsWith('UNAVAILABLE', /ECONNREFUSED/));
  assert.equal(late.sockets.length, 0);
});

test('a lost connection fails pending calls; the next call reconnects', async () => {
  const { server, port, sockets } = await listen((socket) => socket.on('data', () => undefined));
  const channel = channelTo(port, { backoffMinMs: 1, backoffMaxMs: 10 });
  const pending = [echo(channel, 'a'), echo(channel, 'b')];
  const outcomes = Promise.allSettled(pending);
  while (sockets.length === 0) await sleep(5);
  sockets[0]?.destroy();
  for (const outcome of await outcomes) {
    assert.equal(outcome.status, 'rejected');
    failsWith('UNAVAILABLE')(outcome.reason);
  }
  await new Promise((resolve) => server.close(resolve));
  const echoServer = await startEchoServer({}, {}, port);
  await sleep(30);
  assert.equal(await echo(channel, 'back'), 'back');
  channel.close();
  await echoServer.server.stop();
});

test('a call without response ends at its deadline; a late response is dropped', async () => {
  const late: (() => void)[] = [];
  const { port } = await listen((socket) => {
    const decoder = new FrameDecoder();
    socket.on('data', (chunk) => {
      decoder.push(chunk);
      while (decoder.next()) {
        const { frame } = decoder;
        const output = new OutputBuffer();
        const metaEnd = beginResponse(output, frame, 0);
        output.append(frame.bytes.subarray(frame.payloadStart, frame.payloadEnd));
        finishFrame(output, 0, metaEnd);
        const text = Buffer.from(output.writtenBytes()).toString('latin1');
        if (text.includes('slow')) late.push(() => socket.write(output.writtenBytes()));
        else socket.write(output.writtenBytes());
      }
    });
  });
  const channel = channelTo(port);
  const slow = echo(channel, 'slow', 50);
  const patient = echo(channel, 'slow but awaited', 30_000);
  const fast = echo(channel, 'fast', 5000);
  await assert.rejects(slow, failsWith('DEADLINE_EXCEEDED', /no response within 50 ms/));
  assert.equal(await fast, 'fast');
  // One connection: once the fast call is answered, the earlier calls have arrived.
  assert.equal(late.length, 2);
  for (const answer of late) answer();
  assert.equal(await patient, 'slow but awaited');
  assert.equal(await echo(channel, 'after', 5000), 'after');
});

test('a suspended process finds its responses before its deadlines', async () => {
  const answered = new Int32Array(new SharedArrayBuffer(4));
  const file = new URL('./support/answering-worker.js', import.meta.url);
  const thread = new Worker(file, { workerData: answered.buffer });
  const [port] = (await once(thread, 'message')) as [number];
  const channel = channelTo(port, { connectTimeoutMs: 100, silenceMs: 100 });
  const call = (timeoutMs: number): Promise<unknown> =>
    channel.call('test.Echo', 'counted', NO_BYTES, NO_BYTES, timeoutMs);
  const standStill = (count: number): void => {
    const sinceMs = performance.now();
    const passedMs = (): number => performance.now() - sinceMs;
    while (passedMs() < 150 || (Atomics.load(answered, 0) < count && passedMs() < 10_000)) {}
  };
  const first = call(20_000);
  standStill(0);
  await first;
  const second = call(100);
  await new Promise(process.nextTick);
  standStill(2);
  await second;
  channel.close();
  await thread.terminate();
});

test('connecting has a timeout', async () => {
  // An address reserved for documentation: it does not answer or is unreachable.
  const channel = new Channel('203.0.113.1:9', { connectTimeoutMs: 100 });
  closers.push(() => channel.close());
  await assert.rejects(echo(channel, 'a', 3000), failsWith('UNAVAILABLE'));
});

test('calls in flight and request bytes are limited; a closed channel rejects', async () => {
  const { port } = await listen((socket) => socket.on('data', () => undefined));
  const channel = channelTo(port, { maxInFlight: 2, maxFrameBytes: 10_000 });
  const pending = Promise.allSettled([echo(channel, 'a'), echo(channel, 'b')]);
  await assert.rejects(echo(channel, 'c'), failsWith('OVERLOADED'));
  await assert.rejects(echo(channel, 'x'.repeat(10_000)), failsWith('TOO_LARGE'));
  channel.close();
  for (const outcome of await pending) assert.equal(outcome.status, 'rejected');
  await assert.rejects(echo(channel, 'd'), failsWith('UNAVAILABLE', /closed/));
});

test('a server that stops reading does not fill our memory', async () => {
  const { port, sockets } = await listen((socket) => socket.pause());
  const channel = channelTo(port, { maxFrameBytes: 1 << 20, silenceMs: 60_000 });
  const payload = new Uint8Array(900_000);
  let refused = 0;
  for (let i = 0; i < 60; i++) {
    await channel.call('a', 'b', payload, NO_BYTES, 20).catch((error: CubeError) => {
      if (error.code === 'OVERLOADED') refused++;
      else assert.equal(error.code, 'DEADLINE_EXCEEDED');
    });
  }
  assert.ok(refused > 30, `${refused} refused`);
  assert.equal(sockets.length, 1);
});

test('a connection that stays silent while calls are pending is closed', async () => {
  const { port, sockets } = await listen((socket) => socket.on('data', () => undefined));
  const channel = channelTo(port, { silenceMs: 100, backoffMinMs: 1, backoffMaxMs: 1 });
  const outcomes: string[] = [];
  while (sockets.length < 2 && outcomes.length < 100) {
    await echo(channel, 'a', 40).catch((error: CubeError) => outcomes.push(error.code));
    await sleep(5);
  }
  assert.equal(sockets.length, 2);
});

test('a connection on which garbage arrives is closed', async () => {
  const { port } = await listen((socket) =>
    socket.on('data', () => socket.write('HTTP/1.1 400 no\r\n\r\n')),
  );
  const channel = channelTo(port);
  await assert.rejects(echo(channel, 'a'), failsWith('UNAVAILABLE', /must begin with "PRPC"/));
});

test('an invalid endpoint is rejected', () => {
  for (const endpoint of ['', 'host', 'host:0', 'host:65536', 'http://host:1', 'a b:1']) {
    assert.throws(() => new Channel(endpoint), failsWith('INVALID_ARGUMENT', /expected host:port/));
  }
});

test("a call may have a timeout longer than a timer's maximum", async (context) => {
  const warnings: string[] = [];
  const onWarning = ({ name }: Error): unknown => warnings.push(name);
  process.on('warning', onWarning);
  context.after(() => process.off('warning', onWarning));
  const { port } = await listen(() => undefined);
  const channel = channelTo(port);
  const call = echo(channel, 'for ever', 1e12);
  await sleep(50);
  channel.close();
  await assert.rejects(call, failsWith('UNAVAILABLE'));
  assert.deepEqual(warnings, []);
});
