/** Ports for processes that must be told theirs: tests of what can take port 0 let the system choose. */
import { createServer } from 'node:net';

/** Below what systems give away themselves (32768 and up): nobody is given one between its being found and its being used. */
const FIRST = 11_000;
/** A Redis Cluster's nodes talk on a port 10,000 above their own, which is to be below, too. */
const COUNT = 11_000;

function canListen(port: number, host: string): Promise<boolean> {
  return new Promise((resolve) => {
    const server = createServer();
    server.on('error', () => resolve(false));
    server.listen(port, host, () => server.close(() => resolve(true)));
  });
}

/** @returns the first of `count` ports in a row that nobody listens on */
export async function freePort(count = 1, host = '127.0.0.1'): Promise<number> {
  for (;;) {
    const port = FIRST + Math.floor(Math.random() * COUNT);
    const ports = Array.from({ length: count }, (_, i) => port + i);
    const free = await Promise.all(ports.map((one) => canListen(one, host)));
    if (free.every(Boolean)) return port;
  }
}
