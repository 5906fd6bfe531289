import assert from 'node:assert/strict';
import { once } from 'node:events';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
import {
  type EchoServer,
  encodeRequestFrame,
  RawConnection,
  startEchoServer,
  waitUntil,
} from './support/echo-server.ts';

const servers: EchoServer[] = [];
const sockets: Socket[] = [];
after(async () => {
  for (const socket of sockets) socket.destroy();
  await Promise.all(servers.map(({ server }) => server.stop()));
});

async function start(...options: Parameters<typeof startEchoServer>): Promise<EchoServer> {
  const server = await startEchoServer(...options);
  servers.push(server);
  return server;
}

/** Opens a connection that sends a text and reads nothing. */
function sendText(port: number, text: string): Socket {
  const socket = connect({ port, host: '127.0.0.1' });
  sockets.push(socket);
  socket.on('error', () => undefined);
  socket.pause();
  socket.write(text);
  return socket;
}

async function fetchStatus(url: string, body?: string): Promise<number> {
  const init = body === undefined ? {} : { method: 'POST', body };
  const answer = await fetch(url, { ...init, headers: { connection: 'close' } });
  await answer.arrayBuffer();
  return answer.status;
}

test('the input buffers that idle connections keep are limited in total', async () => {
  const { port, server } = await start({}, { drop: () => undefined });
  const frame = encodeRequestFrame(1, new Uint8Array(900_000), { method: 'drop' });
  const connections: RawConnection[] = [];
  for (let i = 0; i < 80; i++) {
    const connection = new RawConnection(port);
    connections.push(connection);
    for (const answers of [1, 2]) {
      connection.send(frame);
      await connection.receive(answers);
    }
  }
  assert.equal(server.baidu.unfinishedFrameBytes, 0);
  assert.ok(
    server.baidu.inputBufferBytes <= 64 << 20,
    `${server.baidu.inputBufferBytes} bytes are held`,
  );
  for (const { socket } of connections) socket.destroy();
  await waitUntil(() => server.baidu.inputBufferBytes === 0);
});

test('an error message does not repeat a name of megabytes', async () => {
  const text = 'x'.repeat(1 << 20);
  const refuse = (): never => {
    throw new CubeError('NOT_FOUND', text);
  };
  const { port, address, server } = await start({}, { refuse });
  const connection = new RawConnection(port);
  connection.send(encodeRequestFrame(1, new Uint8Array(0), { method: 'refuse' }));
  const [answer] = await connection.receive(1);
  assert.ok(answer);
  assert.match(answer.errorText, /^\[127\.0\.0\.1:\d+\]\[E1001\]x{4096}$/);
  connection.socket.destroy();
  await waitUntil(() => server.connections === 0);
  assert.equal(await fetchStatus(`http://${address}/${'y'.repeat(5000)}`), 404);
});

test('unread HTTP responses count, and above the limit requests are rejected', async () => {
  const { port, address } = await start({ outputTotalBytes: 1 << 20 });
  const slow = sendText(port, 'GET /large HTTP/1.1\r\nhost: x\r\n\r\n');
  await waitUntil(async () => (await fetchStatus(`http://${address}/hello`)) === 429);
  slow.destroy();
  await waitUntil(async () => (await fetchStatus(`http://${address}/hello`)) === 200);
});

test('declared HTTP bodies count, and above the limit requests are rejected', async () => {
  const { port, address } = await start({ inputTotalBytes: 1000, httpBodyBytes: 900 });
  const url = `http://${address}/echo`;
  const head = 'POST /echo HTTP/1.1\r\nhost: x\r\n';
  for (const announced of ['content-length: 900', 'transfer-encoding: chunked']) {
    assert.equal(await fetchStatus(url, 'y'.repeat(200)), 200);
    const slow = sendText(port, `${head}${announced}\r\n\r\n1`);
    await waitUntil(async () => (await fetchStatus(url, 'y'.repeat(200))) === 429);
    assert.equal(await fetchStatus(`http://${address}/hello`), 200, announced);
    slow.destroy();
    await waitUntil(async () => (await fetchStatus(url, 'y'.repeat(200))) === 200);
  }
});

test('bodies that stall make room for other callers, bodies that arrive do not', async () => {
  const { port, address } = await start({ inputTotalBytes: 1000, httpBodyBytes: 900 });
  const url = `http://${address}/echo`;
  const head = 'POST /echo HTTP/1.1\r\nhost: x\r\n';
  for (const announced of ['content-length: 900', 'transfer-encoding: chunked']) {
    const stalled = sendText(port, `${head}${announced}\r\n\r\n1`);
    await waitUntil(async () => (await fetchStatus(url, 'y'.repeat(200))) === 429);
    await waitUntil(async () => (await fetchStatus(url, 'y'.repeat(200))) === 200);
    const answer = once(stalled, 'data');
    stalled.resume();
    assert.match(String(await answer), /^HTTP\/1\.1 408 /, announced);
  }
  const limits = { slowReaderBytes: 10, slowReaderMs: 10_000 };
  const patient = await start({ inputTotalBytes: 1000, httpBodyBytes: 900, ...limits });
  const steady = sendText(patient.port, `${head}content-length: 900\r\n\r\n`);
  const timer = setInterval(() => steady.write('y'), 100);
  await sleep(1500);
  assert.equal(await fetchStatus(`http://${patient.address}/echo`, 'y'.repeat(200)), 429);
  clearInterval(timer);
  steady.destroy();
});

test('pipelined requests end with their connection, waiting ones too', async () => {
  const { port, address, http } = await start({ httpInFlight: 8 });
  for (let i = 0; i < 5; i++) {
    const slow = sendText(port, 'GET /slow HTTP/1.1\r\nhost: x\r\n\r\n'.repeat(4));
    await waitUntil(() => http.requestsInFlight === 4);
    slow.destroy();
    await waitUntil(() => http.requestsInFlight === 0);
  }
  assert.equal(await fetchStatus(`http://${address}/hello`), 200);
});

test('stopping does not wait for a request that is never completed', async () => {
  const { server, port } = await startEchoServer({ drainMs: 200 });
  const head = 'POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf';
  const slow = sendText(port, head);
  await waitUntil(() => server.connections === 1);
  await sleep(100);
  await server.stop();
  assert.equal(server.connections, 0);
  slow.destroy();
});
