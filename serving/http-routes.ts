/**
 * The HTTP doors: KServe v2 REST, `POST /v1/ctr:predict`, health, status and metrics (docs/wire/serving.md). A route reads its
 * body, asks the predictor, writes its answer; everything a request may not do is refused here, with one line that says
 * what was wrong and what to do.
 */
import type { ServerResponse } from 'node:http';
import { type FastifyInstance, type FastifyReply, type FastifyRequest, fastify } from 'fastify';
import { CubeError } from '../lib/core/errors.ts';
import { type Clock, systemClock } from '../lib/platform/clock.ts';
import type { Logger } from '../lib/platform/logs.ts';
import type { Admission } from './admission.ts';
import type { LoadedBundle } from './bundle.ts';
import type { BundleWatcher } from './bundle-watcher.ts';
import type { KeyedRows } from './computed-keys.ts';
import { ctrResponse, readCtrRows } from './ctr.ts';
import { inferResponse, modelMetadata, readInferRequest } from './kserve.ts';
import type { FeatureRows, Prediction, Predictor } from './predictor.ts';
import type { Door, ServingMetrics } from './serving-metrics.ts';

export interface HttpRoutesOptions {
  readonly watcher: BundleWatcher;
  readonly predictor: Predictor;
  readonly admission: Admission;
  readonly metrics: ServingMetrics;
  readonly logger: Logger;
  /** The deadline of a request that names none. */
  readonly timeoutMs: number;
  readonly storeKind: string;
  readonly clock?: Clock;
}

/** A door's way from body to rows, and from prediction to answer. */
interface Exchange {
  readonly rows: FeatureRows | KeyedRows;
  answer(prediction: Prediction): object;
}

interface ModelParams {
  readonly model: string;
  readonly version?: string;
}

interface PredictRoute {
  Params: Partial<ModelParams>;
  Body: Buffer | undefined;
}

type PredictRequest = FastifyRequest<PredictRoute>;
type ModelRequest = FastifyRequest<{ Params: ModelParams }>;

/** Rows of one request; more belong into several, so that no request holds the others up. */
const ROWS_PER_REQUEST_MAX = 10_000;
const BODY_BYTES_MAX = 16 << 20;
const TIMEOUT_MS_MAX = 600_000;
/** For a whole request to arrive: who sends slower holds a place for nothing. */
const REQUEST_TIMEOUT_MS = 60_000;
const SERVER_VERSION = '0.1.0';

/** A server that does not listen yet. */
export function createHttpServer(options: HttpRoutesOptions): FastifyInstance {
  const server = fastify({
    bodyLimit: BODY_BYTES_MAX,
    forceCloseConnections: 'idle',
    requestTimeout: REQUEST_TIMEOUT_MS,
    // Who comes while the server closes gets our own refusal, not fastify's.
    return503OnClosing: false,
    routerOptions: { ignoreTrailingSlash: true, maxParamLength: 200 },
  });
  // Bodies arrive as bytes whatever they are called: the doors decide what they understand.
  server.removeAllContentTypeParsers();
  server.addContentTypeParser('*', { parseAs: 'buffer' }, (_request, body, done) => {
    done(null, body);
  });
  server.setErrorHandler((error, _request, reply) => sendError(reply, error, options.logger));
  server.setNotFoundHandler((request, reply) => {
    const doors = 'POST /v1/ctr:predict, /v2/models/{model}/infer, GET /v2, /healthz, /metrics';
    const where = `${request.method} ${request.url.slice(0, 200)}`;
    const error = new CubeError('NOT_FOUND', `${where}: there is no such door (try ${doors})`);
    sendError(reply, error, options.logger);
  });
  addPredictRoutes(server, options);
  addModelRoutes(server, options);
  addProcessRoutes(server, options);
  return server;
}

