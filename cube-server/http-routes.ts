/**
 * HTTP routes of the data port: packed lookup, Cube's seek in JSON and protobuf, health and
 * metrics.
 */
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { toErrorDetails } from '../lib/core/error-details.ts';
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import { ERROR_TEXT_CHARS_MAX } from '../lib/core/limits.ts';
import type { MetricsRegistry } from '../lib/platform/metrics.ts';
import { PRODUCT_VERSION } from '../lib/platform/version.ts';
import { toInternalHeaders } from '../lib/rpc/control-caller.ts';
import { ERROR_CODE_HEADER } from '../lib/rpc/direct-routes.ts';
import { formatEndpoint } from '../lib/rpc/endpoint.ts';
import { toCubeError } from '../lib/rpc/http-server.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE } from '../proto/lookup.ts';
import { CODE_HEADER, REASON_HEADER } from './control-routes.ts';
import type { DictService } from './dict-service.ts';
import type { LookupService } from './lookup-service.ts';
import { addOpenApiRoute } from './operations.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

const PROTOBUF = 'application/proto';
const JSON_TYPE = 'application/json';

/**
 * @param seekBytesMax of the body of a seek, which brpc limits as a frame: JSON has more bytes than
 *   the packed keys of a lookup
 */
export function addLookupRoutes(
  app: FastifyInstance,
  lookup: LookupService,
  dict: DictService,
  seekBytesMax: number,
): void {
  app.post(`/${LOOKUP_SERVICE}/${LOOKUP_METHOD}`, async (request, reply) => {
    const answer = await lookup.handleMessage(getBodyBytes(request));
    return reply.header('content-type', PROTOBUF).send(answer);
  });
  const shortName = DICT_SERVICE.slice(DICT_SERVICE.lastIndexOf('.') + 1);
  for (const service of [DICT_SERVICE, shortName]) {
    app.route({
      method: ['GET', 'POST', 'PUT'],
      bodyLimit: seekBytesMax,
      url: `/${service}/${DICT_METHOD}`,
      handler: (request, reply) => seek(dict, request, reply),
      errorHandler: sendBrpcError,
    });
  }
}

/** @param notReady returns undefined when ready, else the reason */
export function addHealthRoutes(app: FastifyInstance, notReady: () => string | undefined): void {
  addOpenApiRoute(app);
  app.get('/healthz', async () => 'OK\n');
  app.get('/health', async () => 'OK\n');
  app.get('/readyz', (_request, reply) => {
    const reason = notReady();
    if (reason === undefined) return reply.send('OK\n');
    return reply.status(503).send(`not ready: ${reason}\n`);
  });
  // Health checks of brpc's servers ask for these pages.
  app.get('/version', async () => `cube-server ${PRODUCT_VERSION}\n`);
  app.get('/status', async () => {
    const reason = notReady();
    const readiness = reason === undefined ? 'yes' : `no (${reason})`;
    return `version: cube-server ${PRODUCT_VERSION}\npid: ${process.pid}\nready: ${readiness}\n`;
  });
}

/** @param ofThreads metric values of other threads, which are added */
export function addMetricsRoute(
  app: FastifyInstance,
  metrics: MetricsRegistry,
  ofThreads: () => Promise<object[]>,
): void {
  app.get('/metrics', async (_request, reply) =>
    reply
      .header('content-type', metrics.contentType)
      .send(await metrics.mergedText(await ofThreads())),
  );
}

/** Handles a request that another thread received. */
export async function handleForwardedCall(
  app: FastifyInstance,
  call: HttpCall,
): Promise<HttpResult> {
  const { method, url, body, remoteAddress, certificate } = call;
  const headers = toInternalHeaders(call.headers, certificate);
  // The thread that has the connection decodes the request's body and encodes the response's.
  delete headers['accept-encoding'];
  delete headers['content-encoding'];
  const response = await app.inject({
    method: method as 'GET',
    url,
    headers,
    remoteAddress,
    ...(body === undefined ? {} : { payload: Buffer.from(body) }),
  });
  const answered: Record<string, string> = {};
  for (const name of ['content-type', ERROR_CODE_HEADER, CODE_HEADER, REASON_HEADER]) {
    const value = response.headers[name];
    if (value !== undefined) answered[name] = String(value);
  }
  return { status: response.statusCode, headers: answered, body: response.rawPayload };
}

/** The error of a call that `handleForwardedCall` handled. */
export function readCallError({ headers, body }: HttpResult): CubeError {
  const commandCode = headers[CODE_HEADER];
  if (commandCode !== undefined) {
    return new CubeError(commandCode as ErrorCode, decodeURI(headers[REASON_HEADER] ?? ''));
  }
  const json = JsonReader.parse(new TextDecoder().decode(body), 'answer');
  const code = json.field('code').string() as ErrorCode;
  const details = json.optional('details', (field) => toErrorDetails(field.value)) ?? {};
  return new CubeError(code, json.field('error').string(), { details });
}

function getBodyBytes(request: FastifyRequest): Uint8Array {
  return request.body instanceof Uint8Array ? request.body : new Uint8Array(0);
}

/** As in brpc, the content type selects protobuf or JSON, for request and response. */
async function seek(
  dict: DictService,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const contentType = request.headers['content-type'] ?? JSON_TYPE;
  const body = getBodyBytes(request);
  reply.header('content-type', contentType);
  if (contentType.startsWith(PROTOBUF)) return reply.send(await dict.handleProtobuf(body));
  // Sent as bytes: for a string the framework would add a charset to the content type.
  return reply.send(Buffer.from(await dict.handleJson(body)));
}

/** Sends an error as brpc does over HTTP: its number in a header, and a line of text. */
function sendBrpcError(
  error: FastifyError,
  request: FastifyRequest,
  reply: FastifyReply,
): FastifyReply {
  const failure = toCubeError(error, request);
  const { http, brpc } = failure.status;
  const { localAddress = '', localPort = 0 } = request.socket;
  return reply
    .status(http)
    .header(ERROR_CODE_HEADER, brpc)
    .header('content-type', 'text/plain')
    .send(
      `[${formatEndpoint(localAddress, localPort)}][E${brpc}]` +
        failure.message.slice(0, ERROR_TEXT_CHARS_MAX),
    );
}
