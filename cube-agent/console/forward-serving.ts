/**
 * Forwards the console of a serving process, so that one page shows everything. Only the paths that
 * the page uses, and only to the serving processes of the configuration.
 */
import { request as sendRequest } from 'node:http';
import type { FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';

const SERVINGS_PATH = '/v1/console/servings/:serving';
const CONSOLE_PATHS = 'console/(snapshot|events|examples|row|table)';
const PATHS = new RegExp(`^/v1/(${CONSOLE_PATHS}|models/[^/?]+/features|ctr:predict)([?]|$)`);
const HEADERS = ['accept', 'accept-encoding', 'content-type'];
const RESPONSE_HEADERS = ['content-type', 'content-encoding', 'content-length', 'cache-control'];

export function forwardServings(
  app: FastifyInstance,
  servings: readonly string[],
  guard: (request: FastifyRequest) => Promise<void>,
): void {
  app.route<{ Params: { serving: string; '*': string } }>({
    method: ['GET', 'POST'],
    url: `${SERVINGS_PATH}/*`,
    onRequest: guard,
    handler: (request, reply) => {
      const address = servings[Number(request.params.serving)];
      const path = request.url.split('/').slice(5).join('/');
      if (address === undefined || !PATHS.test(`/${path}`)) {
        throw new CubeError('NOT_FOUND', 'the console does not forward this path');
      }
      forward(address, `/${path}`, request, reply);
    },
  });
}

function forward(
  address: string,
  path: string,
  { method, headers, body }: FastifyRequest,
  reply: FastifyReply,
): void {
  const { raw } = reply;
  const pick = (names: readonly string[], from: NodeJS.Dict<string | string[]>) =>
    Object.fromEntries(
      names.flatMap((name) => (from[name] === undefined ? [] : [[name, from[name]]])),
    );
  const bytes = body instanceof Uint8Array ? body : new Uint8Array(0);
  // The length of what is sent: the body was decompressed here, and bytes beyond the caller's
  // length would be read as a request of this process.
  const sent = { ...pick(HEADERS, headers), 'content-length': bytes.length };
  const options = { ...parseEndpoint(address), path, method, headers: sent };
  reply.hijack();
  const upstream = sendRequest(options, (response) => {
    raw.writeHead(response.statusCode ?? 502, pick(RESPONSE_HEADERS, response.headers));
    response.on('error', () => raw.destroy());
    response.pipe(raw);
  });
  upstream.on('error', (error: NodeJS.ErrnoException) => {
    if (raw.headersSent) raw.destroy();
    else {
      const message = `no serving answers at ${address} (${error.code ?? error.message})`;
      raw.writeHead(503, { 'content-type': 'application/json' });
      raw.end(JSON.stringify({ code: 'UNAVAILABLE', error: message }));
    }
  });
  raw.once('close', () => upstream.destroy());
  upstream.end(bytes);
}
