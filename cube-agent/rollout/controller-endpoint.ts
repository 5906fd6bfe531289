/** Where a controller answers: status, poke, metrics and health over HTTP, to whom an agent answers too. */
import type { FastifyRequest } from 'fastify';
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../../lib/core/limits.ts';
import { ROLLOUT_STATES } from '../../lib/core/rollout.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { MetricsRegistry } from '../../lib/platform/metrics.ts';
import { callerOf } from '../../lib/rpc/control-caller.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { HttpFront } from '../../lib/rpc/http-front.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../lib/rpc/rpc-routes.ts';
import { type EndpointFiles, openAccess } from '../fleet/endpoint-access.ts';
import type { BundleController } from './bundle-controller.ts';
import type { Controller } from './controller.ts';
import { rolloutStatus } from './rollout-status.ts';

const LIMITS: ServerLimits = {
  ...DEFAULT_SERVER_LIMITS,
  connections: 256,
  httpInFlight: 64,
  httpBodyBytes: 64 << 10,
  frameBytes: 64 << 10,
};

export class ControllerEndpoint implements Stoppable {
  readonly #server: OnePortServer;
  readonly #logger: Logger;

  /** @throws CubeError when a file of token or certificates is unreadable, or is not what it should be */
  constructor(controller: Controller, config: EndpointFiles, logger: Logger) {
    const http = new HttpFront(LIMITS, logger);
    const { access, tls } = openAccess(config, logger);
    const onRequest = async (request: FastifyRequest): Promise<void> =>
      access.check(callerOf(request));
    const metrics = controllerMetrics(controller.bundles);
    http.app.get('/controller/v1/status', { onRequest }, async () => ({
      format: 1,
      bundles: controller.bundles.map(bundleStatus),
    }));
    http.app.post('/controller/v1/poke', { onRequest }, async () => {
      controller.poke();
      return { poked: true };
    });
    http.app.get('/metrics', async (_request, reply) =>
      reply.header('content-type', metrics.contentType).send(await metrics.metricsText()),
    );
    http.app.get('/healthz', (_request, reply) =>
      controller.isHealthy
        ? reply.send('OK\n')
        : reply.status(503).send('the controller does not look\n'),
    );
    this.#logger = logger;
    this.#server = new OnePortServer({
      routes: new RpcRoutes(),
      http,
      tls,
      limits: LIMITS,
      logger,
    });
  }

  /** @throws CubeError IO when the port is taken */
  async listen(endpoint: string): Promise<void> {
    const { host, port } = parseEndpoint(endpoint);
    this.#logger.info({ address: await this.#server.listen(host, port) }, 'listening');
  }

  async stop(): Promise<void> {
    await this.#server.stop();
  }
}

function bundleStatus({ options, progress, problems }: BundleController): object {
  return {
    bundle: options.bundle,
    rollouts: [...progress].map(([version, seen]) => rolloutStatus(version, seen)),
    problems,
  };
}

function controllerMetrics(bundles: readonly BundleController[]): MetricsRegistry {
  const metrics = new MetricsRegistry();
  metrics.collectedGauge({
    name: 'hypercube_rollouts',
    help: 'Rollouts by the state that they are in.',
    labels: ['bundle', 'state'],
    collect: (set) => {
      for (const { options, progress } of bundles) {
        const states = [...progress.values()].map(({ state }) => state);
        for (const state of ROLLOUT_STATES) {
          const count = states.filter((candidate) => candidate === state).length;
          set({ bundle: options.bundle, state }, count);
        }
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_rollouts_blocked',
    help: 'Rollouts that wait for people: a pin, or a channel that cannot go back.',
    labels: ['bundle'],
    collect: (set) => {
      for (const { options, progress } of bundles) {
        const steps = [...progress.values()].map(({ step }) => step);
        const blocked = steps.filter((step) => step.kind === 'wait' && step.isBlocked);
        set({ bundle: options.bundle }, blocked.length);
      }
    },
  });
  metrics.collectedGauge({
    name: 'hypercube_rollout_problems',
    help: 'Rollouts that cannot go on: the repository or the fleet cannot be read.',
    labels: ['bundle'],
    collect: (set) => {
      for (const { options, problems } of bundles) {
        set({ bundle: options.bundle }, problems.length);
      }
    },
  });
  metrics.collectedCounter({
    name: 'hypercube_rollout_steps_total',
    help: 'Steps taken by this process, by kind.',
    labels: ['bundle', 'kind'],
    collect: (set) => {
      for (const { options, steps } of bundles) {
        for (const [kind, count] of steps) set({ bundle: options.bundle, kind }, count);
      }
    },
  });
  return metrics;
}
