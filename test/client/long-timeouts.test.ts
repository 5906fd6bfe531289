/** Timeouts longer than the timers of Node can be. */
import assert from 'node:assert/strict';
import { once } from 'node:events';
import { createServer } from 'node:http';
import type { AddressInfo } from 'node:net';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { HttpConnections } from '../../lib/client/http-connections.ts';
import { HttpPoster } from '../../lib/client/http-poster.ts';
import { NO_CREDENTIALS } from '../../lib/rpc/credentials.ts';

const BODY = new Uint8Array(1);

/** Starts a server that answers after a moment. @returns host:port */
async function startServer(t: TestContext): Promise<string> {
  const server = createServer(async (_request, response) => {
    await sleep(50);
    response.setHeader('content-type', 'application/proto').end('ok');
  });
  server.listen(0, '127.0.0.1');
  await once(server, 'listening');
  t.after(() => {
    server.closeAllConnections();
    server.close();
  });
  return `127.0.0.1:${(server.address() as AddressInfo).port}`;
}

test('a call over HTTP with a timeout of a month, or none, gets its answer', async (t) => {
  const endpoint = await startServer(t);
  const url = new URL(`http://${endpoint}/`);
  const poster = new HttpPoster(url, 1, NO_CREDENTIALS);
  const connections = new HttpConnections(endpoint, 'pooled', {
    backoffMaxMs: 1_000,
    connectTimeoutMs: Number.POSITIVE_INFINITY,
  });
  t.after(() => {
    poster.close();
    connections.close();
  });
  for (const timeoutMs of [2 ** 31, Number.POSITIVE_INFINITY]) {
    assert.equal((await poster.post(url, {}, BODY, timeoutMs)).text, 'ok');
    const { payload } = await connections.call('s', 'm', BODY, BODY, timeoutMs);
    assert.equal(Buffer.from(payload).toString(), 'ok');
  }
});
