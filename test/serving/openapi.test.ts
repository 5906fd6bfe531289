/** The OpenAPI document describes exactly the routes that serving registers. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import type { ConsoleFeed } from '../../lib/console/console-feed.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { toOpenApiPath } from '../../lib/rpc/openapi.ts';
import { createEndpoints } from '../../serving/protocols/endpoints.ts';
import type { ProtocolContext } from '../../serving/protocols/handle-prediction.ts';
import { createServingLimits } from '../../serving/protocols/request-limits.ts';
import { registerProtocols } from '../../serving/server.ts';

/** Refused as a whole, whatever the path and method. */
const REFUSED = /^\/v2\/(system|cuda)sharedmemory\//;
const VERBS = ['predict', 'classify', 'regress'];

test('every route is described, and nothing else', async () => {
  const logger = createLogger('test', { level: 'silent' });
  const models = { status: () => [] };
  // Registering routes needs no models.
  const context = { logger, models, admission: {}, metrics: {} } as unknown as ProtocolContext;
  const feed = {} as ConsoleFeed;
  const endpoints = createEndpoints(context, createServingLimits(1 << 20));
  const { app } = endpoints.http;
  const routes = new Set<string>();
  app.addHook('onRoute', ({ method, url }) => {
    for (const name of [method].flat()) {
      if (name === 'HEAD' || REFUSED.test(url)) continue;
      const path = toOpenApiPath(url);
      const isTfsCall = name === 'POST' && path.startsWith('/v1/models/');
      for (const verb of isTfsCall ? VERBS : ['']) {
        routes.add(`${name} ${path}${verb === '' ? '' : `:${verb}`}`);
      }
    }
  });
  const services = [{ name: 'CtrService', model: 'ctr' }];
  const engine = { run: async () => assert.fail('not called') };
  const set = { service: { name: 'ctr', engine }, messages: undefined, release: () => undefined };
  const graphs = { services, canReload: true, current: set, acquire: () => set, status: {} };
  const reload = async () => undefined;
  registerProtocols(endpoints, context, { graphs, feed, reload } as never);
  await app.ready();
  const response = await app.inject('/openapi.json');
  const document = response.json() as {
    openapi: string;
    paths: Record<string, Record<string, { responses: object }>>;
  };
  assert.equal(document.openapi, '3.1.0');
  const described = Object.entries(document.paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  );
  assert.deepEqual(described.toSorted(), [...routes].toSorted());
});
