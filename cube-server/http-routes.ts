/** The data calls over HTTP: packed lookup, Cube's seek in JSON and protobuf, and what operators ask of a process. */
import type { FastifyError, FastifyInstance, FastifyReply, FastifyRequest } from 'fastify';
import { CubeError, type ErrorCode } from '../lib/core/errors.ts';
import { JsonReader } from '../lib/core/json.ts';
import { ERROR_TEXT_CHARS_MAX } from '../lib/core/limits.ts';
import type { MetricsRegistry } from '../lib/platform/metrics.ts';
import { innerHeaders } from '../lib/rpc/control-caller.ts';
import { formatEndpoint } from '../lib/rpc/endpoint.ts';
import { ERROR_CODE_HEADER } from '../lib/rpc/http-direct.ts';
import { toCubeError } from '../lib/rpc/http-front.ts';
import { DICT_METHOD, DICT_SERVICE } from '../proto/dict.ts';
import { LOOKUP_METHOD, LOOKUP_SERVICE } from '../proto/lookup.ts';
import { CODE_HEADER, REASON_HEADER } from './control-routes.ts';
import type { DictService } from './dict-service.ts';
import type { LookupService } from './lookup-service.ts';
import type { HttpCall, HttpResult } from './thread-protocol.ts';

const PROTOBUF = 'application/proto';
const JSON_TYPE = 'application/json';

export function addLookupRoutes(
  app: FastifyInstance,
  lookup: LookupService,
  dict: DictService,
): void {
  app.post(`/${LOOKUP_SERVICE}/${LOOKUP_METHOD}`, async (request, reply) => {
    const answer = await lookup.answer(bodyOf(request));
    return reply.header('content-type', PROTOBUF).send(answer);
  });
  const shortName = DICT_SERVICE.slice(DICT_SERVICE.lastIndexOf('.') + 1);
  for (const service of [DICT_SERVICE, shortName]) {
    app.route({
      method: ['GET', 'POST'],
      url: `/${service}/${DICT_METHOD}`,
      handler: (request, reply) => seek(dict, request, reply),
      errorHandler: sendBrpcError,
    });
  }
}

/** @param notReady undefined when ready, else the reason */
export function addHealthRoutes(app: FastifyInstance, notReady: () => string | undefined): void {
  app.get('/healthz', async () => 'OK\n');
  app.get('/health', async () => 'OK\n');
  app.get('/readyz', (_request, reply) => {
    const reason = notReady();
    if (reason === undefined) return reply.send('OK\n');
    return reply.status(503).send(`not ready: ${reason}\n`);
  });
}

/** @param ofThreads the values of other threads, to be added */
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

/** Answers a request that came in on another thread. */
export async function answerCall(app: FastifyInstance, call: HttpCall): Promise<HttpResult> {
  const { method, url, body, remoteAddress, certificate } = call;
  const headers = innerHeaders(call.headers, certificate);
  const response = await app.inject({
    ...{ method: method as 'GET', url, headers, remoteAddress },
    ...(body === undefined ? {} : { payload: Buffer.from(body) }),
  });
  const answered: Record<string, string> = {};
  for (const name of ['content-type', ERROR_CODE_HEADER, CODE_HEADER, REASON_HEADER]) {
    const value = response.headers[name];
    if (value !== undefined) answered[name] = String(value);
  }
  return { status: response.statusCode, headers: answered, body: response.rawPayload };
}

/** Why a call failed that `answerCall` answered. */
export function callFailure({ headers, body }: HttpResult): CubeError {
  const code = headers[CODE_HEADER];
  if (code !== undefined) {
    return new CubeError(code as ErrorCode, decodeURI(headers[REASON_HEADER] ?? ''));
  }
  const json = JsonReader.parse(new TextDecoder().decode(body), 'answer');
  return new CubeError(json.field('code').string() as ErrorCode, json.field('error').string());
}

function bodyOf(request: FastifyRequest): Uint8Array {
  return request.body instanceof Uint8Array ? request.body : new Uint8Array(0);
}

/** As brpc: the content type decides between protobuf and JSON, and the answer has the same. */
async function seek(
  dict: DictService,
  request: FastifyRequest,
  reply: FastifyReply,
): Promise<FastifyReply> {
  const contentType = request.headers['content-type'] ?? JSON_TYPE;
  const body = bodyOf(request);
  reply.header('content-type', contentType);
  if (contentType.startsWith(PROTOBUF)) return reply.send(await dict.answer(body));
  // As bytes: of a string the framework would extend the content type by a charset.
  return reply.send(Buffer.from(await dict.answerJsonLater(new TextDecoder().decode(body))));
}

/** An error as brpc sends it over HTTP: its number in a header, and a line of text. */
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
      `[${formatEndpoint(localAddress, localPort)}][E${brpc}]${failure.message.slice(0, ERROR_TEXT_CHARS_MAX)}`,
    );
}
