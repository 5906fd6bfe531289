/** Peers that are many, idle or slow, around a server that must go on answering. */
import assert from 'node:assert/strict';
import { connect, type Socket } from 'node:net';
import { RawConnection, requestFrame, startEcho, until } from './one-port.ts';

const NO_BYTES = new Uint8Array(0);

/** A connection that sends this and then takes so many bytes every so often. */
export function reader(
  port: number,
  sent: Uint8Array,
  takes: { bytes: number; everyMs: number },
): Socket {
  const socket = connect({ port, host: '127.0.0.1' });
  socket.on('error', () => undefined);
  socket.write(sent);
  socket.on('readable', () => undefined);
  const timer = setInterval(() => {
    let left = takes.bytes;
    while (left > 0 && socket.readableLength > 0) {
      const count = Math.min(left, socket.readableLength);
      socket.read(count);
      left -= count;
    }
    socket.read(0);
  }, takes.everyMs);
  socket.on('close', () => clearInterval(timer));
  return socket;
}

/** So many idle connections and slow ones: a caller beside them is answered, and all they held is given back. */
export async function crowd(size: {
  idle: number;
  slow: number;
  answerBytes: number;
}): Promise<void> {
  const { server, port } = await startEcho(
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
    socket.write(requestFrame(1, NO_BYTES));
    return socket;
  });
  await until(() => server.connections === size.idle);
  const huge = requestFrame(1, NO_BYTES, { method: 'huge' });
  const slow = Array.from({ length: size.slow }, () =>
    reader(port, huge, { bytes: 1000, everyMs: 100 }),
  );
  await until(() => server.connections + server.slowReaders >= size.idle + size.slow);
  const connection = new RawConnection(port);
  for (let i = 1; i <= 100; i++) {
    connection.send(requestFrame(i, Buffer.from(`call ${i}`)));
    assert.equal((await connection.receive(i))[i - 1]?.payload, `call ${i}`);
  }
  await until(() => server.slowReaders === size.slow);
  await until(() => server.connections === size.idle + 1 && server.unsentBytes === 0);
  connection.socket.destroy();
  for (const socket of [...idle, ...slow]) socket.destroy();
  await until(() => server.connections === 0);
  assert.equal(server.host.heldBytes, 0);
  await server.stop();
}
