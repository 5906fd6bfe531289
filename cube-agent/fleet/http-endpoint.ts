/**
 * The HTTP endpoint of an agent or a controller: routes behind access control, and `/metrics` and
 * `/healthz` for every caller. Without a token file and certificates the routes answer only callers
 * on this host and no web page; otherwise they need the token or a trusted client certificate.
 */
import type { FastifyInstance, FastifyReply, FastifyRequest, HTTPMethods } from 'fastify';
import { ConsoleFeed, type ConsoleSource } from '../../lib/console/console-feed.ts';
import { CONSOLE_OPERATIONS, registerConsole } from '../../lib/console/console-routes.ts';
import { DEFAULT_SERVER_LIMITS, type ServerLimits } from '../../lib/core/limits.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { MetricsRegistry } from '../../lib/platform/metrics.ts';
import { ControlAccess } from '../../lib/rpc/control-access.ts';
import { type TlsOptions, toTlsFiles } from '../../lib/rpc/credential-options.ts';
import { parseEndpoint } from '../../lib/rpc/endpoint.ts';
import { HttpServer } from '../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';
import { createOpenApi, type Operations, toOpenApiPath } from '../../lib/rpc/openapi.ts';
import { RpcRoutes } from '../../lib/rpc/rpc-routes.ts';
import { TlsIdentity } from '../../lib/rpc/tls-identity.ts';

/** Callers are a controller, a metrics scraper and a few operators; their requests are small. */
const LIMITS: ServerLimits = {
  ...DEFAULT_SERVER_LIMITS,
  connections: 256,
  /** Open pages of the console count too. */
  httpInFlight: 256,
  httpBodyBytes: 64 << 10,
  frameBytes: 64 << 10,
};

/** The files that decide who may call the routes. */
export interface EndpointCredentials extends TlsOptions {
  readonly tokenFile: string | undefined;
}

export interface Route {
  readonly method: HTTPMethods | 'ALL';
  /** As fastify writes it: "/agent/:api". */
  readonly path: string;
  /** One line for the OpenAPI document. */
  readonly summary: string;
  /** What an API key needs for the route. */
  readonly scope: Parameters<ControlAccess['guard']>[0];
  /** @returns the JSON body of the response */
  readonly handle: (request: FastifyRequest, reply: FastifyReply) => object | Promise<object>;
}

/** Refuses callers that may not call the routes. */
type Guard = (request: FastifyRequest) => Promise<void>;

export interface HttpEndpointOptions {
  readonly credentials: EndpointCredentials;
  readonly routes: readonly Route[];
  readonly metrics: MetricsRegistry;
  /** What the console shows. */
  readonly console: ConsoleSource;
  /** Registers further routes of the console behind the same guard. */
  readonly addConsoleRoutes?: (app: FastifyInstance, guard: Guard) => void;
  /** Undefined while the process is healthy, otherwise the reason: one line of text. */
  readonly healthProblem: () => string | undefined;
  readonly logger: Logger;
}

export class HttpEndpoint implements Stoppable {
  readonly #server: OnePortServer;
  readonly #feed: ConsoleFeed;
  readonly #logger: Logger;

  /** @throws CubeError when a token or certificate file is unreadable or malformed */
  constructor(options: HttpEndpointOptions) {
    const { credentials, routes, metrics, healthProblem, logger } = options;
    const http = new HttpServer(LIMITS, logger);
    const files = toTlsFiles(credentials);
    const access = new ControlAccess({
      tokenFile: credentials.tokenFile,
      acceptCertificates: files !== undefined,
      authFlags: 'token-file or tls-ca',
      logger,
    });
    const { onRequest } = access.guard('metrics');
    for (const { method, path, scope, handle } of routes) {
      http.app.route({
        method: method === 'ALL' ? http.app.supportedMethods : method,
        url: path,
        ...access.guard(scope),
        handler: async (request, reply) => handle(request, reply),
      });
    }
    this.#feed = new ConsoleFeed(options.console);
    registerConsole(http.app, this.#feed, onRequest);
    options.addConsoleRoutes?.(http.app, onRequest);
    const document = createOpenApi('Hypercube agent', {
      ...describeRoutes(routes),
      ...CONSOLE_OPERATIONS,
      'GET /metrics': { summary: 'Metrics in Prometheus text', answer: 'text/plain' },
      'GET /healthz': { summary: 'Whether the process works; 503 if not', answer: 'text/plain' },
      'GET /openapi.json': { summary: 'This document' },
    });
    http.app.get('/openapi.json', async () => document);
    http.app.get('/metrics', async (_request, reply) =>
      reply.header('content-type', metrics.contentType).send(await metrics.metricsText()),
    );
    http.app.get('/healthz', (_request, reply) => {
      const problem = healthProblem();
      return problem === undefined ? reply.send('OK\n') : reply.status(503).send(`${problem}\n`);
    });
    this.#logger = logger;
    this.#server = new OnePortServer({
      routes: new RpcRoutes(),
      http,
      tls: files && new TlsIdentity(files, logger),
      limits: LIMITS,
      logger,
    });
  }

  /** @throws CubeError IO when the port is in use */
  async listen(endpoint: string): Promise<void> {
    const { host, port } = parseEndpoint(endpoint);
    this.#logger.info({ address: await this.#server.listen(host, port) }, 'listening');
  }

  async stop(): Promise<void> {
    this.#feed.close();
    await this.#server.stop();
  }
}

/** A route for all methods is called with GET or POST. */
function describeRoutes(routes: readonly Route[]): Operations {
  return Object.fromEntries(
    routes.flatMap(({ method, path, summary }) =>
      (method === 'ALL' ? ['GET', 'POST'] : [method].flat()).map((name) => [
        `${name} ${toOpenApiPath(path)}`,
        { summary },
      ]),
    ),
  );
}
