/**
 * Assembles a serving process: configuration, models (versions, stores, model workers, predictors),
 * and protocols on one port. Starting never waits for a version: the process listens at once, and
 * becomes ready when every model serves a version.
 */
import { ConsoleFeed } from '../lib/console/console-feed.ts';
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { ControlAccess } from '../lib/rpc/control-access.ts';
import type { OnePortServer } from '../lib/rpc/one-port-server.ts';
import type { ServingConfig } from './config/serving-config.ts';
import { ServingConsoleSource } from './metrics/console-source.ts';
import { RequestLog } from './metrics/request-log.ts';
import { ServingMetrics } from './metrics/serving-metrics.ts';
import { openModels } from './models/open-models.ts';
import { Admission } from './protocols/admission.ts';
import { registerServingConsole } from './protocols/console.ts';
import { registerCtr } from './protocols/ctr.ts';
import {
  createEndpoints,
  createServer,
  type Endpoints,
  findNotReadyReason,
  registerStatusRoutes,
} from './protocols/endpoints.ts';
import type { ProtocolContext } from './protocols/handle-prediction.ts';
import { registerKserveGrpc } from './protocols/kserve-grpc.ts';
import { registerKserveRest } from './protocols/kserve-rest.ts';
import { registerModelFeatures } from './protocols/model-features.ts';
import { registerOpenApi } from './protocols/operations.ts';
import { registerPaddle } from './protocols/paddle.ts';
import { createServingLimits } from './protocols/request-limits.ts';
import { SliceQueue } from './protocols/slice-queue.ts';
import { registerTfs } from './protocols/tfs.ts';
import { registerTritonRest } from './protocols/triton-rest.ts';

export interface ServingOptions {
  readonly config: ServingConfig;
  readonly logger: Logger;
}

export interface Serving extends Stoppable {
  /** The bound host:port. */
  readonly address: string;
}

/** @throws CubeError when a repository or a store cannot be opened, or the port is taken */
export async function startServing({ config, logger }: ServingOptions): Promise<Serving> {
  const admission = new Admission(config.inFlightMax);
  const metrics = new ServingMetrics();
  const models = await openModels({
    models: config.models,
    modelRepository: config.modelRepository,
    trustedKeysPath: config.trustedKeysPath,
    events: metrics,
    logger,
  });
  metrics.observe(admission, models.registry);
  metrics.addNames(config.metricNames, models.registry);
  metrics.observeRecording(models.recorders);
  const context: ProtocolContext = {
    models: models.registry,
    predictor: models.predictor,
    admission,
    metrics,
    requestLog: new RequestLog(logger, config.requestLog),
    slices: new SliceQueue(systemClock),
    logger,
    timeoutMs: config.timeoutMs,
    clock: systemClock,
    access: new ControlAccess({ tokenFile: config.controlTokenFile, logger }),
    onPrediction: (request) => {
      if ('bundle' in request) models.recorders.record(request.bundle, request.rows);
    },
  };
  const feed = createConsoleFeed(context);
  const port = createProtocolServer(context, config, feed);
  let address: string;
  try {
    address = await port.listen(config.host, config.port);
  } catch (error) {
    await models.stop();
    throw error;
  }
  const served = config.models.map(({ name, store }) => ({ model: name, store: store.kind }));
  logger.info({ address, models: served }, 'listening');
  models.registry.start();
  return {
    address,
    async stop() {
      await admission.close();
      feed.close();
      await port.stop();
      await models.stop();
    },
  };
}

/** Requests make the feed sample, so that an idle process does nothing for the console. */
function createConsoleFeed(context: ProtocolContext): ConsoleFeed {
  const { models, metrics, admission } = context;
  const source = new ServingConsoleSource({
    models,
    metrics,
    admission,
    findNotReadyReason: () => findNotReadyReason(context),
  });
  const feed = new ConsoleFeed(source);
  metrics.onRequest = () => feed.touch();
  return feed;
}

/** Registers every protocol on one port, which does not listen yet. */
function createProtocolServer(
  context: ProtocolContext,
  { services, protocols, messageBytes }: ServingConfig,
  feed: ConsoleFeed,
): OnePortServer {
  const limits = createServingLimits(messageBytes);
  const endpoints = createEndpoints(context, limits);
  registerProtocols(endpoints, context, services, feed);
  const { logger } = context;
  return createServer(endpoints, protocols, { limits, logger });
}

/** Registers the routes of every protocol, and their description. */
export function registerProtocols(
  endpoints: Endpoints,
  context: ProtocolContext,
  services: ServingConfig['services'],
  feed: ConsoleFeed,
): void {
  registerServingConsole(endpoints, context.models, feed);
  registerStatusRoutes(endpoints, context);
  registerKserveRest(endpoints, context);
  registerTritonRest(endpoints, context);
  registerKserveGrpc(endpoints, context);
  registerTfs(endpoints, context);
  registerModelFeatures(endpoints, context.models);
  registerPaddle(endpoints, context, services);
  registerCtr(endpoints, context);
  registerOpenApi(
    endpoints,
    services.map(({ name }) => name),
  );
}
