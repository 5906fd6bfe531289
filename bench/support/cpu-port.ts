/** The child's side of counted-server.ts. */
import { createServer } from 'node:http';
import type { AddressInfo, Server } from 'node:net';

/** @returns the port */
export async function listenLocally(server: Server): Promise<number> {
  await new Promise<void>((resolve) => server.listen(0, '127.0.0.1', resolve));
  return (server.address() as AddressInfo).port;
}

/** Tells the parent the port of a server, and another one that answers with the CPU time so far. */
export async function announcePort(port: number): Promise<void> {
  const cpu = createServer((_request, response) => {
    const { user, system } = process.cpuUsage();
    response.end(JSON.stringify({ micros: user + system }));
  });
  const cpuPort = await listenLocally(cpu);
  process.stderr.write(`${JSON.stringify({ port, cpuPort })}\n`);
}
