/**
 * Assembles the HTTP endpoints of `cube-agent run` and `cube-agent controller`. Commands import
 * this file only when they listen, since it loads the HTTP server.
 */
import type { Finding } from '../../lib/core/findings.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import {
  createAgentCredentials,
  createServerCredentials,
} from '../../lib/rpc/credential-options.ts';
import { AgentConsoleSource } from '../console/agent-source.ts';
import { ControllerConsoleSource } from '../console/controller-source.ts';
import { FleetWatch } from '../console/fleet-watch.ts';
import { forwardServings } from '../console/forward-serving.ts';
import { GateRuns } from '../console/gate-runs.ts';
import { ACTIONS, findActionScope, runAction } from '../console/version-actions.ts';
import { createVersionRoutes } from '../console/version-routes.ts';
import { AGENT_CALL_PATH, CODE_HEADER, handleAgentCall } from '../cube/agent-api.ts';
import { diagnose } from '../doctor/doctor.ts';
import { AGENT_POKE, AGENT_STATUS } from '../fleet/agent-client.ts';
import { listServers } from '../fleet/fleet-view.ts';
import { type EndpointCredentials, HttpEndpoint, type Route } from '../fleet/http-endpoint.ts';
import type { Agent } from '../host/agent.ts';
import { createAgentMetrics } from '../host/agent-metrics.ts';
import { buildHostStatus } from '../host/host-status.ts';
import type { BundleController } from '../rollout/bundle-controller.ts';
import type { Controller } from '../rollout/controller.ts';
import { createControllerMetrics, createControllerRoutes } from '../rollout/controller-routes.ts';
import type { ControllerConfig } from '../rollout/rollout-config.ts';
import { readFleet } from './options.ts';

/** @throws CubeError when a token or certificate file is unreadable or malformed */
export function createAgentEndpoint(
  agent: Agent,
  credentials: EndpointCredentials,
  logger: Logger,
): HttpEndpoint {
  const { config } = agent;
  const locations = config.servers.map((address) => ({ address, shard: undefined }));
  const watch = new FleetWatch(() => locations, createServerCredentials(config));
  return new HttpEndpoint({
    credentials,
    routes: [...createAgentRoutes(agent), createCubeRoute(agent)],
    metrics: createAgentMetrics(agent),
    console: new AgentConsoleSource(agent, watch),
    healthProblem: () => (agent.isHealthy ? undefined : 'the agent has stopped polling'),
    logger,
  });
}

/** @throws CubeError when a token or certificate file is unreadable or malformed */
export function createControllerEndpoint(
  controller: Controller,
  config: ControllerConfig,
  logger: Logger,
): HttpEndpoint {
  const { bundles } = controller;
  const listAll = () => {
    const fleet = readFleet(config.fleetFile);
    return config.bundles.flatMap(({ name }) => listServers(fleet, name));
  };
  const watch = new FleetWatch(listAll, createServerCredentials(config));
  const gates = new GateRuns(() => source.refresh());
  const source = new ControllerConsoleSource({
    bundles,
    configs: config.bundles,
    watch,
    gates,
    diagnose: (bundle) => diagnoseBundle(bundle, config),
  });
  return new HttpEndpoint({
    credentials: config,
    console: source,
    addConsoleRoutes: (app, guard) => forwardServings(app, source.servings, guard),
    routes: [
      ...createControllerRoutes(controller),
      createActionRoute(controller, source, gates),
      ...createVersionRoutes(bundles),
    ],
    metrics: createControllerMetrics(controller.bundles),
    healthProblem: () => (controller.isHealthy ? undefined : 'the controller has stopped polling'),
    logger,
  });
}

/** The checks of `cube-agent doctor`, without reading layers. */
function diagnoseBundle(
  { options: { bundle, repository, policy } }: BundleController,
  config: ControllerConfig,
): Promise<Finding[]> {
  const channel = policy.channels.at(-1)?.channel ?? '';
  return diagnose({
    repository,
    target: { repository: config.repository, bundle, channel },
    deep: false,
    staleMs: undefined,
    fleet: { path: config.fleetFile, read: () => readFleet(config.fleetFile) },
    servings: config.bundles.find(({ name }) => name === bundle)?.serving ?? [],
    serverCredentials: createServerCredentials(config),
    agentCredentials: createAgentCredentials(config),
    onBytes: () => undefined,
  });
}

/** The actions of the console on versions. The controller and the agents then poll at once. */
function createActionRoute(
  controller: Controller,
  source: ControllerConsoleSource,
  gates: GateRuns,
): Route {
  return {
    method: 'POST',
    path: '/controller/v1/actions/:action',
    summary: `Change a version: ${ACTIONS.join(', ')}`,
    scope: ({ params }) => findActionScope((params as { action: string }).action),
    handle: async ({ params, body }) => {
      const { action } = params as { action: string };
      const result = await runAction(controller.bundles, gates, action, body);
      controller.poke();
      source.refresh();
      const fleets = controller.bundles.map(({ options }) => options.fleet.notifyChannelMoved());
      await Promise.allSettled(fleets);
      return result;
    },
  };
}

/** Status, and a poke that makes the agent poll now. */
function createAgentRoutes(agent: Agent): Route[] {
  return [
    {
      method: 'GET',
      path: AGENT_STATUS,
      scope: 'metrics',
      summary: 'Versions, servers and problems of the host',
      handle: () => buildHostStatus(agent),
    },
    {
      method: 'POST',
      path: AGENT_POKE,
      scope: 'control:stage',
      summary: 'Poll now',
      handle: () => {
        agent.poke();
        return { poked: true };
      },
    },
  ];
}

/** The calls of Cube's own agent, for tools that still send them. */
function createCubeRoute(agent: Agent): Route {
  const localAgent = {
    get healthy() {
      return agent.isHealthy;
    },
    status: () => buildHostStatus(agent),
    poke: () => agent.poke(),
  };
  return {
    method: 'ALL',
    path: AGENT_CALL_PATH,
    scope: ({ method }) => (method === 'GET' ? 'metrics' : 'control:stage'),
    summary: "Calls of Cube's agent",
    handle: ({ method, params, body }, reply) => {
      const { api } = params as { api: string };
      const text = body instanceof Uint8Array ? new TextDecoder().decode(body) : '';
      const result = handleAgentCall({ method, api, body: text }, localAgent);
      if (result.code !== undefined) reply.header(CODE_HEADER, result.code);
      return result.reply;
    },
  };
}
