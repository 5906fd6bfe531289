/** Responses to pages of other origins. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { DEFAULT_SERVER_LIMITS } from '../../lib/core/limits.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { HttpServer } from '../../lib/rpc/http-server.ts';
import { OnePortServer } from '../../lib/rpc/one-port-server.ts';

const ORIGIN = 'https://shop.example';

test('a compressed response differs by origin and by encoding', async (t) => {
  const limits = DEFAULT_SERVER_LIMITS;
  const logger = createLogger('test', { level: 'silent' });
  const http = new HttpServer(limits, logger, '', { corsOrigins: [ORIGIN] });
  const type = 'text/plain';
  const body = 'x'.repeat(5_000);
  http.app.get('/routed', async () => body);
  http.directRoutes.add({
    path: '/direct',
    contentTypes: [type],
    handler: async () => ({ type, body }),
  });
  const server = new OnePortServer({ http, limits, logger });
  const address = await server.listen('127.0.0.1', 0);
  t.after(() => server.stop());
  for (const [method, path] of [
    ['GET', 'routed'],
    ['POST', 'direct'],
  ] as const) {
    const varies = async (encoding: string, origin?: string): Promise<string | null> => {
      const headers = { 'accept-encoding': encoding, 'content-type': type };
      const response = await fetch(`http://${address}/${path}`, {
        method,
        headers: origin === undefined ? headers : { ...headers, origin },
        ...(method === 'POST' && { body: 'x' }),
      });
      assert.equal(await response.text(), body);
      return response.headers.get('vary');
    };
    assert.equal(await varies('gzip', ORIGIN), 'origin, accept-encoding');
    assert.equal(await varies('identity', ORIGIN), 'origin');
    assert.equal(await varies('gzip'), 'accept-encoding');
  }
});
