import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../lib/core/errors.ts';
import { type EchoServer, RawConnection, requestFrame, startEcho, until } from './one-port.ts';

const servers: EchoServer[] = [];
const sockets: Socket[] = [];
after(async () => {
  for (const socket of sockets) socket.destroy();
  await Promise.all(servers.map(({ server }) => server.stop()));
});

async function start(...options: Parameters<typeof startEcho>): Promise<EchoServer> {
  const server = await startEcho(...options);
  servers.push(server);
  return server;
}

/** A connection that sends this text and reads nothing. */
function sendText(port: number, text: string): Socket {
  const socket = connect({ port, host: '127.0.0.1' });
  sockets.push(socket);
  socket.on('error', () => undefined);
  socket.pause();
  socket.write(text);
  return socket;
}

async function statusOf(url: string, body?: string): Promise<number> {
  const init = body === undefined ? {} : { method: 'POST', body };
  const answer = await fetch(url, { ...init, headers: { connection: 'close' } });
  await answer.arrayBuffer();
  return answer.status;
}

test('what idle connections keep for their next split frames is bounded over all of them', async () => {
  const { port, server } = await start({}, { drop: () => undefined });
  const frame = requestFrame(1, new Uint8Array(900_000), { method: 'drop' });
  const connections: RawConnection[] = [];
  for (let i = 0; i < 80; i++) {
    const connection = new RawConnection(port);
    connections.push(connection);
    for (const answers of [1, 2]) {
      connection.send(frame);
      await connection.receive(answers);
    }
  }
  assert.equal(server.host.gatheredBytes, 0);
  assert.ok(server.host.heldBytes <= 64 << 20, `${server.host.heldBytes} bytes are held`);
  for (const { socket } of connections) socket.destroy();
  await until(() => server.host.heldBytes === 0);
});

test('a name of megabytes does not come back in the error text', async () => {
  const text = 'x'.repeat(1 << 20);
  const refuse = (): never => {
    throw new CubeError('NOT_FOUND', text);
  };
  const { port, address, server } = await start({}, { refuse });
  const connection = new RawConnection(port);
  connection.send(requestFrame(1, new Uint8Array(0), { method: 'refuse' }));
  const [answer] = await connection.receive(1);
  assert.match(answer!.errorText, /^\[127\.0\.0\.1:\d+\]\[E1001\]x{4096}$/);
  connection.socket.destroy();
  await until(() => server.connections === 0);
  assert.equal(await statusOf(`http://${address}/${'y'.repeat(5000)}`), 404);
});

test('answers that HTTP peers do not read count, and are refused over the limit', async () => {
  const { port, address } = await start({ outputTotalBytes: 1 << 20 });
  const slow = sendText(port, 'GET /large HTTP/1.1\r\nhost: x\r\n\r\n');
  await until(async () => (await statusOf(`http://${address}/hello`)) === 429);
  slow.destroy();
  await until(async () => (await statusOf(`http://${address}/hello`)) === 200);
});

test('HTTP bodies announced count, and are refused over the limit', async () => {
  const { port, address } = await start({ inputTotalBytes: 1000, httpBodyBytes: 900 });
  const url = `http://${address}/echo`;
  const head = 'POST /echo HTTP/1.1\r\nhost: x\r\n';
  for (const announced of ['content-length: 900', 'transfer-encoding: chunked']) {
    assert.equal(await statusOf(url, 'y'.repeat(200)), 200);
    const slow = sendText(port, `${head}${announced}\r\n\r\n1`);
    await until(async () => (await statusOf(url, 'y'.repeat(200))) === 429);
    assert.equal(await statusOf(`http://${address}/hello`), 200, announced);
    slow.destroy();
    await until(async () => (await statusOf(url, 'y'.repeat(200))) === 200);
  }
});

test('pipelined requests end with their connection, those that wait behind another too', async () => {
  const { port, address, http } = await start({ httpInFlight: 8 });
  for (let i = 0; i < 5; i++) {
    const slow = sendText(port, 'GET /slow HTTP/1.1\r\nhost: x\r\n\r\n'.repeat(4));
    await until(() => http.inFlight === 4);
    slow.destroy();
    await until(() => http.inFlight === 0);
  }
  assert.equal(await statusOf(`http://${address}/hello`), 200);
});

test('stopping does not wait for a request that never comes whole', async () => {
  const { server, port } = await startEcho({ drainMs: 200 });
  const head = 'POST /echo HTTP/1.1\r\nhost: x\r\ncontent-length: 100\r\n\r\nhalf';
  const slow = sendText(port, head);
  await until(() => server.connections === 1);
  await sleep(100);
  await server.stop();
  assert.equal(server.connections, 0);
  slow.destroy();
});
