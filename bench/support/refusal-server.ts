/**
 * Servers that refuse every request, to compare what a refusal costs: bare ones, which do nothing
 * but read and answer, and Hypercube's. A second port answers with the CPU time of the process.
 */
import { createServer as createHttpServer } from 'node:http';
import { createServer, type Server, type Socket } from 'node:net';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { HttpServer } from '../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { readIntoSharedBuffer } from '../../lib/rpc/shared-read-buffer.ts';
import { ServingMetrics } from '../../serving/metrics/serving-metrics.ts';
import { Admission } from '../../serving/protocols/admission.ts';
import { announcePort, listenLocally } from './cpu-port.ts';

const HEAD_END = Buffer.from('\r\n\r\n');
const BODY = JSON.stringify({
  code: 'OVERLOADED',
  error: 'the expected wait is too long'.repeat(4),
});
const HEAD = [
  'HTTP/1.1 429 Too Many Requests',
  'content-type: application/json',
  `content-length: ${BODY.length}`,
  'retry-after: 1',
];
const ANSWER = `${HEAD.join('\r\n')}\r\n\r\n${BODY}`;

/** Answers each head as soon as it has arrived, and skips its body. */
function createReader(socket: Socket): (bytes: Buffer) => void {
  let missing = 0;
  let kept = Buffer.alloc(0);
  return (bytes) => {
    let rest = kept.length === 0 ? bytes : Buffer.concat([kept, bytes]);
    kept = Buffer.alloc(0);
    while (rest.length > 0) {
      const skipped = Math.min(missing, rest.length);
      missing -= skipped;
      rest = rest.subarray(skipped);
      const end = rest.indexOf(HEAD_END);
      if (end < 0) {
        kept = Buffer.from(rest);
        return;
      }
      missing = Number(/content-length: (\d+)/.exec(rest.toString('latin1', 0, end))?.[1]);
      rest = rest.subarray(end + HEAD_END.length);
      socket.write(ANSWER, 'latin1');
    }
  };
}

function createBareServer(isShared: boolean): Server {
  return createServer({ noDelay: true }, (socket) => {
    socket.on('error', () => socket.destroy());
    const read = createReader(socket);
    const onRead = (count: number, buffer: Buffer): boolean => {
      read(buffer.subarray(0, count));
      return true;
    };
    if (isShared && readIntoSharedBuffer(socket, onRead)) socket.resume();
    else socket.on('data', read);
  });
}

function createNodeHttpServer(): Server {
  return createHttpServer((request, response) => {
    request.resume();
    response.writeHead(429, ['content-type', 'application/json', 'retry-after', '1']);
    response.end(BODY);
  });
}

/** Refuses by the admission of serving, and counts as serving does. */
function createRefusingHttp(): HttpServer {
  const http = new HttpServer(DEFAULT_SERVER_LIMITS, createLogger('bench', { level: 'silent' }));
  const [admission, metrics] = [new Admission(0), new ServingMetrics()];
  const busy = { estimateWaitMs: () => 900, estimateRowsMs: () => 100, recordOffer: () => 10 };
  http.directRoutes.add({
    path: '/v1/ctr::predict',
    contentTypes: ['text/tab-separated-values'],
    admit: () => {
      metrics.recordFailure('ctr', 'OVERLOADED');
      return admission.findRefusal([busy], { remainingMs: 1_000 });
    },
    handler: () => Promise.reject(new Error('every request is refused')),
  });
  return http;
}

/** @returns the port */
async function start(kind: string): Promise<number> {
  if (kind === 'net') return listenLocally(createBareServer(false));
  if (kind === 'net-shared') return listenLocally(createBareServer(true));
  if (kind === 'node-http') return listenLocally(createNodeHttpServer());
  const http = createRefusingHttp();
  const limits = DEFAULT_SERVER_LIMITS;
  const logger = createLogger('bench', { level: 'silent' });
  const address = await new OnePortServer({ http, limits, logger }).listen('127.0.0.1', 0);
  if (kind === 'hypercube') return Number(address.split(':').at(-1));
  return listenLocally(
    createServer({ noDelay: true }, (socket) => {
      socket.on('error', () => socket.destroy());
      http.serveWithNode(socket, Buffer.alloc(0));
    }),
  );
}

await announcePort(await start(process.argv[2] ?? ''));
