/** The OpenAPI document describes exactly the routes that cube-server registers. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { fastify } from 'fastify';
import { addControlRoutes, type ControlRoutesOptions } from '../../cube-server/control-routes.ts';
import type { DictService } from '../../cube-server/dict-service.ts';
import {
  addHealthRoutes,
  addLookupRoutes,
  addMetricsRoute,
} from '../../cube-server/http-routes.ts';
import type { LookupService } from '../../cube-server/lookup-service.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { MetricsRegistry } from '../../lib/platform/metrics.ts';
import { ControlAccess } from '../../lib/rpc/control-access.ts';

test('every route is described, and nothing else', async () => {
  const app = fastify();
  const routes: string[] = [];
  app.addHook('onRoute', ({ method, url }) => {
    for (const name of [method].flat()) if (name !== 'HEAD') routes.push(`${name} ${url}`);
  });
  // Registering routes calls no service.
  addLookupRoutes(app, {} as LookupService, {} as DictService, 1 << 20);
  const logger = createLogger('test', { level: 'silent' });
  const access = new ControlAccess({ tokenFile: undefined, logger });
  addControlRoutes(app, { access } as ControlRoutesOptions);
  addMetricsRoute(app, new MetricsRegistry(false), async () => []);
  addHealthRoutes(app, () => undefined);
  const { paths } = (await app.inject('/openapi.json')).json() as {
    paths: Record<string, object>;
  };
  const described = Object.entries(paths).flatMap(([path, methods]) =>
    Object.keys(methods).map((method) => `${method.toUpperCase()} ${path}`),
  );
  assert.deepEqual(described.toSorted(), routes.toSorted());
});
