/** Free ports for processes that need fixed ports; other tests use port 0. */
import { createServer } from 'node:net';

/**
 * Below the range from which systems assign ports (32768 and up), so none is assigned between being
 * found and being used.
 */
const FIRST = 11_000;
/** Nodes of a Redis Cluster use a second port, 10,000 above their own, which must also be below. */
const COUNT = 11_000;

function canListen(port: number, host: string): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.on('error', () => resolve(false));
    server.listen(port, host, () => server.close(() => resolve(true)));
  });
}

/** @returns the first of `count` consecutive free ports */
export async function freePort(count = 1, host = '127.0.0.1'): Promise<number> {
  for (;;) {
    const port = FIRST + Math.floor(Math.random() * COUNT);
    const ports = Array.from({ length: count }, (_, i) => port + i);
    const free = await Promise.all(ports.map((one) => canListen(one, host)));
    if (free.every(Boolean)) return port;
  }
}
