/**
 * Servers that read a request and answer the same bytes each time: the least that node:http and
 * grpc-js cost.
 */
import { createServer, type Server as HttpServer } from 'node:http';
import { fileURLToPath } from 'node:url';
import { Server, ServerCredentials, type ServiceDefinition } from '@grpc/grpc-js';
import { loadSync } from '@grpc/proto-loader';
import { announcePort, listenLocally } from './cpu-port.ts';

const JSON_ANSWER = '{"rows":[{"probability":0.123456789}],"version":"1","unseen":0}';
const GRPC_ANSWER = { model: 'demo', version: '1', probabilities: [0.123456789] };

function createNodeHttp(): HttpServer {
  return createServer((request, response) => {
    const pieces: Buffer[] = [];
    request.on('data', (piece: Buffer) => pieces.push(piece));
    request.on('end', () => {
      Buffer.concat(pieces);
      const length = String(JSON_ANSWER.length);
      response.writeHead(200, ['content-type', 'application/json', 'content-length', length]);
      response.end(JSON_ANSWER);
    });
  });
}

function startGrpc(): Promise<number> {
  const proto = fileURLToPath(new URL('../../../proto/ctr.proto', import.meta.url));
  const service = loadSync(proto)['hypercube.CtrService'] as ServiceDefinition;
  const server = new Server();
  server.addService(service, {
    predict: (_call: unknown, respond: (error: null, answer: object) => void) =>
      respond(null, GRPC_ANSWER),
  });
  const credentials = ServerCredentials.createInsecure();
  return new Promise((resolve, reject) =>
    server.bindAsync('127.0.0.1:0', credentials, (error, port) =>
      error === null ? resolve(port) : reject(error),
    ),
  );
}

const isGrpc = process.argv[2] === 'grpc-js';
await announcePort(await (isGrpc ? startGrpc() : listenLocally(createNodeHttp())));
