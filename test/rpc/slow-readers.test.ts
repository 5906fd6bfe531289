import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import type { RpcHandler } from '../../lib/rpc/rpc-routes.ts';
import { crowd, reader } from './crowd.ts';
import { type EchoServer, requestFrame, startEcho, until } from './one-port.ts';

const servers: EchoServer[] = [];
after(() => Promise.all(servers.map(({ server }) => server.stop())));

const huge: RpcHandler = (_frame, response) => {
  response.begin(0);
  response.output.append(new Uint8Array(32 << 20));
};

async function start(limits: Parameters<typeof startEcho>[0]): Promise<EchoServer> {
  const server = await startEcho(limits, { huge });
  servers.push(server);
  return server;
}

const hugeCall = requestFrame(1, new Uint8Array(0), { method: 'huge' });
const hugeHttp = Buffer.from('GET /large HTTP/1.1\r\nhost: x\r\n\r\n');

test('a peer that takes a byte now and then is closed, over either protocol', async () => {
  const { port, server } = await start({ slowReaderMs: 300, slowReaderBytes: 1 << 20 });
  for (const sent of [hugeCall, hugeHttp]) {
    const before = server.slowReaders;
    const socket = reader(port, sent, { bytes: 100, everyMs: 20 });
    await until(() => server.slowReaders === before + 1);
    await until(() => server.unsentBytes === 0 && server.connections === 0);
    socket.destroy();
  }
});

test('a peer that takes enough, though slowly, gets all of it', async () => {
  const { port, server } = await start({ slowReaderMs: 1_000, slowReaderBytes: 1 << 20 });
  const socket = reader(port, hugeCall, { bytes: 1 << 20, everyMs: 50 });
  await until(() => server.unsentBytes > 0);
  await until(() => server.unsentBytes === 0);
  assert.equal(server.slowReaders, 0);
  socket.destroy();
});

test('when much waits on all connections together, more must be taken', async () => {
  const { port, server } = await start({
    ...{ slowReaderMs: 300, slowReaderBytes: 1 },
    outputTotalBytes: 40 << 20,
  });
  const socket = reader(port, hugeCall, { bytes: 1 << 16, everyMs: 50 });
  await until(() => server.slowReaders === 1);
  await until(() => server.unsentBytes === 0);
  socket.destroy();
});

test('many idle and some slow connections: others are answered, and all of it is given back', async () => {
  await crowd({ idle: 1000, slow: 20, answerBytes: 12 << 20 });
});
