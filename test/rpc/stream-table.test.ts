import assert from 'node:assert/strict';
import { once } from 'node:events';
import { type ClientHttp2Stream, connect, createServer, type ServerHttp2Session } from 'node:http2';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { replaceStreamMap } from '../../lib/rpc/stream-table.ts';

async function start(t: TestContext) {
  const server = createServer();
  const sessions: ServerHttp2Session[] = [];
  server.on('session', (session) => {
    // Fails on a version of Node that keeps its streams elsewhere.
    assert.ok(replaceStreamMap(session));
    sessions.push(session);
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  const client = connect(`http://127.0.0.1:${(server.address() as AddressInfo).port}`);
  client.on('error', () => undefined);
  t.after(() => {
    client.destroy();
    server.close();
  });
  return { server, client, sessions };
}

async function readStatus(stream: ClientHttp2Stream): Promise<unknown> {
  const [headers] = await once(stream, 'response');
  stream.resume();
  await once(stream, 'close');
  return headers[':status'];
}

test('a session with replaced streams serves requests, together and in turn', async (t) => {
  const { server, client } = await start(t);
  server.on('stream', (stream) => {
    stream.respond({ ':status': 204 }, { endStream: true });
  });
  for (let round = 0; round < 3; round++) {
    const streams = Array.from({ length: 50 }, () => client.request());
    const statuses = await Promise.all(streams.map(readStatus));
    assert.deepEqual(new Set(statuses), new Set([204]));
  }
});

test('a destroyed session ends its streams; a closed one waits for them', async (t) => {
  const { server, client, sessions } = await start(t);
  for (let i = 0; i < 2; i++) {
    client.request().on('error', () => undefined);
    await once(server, 'stream');
  }
  const [session] = sessions;
  assert.ok(session);
  session.close();
  assert.equal(session.destroyed, false);
  const ended = once(client, 'close');
  session.destroy();
  await ended;
});
