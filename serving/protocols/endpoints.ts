/**
 * The one port of a serving process. Each protocol registers its routes here (`registerCtr`,
 * `registerPaddle`, …) and handles every prediction in three steps: parse the request,
 * `handlePrediction` (handle-prediction.ts), format the response. The health, status and metrics
 * routes of the process are here too (docs/wire/serving.md).
 */
import type { FastifyReply, FastifyRequest } from 'fastify';
import { CubeError } from '../../lib/core/errors.ts';
import type { VariantTarget } from '../../lib/core/experiment.ts';
import type { ServerLimits } from '../../lib/core/limits.ts';
import { GrpcServer } from '../../lib/rpc/grpc-server.ts';
import { type HttpAccessOptions, HttpServer } from '../../lib/rpc/http-server.ts';
import { OnePortServer, type OnePortServerOptions } from '../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../lib/rpc/rpc-routes.ts';
import type { ProtocolContext } from './handle-prediction.ts';

/** Where protocols register their routes. */
export interface Endpoints {
  /** baidu_std. */
  readonly routes: RpcRoutes;
  readonly http: HttpServer;
  readonly grpc: GrpcServer;
}

/** Files in proto/ for gRPC reflection. */
const PROTO_FILES: readonly string[] = [
  'ctr.proto',
  'general-model.proto',
  'oip.proto',
  'pipeline.proto',
  'tensorflow-serving.proto',
];
/** Ours, and TensorFlow Serving's. */
const METRICS_PATHS = ['/metrics', '/monitoring/prometheus/metrics'] as const;
const PATHS = 'POST /v1/ctr:predict, /v2/models/{model}/infer, GET /v2, /v1/status, /metrics';

/** @param definitions of further .proto files in protobufjs' JSON form, for gRPC reflection */
export function createEndpoints(
  { models, admission, logger }: ProtocolContext,
  limits: ServerLimits,
  access: HttpAccessOptions = {},
  definitions?: object,
): Endpoints {
  const { gate } = access;
  const health = () =>
    models.status().map(({ model, active, unavailable, missingStep }) => ({
      name: model,
      serving: active !== undefined && (unavailable ?? missingStep) === undefined,
    }));
  const isReady = (): boolean => findNotReadyReason({ models, admission }) === undefined;
  return {
    routes: new RpcRoutes(),
    http: new HttpServer(limits, logger, PATHS, access),
    grpc: new GrpcServer({
      limits,
      logger,
      protoFiles: PROTO_FILES,
      definitions,
      isReady,
      health,
      gate,
    }),
  };
}

/**
 * Call it after all protocols are registered.
 * @param protocols the accepted ones of grpc and baidu_std; HTTP always is
 */
export function createServer(
  { routes, http, grpc }: Endpoints,
  protocols: readonly string[],
  options: Pick<OnePortServerOptions, 'limits' | 'logger' | 'tls' | 'tlsOnly' | 'gate'>,
): OnePortServer {
  return new OnePortServer({
    routes: protocols.includes('baidu_std') ? routes : undefined,
    http,
    grpc: protocols.includes('grpc') ? grpc : undefined,
    ...options,
  });
}

/**
 * A process is ready when every model that is not unloaded serves a version, and can look up in
 * every shard if its policy fails requests otherwise. Unloading a step of an ensemble takes that
 * ensemble away, not the process. @returns undefined when ready
 */
export function findNotReadyReason({
  models,
  admission,
}: Pick<ProtocolContext, 'models' | 'admission'>): string | undefined {
  if (admission.closed) return 'stopping';
  try {
    for (const { model, unloaded, unavailable } of models.status()) {
      if (unloaded) continue;
      models.find(model);
      if (unavailable !== undefined) return `requests for ${model} fail: ${unavailable}`;
    }
    return undefined;
  } catch (error) {
    return CubeError.from(error).message;
  }
}

/**
 * The running experiments, who wrote those of a repository when and why, and why a newer entry of a
 * log does not apply.
 */
export function describeExperiments({
  experimentLogs,
  models,
}: Pick<ProtocolContext, 'experimentLogs' | 'models'>): object {
  const { experiments } = experimentLogs.current();
  const { origins, problems } = experimentLogs;
  const isLoaded = (name: string, { model = name, channel, version }: VariantTarget): boolean => {
    try {
      models.find(model, {
        ...(channel !== undefined && { label: channel }),
        ...(version !== undefined && { version }),
      });
      return true;
    } catch {
      return false;
    }
  };
  return {
    experiments: experiments.map(({ name, model, slot, variants, overrides }) => ({
      name,
      model,
      ...(slot !== undefined && { slot }),
      overrides: overrides.size,
      variants: variants.map(({ target, ...variant }) => ({
        ...variant,
        ...target,
        loaded: isLoaded(model, target),
      })),
    })),
    experimentLogs: origins,
    experimentProblems: problems,
  };
}

/**
 * Liveness, readiness, status and metrics.
 * @param describeReload the state of reloads; absent: the process has no files to reload
 */
export function registerStatusRoutes(
  { http: { app } }: Endpoints,
  context: ProtocolContext,
  describeReload?: () => object,
): void {
  const { models, admission, metrics } = context;
  const ready = async (_request: FastifyRequest, reply: FastifyReply): Promise<object> => {
    const reason = findNotReadyReason(context);
    if (reason === undefined) return { live: true, ready: true };
    reply.code(503);
    return { live: true, ready: false, error: reason };
  };
  for (const path of ['/healthz', '/v2/health/live']) app.get(path, async () => ({ live: true }));
  for (const path of ['/readyz', '/v2/health/ready']) app.get(path, ready);
  app.get('/v1/status', async () => {
    const [first] = models.status();
    return {
      ready: findNotReadyReason(context) === undefined,
      stopping: admission.closed,
      inFlight: admission.inFlight,
      ...first,
      models: models.status(),
      ...describeExperiments(context),
      ...(describeReload !== undefined && { reload: describeReload() }),
    };
  });
  app.get('/v1/shadows', async () => ({
    shadows: metrics.shadows.comparisons.map(({ tally, ...versions }) => {
      return { ...versions, ...tally.toJson() };
    }),
  }));
  for (const path of METRICS_PATHS) {
    app.get(path, async (_request, reply) => {
      reply.type(metrics.contentType);
      return metrics.formatMetrics();
    });
  }
}
