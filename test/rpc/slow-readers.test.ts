import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { RpcHandler } from '../../lib/rpc/rpc-routes.ts';
import { openSlowReader, testCrowdedServer } from './support/crowd.ts';
import {
  type EchoServer,
  encodeRequestFrame,
  startEchoServer,
  waitUntil,
} from './support/echo-server.ts';

const servers: EchoServer[] = [];
after(() => Promise.all(servers.map(({ server }) => server.stop())));

const huge: RpcHandler = (_frame, response) => {
  response.begin(0);
  response.output.append(new Uint8Array(32 << 20));
};

async function start(limits: Parameters<typeof startEchoServer>[0]): Promise<EchoServer> {
  const server = await startEchoServer(limits, { huge });
  servers.push(server);
  return server;
}

const hugeCall = encodeRequestFrame(1, new Uint8Array(0), { method: 'huge' });
const hugeHttp = Buffer.from('GET /large HTTP/1.1\r\nhost: x\r\n\r\n');

test('a peer that reads a byte now and then is closed, over both protocols', async () => {
  const { port, server } = await start({ slowReaderMs: 300, slowReaderBytes: 1 << 20 });
  for (const sent of [hugeCall, hugeHttp]) {
    const before = server.slowReaders;
    const socket = openSlowReader(port, sent, { bytes: 100, everyMs: 20 });
    await waitUntil(() => server.slowReaders === before + 1);
    await waitUntil(() => server.unsentBytes === 0 && server.connections === 0);
    socket.destroy();
  }
});

test('a peer that reads slowly but enough gets the whole response', async () => {
  const { port, server } = await start({ slowReaderMs: 1_000, slowReaderBytes: 1 << 20 });
  const socket = openSlowReader(port, hugeCall, { bytes: 1 << 20, everyMs: 50 });
  await waitUntil(() => server.unsentBytes > 0);
  await waitUntil(() => server.unsentBytes === 0);
  assert.equal(server.slowReaders, 0);
  socket.destroy();
});

test('when much output waits in total, peers must read faster', async () => {
  const { port, server } = await start({
    slowReaderMs: 300,
    slowReaderBytes: 1,
    outputTotalBytes: 40 << 20,
  });
  const socket = openSlowReader(port, hugeCall, { bytes: 1 << 16, everyMs: 50 });
  await waitUntil(() => server.slowReaders === 1);
  await waitUntil(() => server.unsentBytes === 0);
  socket.destroy();
});

test('idle and slow connections do not affect others, and leak no memory', async () => {
  await testCrowdedServer({ idle: 1000, slow: 20, answerBytes: 12 << 20 });
});