function addPredictRoutes(server: FastifyInstance, options: HttpRoutesOptions): void {
  const { watcher } = options;
  const infer = async (request: PredictRequest): Promise<object> =>
    predict('infer', request, options, () => {
      const bundle = requireModel(watcher, request.params as ModelParams);
      if (request.headers['inference-header-content-length'] !== undefined) {
        throw new CubeError(
          'INVALID_ARGUMENT',
          'the binary tensor extension is not supported: send the tensors as JSON',
        );
      }
      const { id, rows } = readInferRequest(bodyText(request), bundle, ROWS_PER_REQUEST_MAX);
      return { bundle, rows, answer: (prediction) => inferResponse(prediction, bundle, id) };
    });
  const ctr = async (request: PredictRequest): Promise<object> =>
    predict('ctr', request, options, () => {
      const bundle = watcher.current;
      const contentType = request.headers['content-type'];
      const rows = readCtrRows(bodyText(request), contentType, bundle, ROWS_PER_REQUEST_MAX);
      return { bundle, rows, answer: (prediction) => ctrResponse(prediction, bundle) };
    });
  const inferRoute = { onRequest: admit('infer', options) };
  server.post<PredictRoute>('/v2/models/:model/infer', inferRoute, infer);
  server.post<PredictRoute>('/v2/models/:model/versions/:version/infer', inferRoute, infer);
  server.post<PredictRoute>('/v1/ctr::predict', { onRequest: admit('ctr', options) }, ctr);
}

/** Lets a request in before its body is read, and counts it out when its connection is done with it. */
function admit(door: Door, { admission, metrics }: HttpRoutesOptions) {
  return async (_request: unknown, reply: { raw: ServerResponse }): Promise<void> => {
    try {
      admission.enter();
    } catch (error) {
      metrics.onFailure(door, CubeError.from(error).code);
      throw error;
    }
    reply.raw.once('close', () => admission.leave());
  };
}

async function predict(
  door: Door,
  request: PredictRequest,
  { predictor, metrics, timeoutMs, clock = systemClock }: HttpRoutesOptions,
  read: () => Exchange & { readonly bundle: LoadedBundle },
): Promise<object> {
  const startMs = clock.nowMs();
  try {
    const deadlineMs = startMs + readTimeout(request, timeoutMs);
    // No await between taking the version and entering it: a version in use is never retired.
    const { bundle, rows, answer } = read();
    const prediction = await predictor.predict(bundle, rows, deadlineMs);
    metrics.onPrediction(door, prediction);
    return answer(prediction);
  } catch (error) {
    metrics.onFailure(door, CubeError.from(error).code);
    throw error;
  } finally {
    metrics.onAnswered(door, (clock.nowMs() - startMs) / 1_000);
  }
}

function addModelRoutes(server: FastifyInstance, { watcher, admission }: HttpRoutesOptions): void {
  const metadata = async (request: ModelRequest): Promise<object> =>
    modelMetadata(requireModel(watcher, request.params));
  const ready = async (request: ModelRequest, reply: FastifyReply): Promise<object> => {
    const { model } = request.params;
    try {
      requireModel(watcher, request.params);
    } catch (error) {
      if (CubeError.from(error).code !== 'NOT_READY') throw error;
      reply.code(503);
      return { name: model, ready: false, error: CubeError.from(error).message };
    }
    if (admission.closed) reply.code(503);
    return { name: model, ready: !admission.closed };
  };
  for (const prefix of ['/v2/models/:model', '/v2/models/:model/versions/:version']) {
    server.get(prefix, metadata);
    server.get(`${prefix}/ready`, ready);
  }
  server.get('/v2', async () => ({ name: 'hypercube', version: SERVER_VERSION, extensions: [] }));
  server.get('/v2/models', async () => ({ models: [watcher.status.bundle] }));
}

