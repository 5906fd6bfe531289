/** Binds a server of TCP to an address. */
import type { ListenOptions, Server } from 'node:net';
import { CubeError } from '../core/errors.ts';
import { formatEndpoint } from './endpoint.ts';

/**
 * Connections that wait to be accepted; the system's maximum (net.core.somaxconn) is 4,096 by
 * default. The system drops more, and their callers try again after a second, which a short stall
 * of a server with thousands of callers must not cause.
 */
const BACKLOG = 4_096;

/**
 * @param reusePort other threads of this process listen on the same port
 * @returns the address
 * @throws CubeError IO when the port is taken or not allowed
 */
export async function listenOn(
  server: Server,
  host: string,
  port: number,
  reusePort = false,
): Promise<string> {
  await new Promise<void>((resolve, reject) => {
    server.once('error', (error) => reject(toListenError(error, host, port)));
    const options: ListenOptions & { reusePort: boolean } = {
      host,
      port,
      backlog: BACKLOG,
      reusePort,
    };
    server.listen(options, resolve);
  });
  const address = server.address();
  if (address === null || typeof address === 'string') throw new Error('not listening on TCP');
  return formatEndpoint(address.address, address.port);
}

function toListenError(error: NodeJS.ErrnoException, host: string, port: number): CubeError {
  const address = formatEndpoint(host, port);
  const reason: Record<string, string> = {
    EADDRINUSE: 'it is in use by another process; stop that one or choose another --port',
    EACCES: 'not allowed; choose a port above 1023',
    EADDRNOTAVAIL: 'this machine has no such address; choose another --host',
    ENOTFOUND: 'no such host name; choose another --host',
  };
  const text = reason[error.code ?? ''] ?? error.message;
  return new CubeError('IO', `cannot listen on ${address}: ${text}`, { cause: error });
}
