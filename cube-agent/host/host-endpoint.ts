/**
 * Where an agent answers: status, poke, metrics and health over HTTP. Without a token and certificates only this host is answered,
 * and no web page; with them whoever bears the one or shows one of the others.
 */
import type { FastifyRequest } from 'fastify';
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../../lib/core/limits.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import { callerOf } from '../../lib/rpc/control-caller.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { HttpFront } from '../../lib/rpc/http-front.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { RpcRoutes } from '../../lib/rpc/rpc-routes.ts';
import {
  answerCubeCall,
  CODE_HEADER,
  type CommandHost,
  CUBE_AGENT_PATH,
} from '../cube/agent-commands.ts';
import { AGENT_POKE, AGENT_STATUS } from '../fleet/agent-client.ts';
import { type EndpointFiles, openAccess } from '../fleet/endpoint-access.ts';
import type { Agent } from './agent.ts';
import { agentMetrics } from './agent-metrics.ts';
import { hostStatus } from './host-status.ts';

/** A controller, a scraper and a few people ask; nobody sends much. */
const LIMITS: ServerLimits = {
  ...DEFAULT_SERVER_LIMITS,
  connections: 256,
  httpInFlight: 64,
  httpBodyBytes: 64 << 10,
  frameBytes: 64 << 10,
};

export class HostEndpoint implements Stoppable {
  readonly #server: OnePortServer;
  readonly #logger: Logger;

  /** @throws CubeError when a file of token or certificates is unreadable, or is not what it should be */
  constructor(agent: Agent, config: EndpointFiles, logger: Logger) {
    const http = new HttpFront(LIMITS, logger);
    const { access, tls } = openAccess(config, logger);
    const onRequest = async (request: FastifyRequest): Promise<void> =>
      access.check(callerOf(request));
    const metrics = agentMetrics(agent);
    const cubeHost: CommandHost = {
      get healthy() {
        return agent.isHealthy;
      },
      status: () => hostStatus(agent),
      poke: () => agent.poke(),
    };
    http.app.get(AGENT_STATUS, { onRequest }, async () => hostStatus(agent));
    http.app.post(AGENT_POKE, { onRequest }, async () => {
      agent.poke();
      return { poked: true };
    });
    http.app.all<{ Params: { api: string } }>(
      CUBE_AGENT_PATH,
      { onRequest },
      async ({ method, params, body }, reply) => {
        const text = body instanceof Uint8Array ? new TextDecoder().decode(body) : '';
        const cube = answerCubeCall({ method, api: params.api, body: text }, cubeHost);
        if (cube.code !== undefined) reply.header(CODE_HEADER, cube.code);
        return cube.reply;
      },
    );
    http.app.get('/metrics', async (_request, reply) =>
      reply.header('content-type', metrics.contentType).send(await metrics.metricsText()),
    );
    http.app.get('/healthz', (_request, reply) =>
      agent.isHealthy ? reply.send('OK\n') : reply.status(503).send('the agent does not look\n'),
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
