/**
 * The same routes behind two ports: one that reads direct requests by itself, and one that serves
 * everything with node:http. Answers to the same bytes must be the same.
 */
import { once } from 'node:events';
import { ServerResponse } from 'node:http';
import { type AddressInfo, connect, createServer } from 'node:net';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeError } from '../../../lib/core/errors.ts';
import type { ServerLimits } from '../../../lib/core/limits.ts';
import type { HttpAdmit, HttpHandler } from '../../../lib/rpc/direct-routes.ts';
import { handleFastifyRequest } from '../../../lib/rpc/http-server.ts';
import type { TlsIdentity } from '../../../lib/rpc/tls-identity.ts';
import { type EchoServer, startEchoServer } from './echo-server.ts';

const PATH = '/named/:name/do';
export const DIRECT_TYPE = 'text/direct';

export interface DirectServers {
  readonly echo: EchoServer;
  /** Reads direct requests without node:http. */
  readonly directPort: number;
  /** Serves everything with node:http. */
  readonly nodePort: number;
  /** Requests handled so far with and without node:http. */
  readonly handled: { direct: number; node: number };
  /** Admitted requests whose body has not arrived. */
  readonly bodiesArriving: () => number;
  stop(): Promise<void>;
}

export async function startDirectServers(
  limits: Partial<ServerLimits> = {},
  tls?: TlsIdentity,
): Promise<DirectServers> {
  const handled = { direct: 0, node: 0 };
  let arriving = 0;
  const handler: HttpHandler = async ({ params: { name = '' }, headers, body, raw }) => {
    if (raw instanceof ServerResponse) handled.node++;
    else handled.direct++;
    if (name === 'broken') throw new Error('broken');
    if (name === 'missing') throw new CubeError('NOT_FOUND', `no ${headers['x-what']} here: é`);
    if (name === 'stopping') throw new CubeError('STOPPING', 'this server is stopping');
    if (name === 'slow') await sleep(20);
    if (name === 'marked') raw.setHeader('x-marked', 'true');
    const bytes = Buffer.from(body as Buffer);
    if (name === 'bytes')
      return { type: 'application/octet-stream', headers: { x: 1 }, body: bytes };
    const text = `${name} é ${headers['x-what'] ?? ''} ${bytes.toString('latin1')}`;
    return { type: 'text/plain; charset=utf-8', body: text };
  };
  const admit: HttpAdmit = ({ headers }) => {
    if (headers['x-refuse'] !== undefined) throw new CubeError('OVERLOADED', 'try again later');
    arriving++;
    return () => {
      arriving--;
    };
  };
  const echo = await startEchoServer(
    limits,
    {},
    0,
    undefined,
    () => true,
    tls,
    (http) => {
      http.app.post(PATH, { config: { admit } }, (request, reply) =>
        handleFastifyRequest(handler, request, reply),
      );
      http.directRoutes.add({ path: PATH, contentTypes: [DIRECT_TYPE], admit, handler });
    },
  );
  const nodeServer = createServer({ allowHalfOpen: true, noDelay: true }, (socket) => {
    socket.on('error', () => socket.destroy());
    socket.once('data', (first: Buffer) => {
      socket.pause();
      echo.http.serveWithNode(socket, first);
      socket.resume();
    });
  });
  nodeServer.listen(0, '127.0.0.1');
  await once(nodeServer, 'listening');
  return {
    echo,
    directPort: echo.port,
    nodePort: (nodeServer.address() as AddressInfo).port,
    handled,
    bodiesArriving: () => arriving,
    async stop() {
      nodeServer.close();
      await echo.server.stop();
    },
  };
}

/** Bytes of one request; the values of `lines` follow those that every request has. */
export function encodePost(
  name: string,
  body: string | Uint8Array,
  lines: readonly string[] = [],
): Buffer {
  const head = [
    `POST /named/${name}/do HTTP/1.1`,
    'Host: x',
    `Content-Type: ${DIRECT_TYPE}`,
    `Content-Length: ${body.length}`,
    ...lines,
  ];
  return Buffer.concat([Buffer.from(`${head.join('\r\n')}\r\n\r\n`), Buffer.from(body)]);
}

/**
 * Sends pieces, one in each turn of the event loop, then closes the sending side.
 * @returns everything that the server sends until it closes, without dates
 */
export async function exchange(port: number, pieces: readonly Uint8Array[]): Promise<string> {
  const socket = connect({ port, host: '127.0.0.1', noDelay: true, allowHalfOpen: true });
  const received: Buffer[] = [];
  socket.on('data', (chunk: Buffer) => received.push(chunk));
  socket.on('error', () => undefined);
  const ended = Promise.race([once(socket, 'end'), once(socket, 'close')]);
  for (const piece of pieces) {
    if (socket.writable) socket.write(piece);
    await new Promise((resolve) => setTimeout(resolve, 1));
  }
  socket.end();
  await ended;
  socket.destroy();
  return Buffer.concat(received)
    .toString('latin1')
    .replaceAll(/^Date: .*\r\n/gm, 'Date\r\n');
}
