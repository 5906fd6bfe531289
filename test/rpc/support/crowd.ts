/** Many idle and slow peers around a server that must keep answering. */
import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { encodeRequestFrame, RawConnection, startEchoServer, waitUntil } from './echo-server.ts';

const NO_BYTES = new Uint8Array(0);

/**
 * Opens a connection that sends bytes and then reads `bytes` bytes every `everyMs` milliseconds.
 */
export function openSlowReader(
  port: number,
  sent: Uint8Array,
  rate: { bytes: number; everyMs: number },
): Socket {
  const socket = connect({ port, host: '127.0.0.1' });
  socket.on('error', () => undefined);
  socket.write(sent);
  socket.on('readable', () => undefined);
  const timer = setInterval(() => {
    let left = rate.bytes;
    while (left > 0 && socket.readableLength > 0) {
      const count = Math.min(left, socket.readableLength);
      socket.read(count);
      left -= count;
    }
    socket.read(0);
  }, rate.everyMs);
  socket.on('close', () => clearInterval(timer));
  return socket;
}

/**
 * Opens idle and slow connections, and checks that another caller is answered and all memory is
 * released.
 */
export async function testCrowdedServer(size: {
  idle: number;
  slow: number;
  answerBytes: number;
}): Promise<void> {
  const { server, port } = await startEchoServer(
    { slowReaderMs: 500, outputTotalBytes: 2 ** 40, connections: 20_000 },
    {
      huge: (_frame, response) => {
        response.begin(0);
        response.output.append(new Uint8Array(size.answerBytes));
      },
    },
  );
  const idle = Array.from({ length: size.idle }, () => {
    const socket = connect({ port, host: '127.0.0.1' });
    socket.on('error', () => undefined);
    socket.write(encodeRequestFrame(1, NO_BYTES));
    return socket;
  });
  await waitUntil(() => server.connections === size.idle);
  const huge = encodeRequestFrame(1, NO_BYTES, { method: 'huge' });
  const slow = Array.from({ length: size.slow }, () =>
    openSlowReader(port, huge, { bytes: 1000, everyMs: 100 }),
  );
  await waitUntil(() => server.connections + server.slowReaders >= size.idle + size.slow);
  const connection = new RawConnection(port);
  for (let i = 1; i <= 100; i++) {
    connection.send(encodeRequestFrame(i, Buffer.from(`call ${i}`)));
    assert.equal((await connection.receive(i))[i - 1]?.payload, `call ${i}`);
  }
  await waitUntil(() => server.slowReaders === size.slow);
  await waitUntil(() => server.connections === size.idle + 1 && server.unsentBytes === 0);
  connection.socket.destroy();
  for (const socket of [...idle, ...slow]) socket.destroy();
  await waitUntil(() => server.connections === 0);
  assert.equal(server.baidu.inputBufferBytes, 0);
  await server.stop();
}