function addProcessRoutes(server: FastifyInstance, options: HttpRoutesOptions): void {
  const { watcher, admission, metrics, storeKind } = options;
  const ready = async (_request: FastifyRequest, reply: FastifyReply): Promise<object> => {
    const reason = whyNotReady(watcher, admission);
    if (reason === undefined) return { live: true, ready: true };
    reply.code(503);
    return { live: true, ready: false, error: reason };
  };
  for (const path of ['/healthz', '/v2/health/live'])
    server.get(path, async () => ({ live: true }));
  for (const path of ['/readyz', '/v2/health/ready']) server.get(path, ready);
  server.get('/v1/status', async () => ({
    ready: whyNotReady(watcher, admission) === undefined,
    stopping: admission.closed,
    store: storeKind,
    inFlight: admission.inFlight,
    ...watcher.status,
  }));
  server.get('/metrics', async (_request, reply) => {
    reply.type(metrics.contentType);
    return metrics.text();
  });
}

function whyNotReady(watcher: BundleWatcher, admission: Admission): string | undefined {
  if (admission.closed) return 'stopping';
  try {
    void watcher.current;
    return undefined;
  } catch (error) {
    return CubeError.from(error).message;
  }
}

/** @throws CubeError NOT_FOUND for another model or version, NOT_READY while none is loaded */
function requireModel(watcher: BundleWatcher, { model, version }: ModelParams): LoadedBundle {
  const served = watcher.status.bundle;
  if (model !== served) {
    throw new CubeError(
      'NOT_FOUND',
      `model ${shown(model)} is not served here (served: ${served})`,
    );
  }
  const { current } = watcher;
  if (version !== undefined && version !== current.version) {
    throw new CubeError(
      'NOT_FOUND',
      `version ${shown(version)} of ${model} is not the one served (served: ${current.version})`,
    );
  }
  return current;
}

function shown(name: string): string {
  return JSON.stringify(name.slice(0, 128));
}

function bodyText(request: PredictRequest): string {
  const { body } = request;
  if (body === undefined || body.length === 0) {
    throw new CubeError('INVALID_ARGUMENT', 'the body is empty: send at least one row');
  }
  try {
    return new TextDecoder('utf-8', { fatal: true }).decode(body);
  } catch {
    throw new CubeError('INVALID_ARGUMENT', 'the body is not UTF-8 text');
  }
}

function readTimeout(request: PredictRequest, timeoutMs: number): number {
  const header = request.headers['timeout-ms'];
  if (header === undefined) return timeoutMs;
  const value = typeof header === 'string' && /^\d{1,6}$/.test(header) ? Number(header) : 0;
  if (value >= 1 && value <= TIMEOUT_MS_MAX) return value;
  throw new CubeError(
    'INVALID_ARGUMENT',
    `header timeout-ms: expected an integer in 1..${TIMEOUT_MS_MAX}, got ${JSON.stringify(header)}`,
  );
}

/** The answer of a failed request: the status of its code, and one line. */
function sendError(reply: FastifyReply, thrown: unknown, logger: Logger): void {
  const error = toCubeError(thrown);
  if (error.code === 'INTERNAL' || error.code === 'CORRUPT') {
    logger.error({ code: error.code, error: error.message }, 'a request failed');
  }
  // Closing on a caller that still sends would reset the connection under our answer: the rest is read and dropped.
  if (error.code === 'TOO_LARGE') reply.removeHeader('connection');
  if (error.status.retryable) reply.header('retry-after', '1');
  reply.code(error.status.http).type('application/json');
  reply.send(JSON.stringify({ code: error.code, error: error.message }));
}

/** Fastify's own refusals in our words. */
function toCubeError(thrown: unknown): CubeError {
  const { statusCode, message } = thrown as { statusCode?: number; message: string };
  if (thrown instanceof CubeError || statusCode === undefined || statusCode >= 500) {
    return CubeError.from(thrown);
  }
  if (statusCode === 413) {
    const limit = `the limit is ${BODY_BYTES_MAX} bytes`;
    return new CubeError('TOO_LARGE', `the body is too large (${limit}): send fewer rows at once`);
  }
  return new CubeError('INVALID_ARGUMENT', message);
}
