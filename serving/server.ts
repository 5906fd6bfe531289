/**
 * A serving process, put together: configuration → models (versions, stores, model workers, predictors) → doors on one port.
 * Starting it never waits for a version: it listens at once and is not ready until each model answers.
 */
import { systemClock } from '../lib/platform/clock.ts';
import type { Stoppable } from '../lib/platform/lifecycle.ts';
import type { Logger } from '../lib/platform/logs.ts';
import { ControlAccess } from '../lib/rpc/control-access.ts';
import type { OnePortServer } from '../lib/rpc/one-port-server.ts';
import { Admission } from './admission.ts';
import type { ServingConfig } from './config/serving-config.ts';
import { addCtrDoor } from './doors/ctr.ts';
import { createFronts, createPort, type DoorContext } from './doors/fronts.ts';
import { addKserveGrpc } from './doors/kserve-grpc.ts';
import { addKserveRest } from './doors/kserve-rest.ts';
import { addPaddleDoor } from './doors/paddle.ts';
import { addProcessRoutes } from './doors/process.ts';
import { addTfsDoor } from './doors/tfs.ts';
import { addTritonRest } from './doors/triton-rest.ts';
import { openModels } from './models/open-models.ts';
import { SERVING_LIMITS } from './serving-limits.ts';
import { ServingMetrics } from './serving-metrics.ts';

export interface ServingOptions {
  readonly config: ServingConfig;
  readonly logger: Logger;
}

export interface Serving extends Stoppable {
  /** host:port as bound. */
  readonly address: string;
}

/** @throws CubeError when a repository or a store cannot be opened, or the port is taken */
export async function startServing({ config, logger }: ServingOptions): Promise<Serving> {
  const admission = new Admission(config.inFlightMax);
  const metrics = new ServingMetrics();
  const models = await openModels({
    ...{ models: config.models, trustedKeysPath: config.trustedKeysPath },
    ...{ events: metrics, logger },
  });
  metrics.observe(admission, models.registry);
  metrics.observeRecording(models.recorders);
  const context: DoorContext = {
    ...{ models: models.registry, predictor: models.predictor, admission, metrics, logger },
    timeoutMs: config.timeoutMs,
    clock: systemClock,
    access: new ControlAccess({ tokenFile: config.controlTokenFile, logger }),
    onAnswered: ({ bundle, rows }) => models.recorders.offer(bundle, rows),
  };
  const port = openPort(context, config.services);
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
      await port.stop();
      await models.stop();
    },
  };
}

/** Every door on one port, which does not listen yet. */
function openPort(context: DoorContext, services: ServingConfig['services']): OnePortServer {
  const fronts = createFronts(context, SERVING_LIMITS);
  addProcessRoutes(fronts, context);
  addKserveRest(fronts, context);
  addTritonRest(fronts, context);
  addKserveGrpc(fronts, context);
  addTfsDoor(fronts, context);
  addPaddleDoor(fronts, context, services);
  addCtrDoor(fronts, context);
  return createPort(fronts, SERVING_LIMITS, context.logger);
}
