/**
 * Who may call a serving process: API keys over every protocol, scopes, limits, TLS, address rules
 * and the audit file, over real sockets.
 */
import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { Client, credentials, Metadata, type ServiceError, status } from '@grpc/grpc-js';
import { createCtrRequest } from '../../lib/client/ctr-rows.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { CTR_PREDICT, CTR_SERVICE, encodeCtrRequest } from '../../proto/ctr.ts';
import { GENERAL_MODEL_SERVICE } from '../../proto/general-model.ts';
import { OutputBuffer } from '../../proto/output-buffer.ts';
import { RequestEncoder } from '../../proto/request-encoder.ts';
import { completeConfig, type ServingSettings } from '../../serving/config/serving-config.ts';
import { startServing } from '../../serving/server.ts';
import { KeyCommands } from '../access/support/key-commands.ts';
import { RawConnection, waitUntil } from '../rpc/support/echo-server.ts';
import { encodeRequest } from './support/paddle-client.ts';
import { createPaddleRequest } from './support/protocol-clients.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const ROWS = toyRows(3);
const TSV = 'text/tab-separated-values';

class ServedToy {
  readonly folder: string;
  readonly keys: KeyCommands;
  readonly log: string[] = [];
  address = '';

  private constructor(folder: string) {
    this.folder = folder;
    this.keys = new KeyCommands(join(folder, 'keys.json'));
    this.keys.add('unused', '--scope', 'metrics');
  }

  /** @param prepare adds keys and returns settings */
  static async start(
    t: TestContext,
    prepare: (served: ServedToy) => Partial<ServingSettings> = () => ({}),
  ): Promise<ServedToy> {
    const toys = new ToyRepository(t);
    await toys.publish(new ToyBundle({ version: '1', seed: 5 }));
    await toys.activate('1');
    const served = new ServedToy(toys.folder);
    const config = completeConfig({
      port: 0,
      timeoutMs: 60_000,
      keyFile: served.keys.file,
      auditFile: join(toys.folder, 'audit.jsonl'),
      models: [{ repository: toys.location, bundle: BUNDLE, store: 'memory', instances: 1 }],
      ...prepare(served),
    });
    const logger = createLogger('test', { level: 'silent' });
    const serving = await startServing({ config, logger });
    t.after(() => serving.stop());
    served.address = serving.address;
    const headers = { 'x-forwarded-for': '192.0.2.1' };
    await waitUntil(async () => (await served.fetch('/readyz', { headers })).ok);
    return served;
  }

  get port(): number {
    return Number(this.address.split(':').at(-1));
  }

  fetch(path: string, init: RequestInit = {}): Promise<Response> {
    return fetch(`http://${this.address}${path}`, init);
  }

  /** @returns the status, and the error code if there is one */
  async predict(headers: Record<string, string> = {}, rows = ROWS, query = ''): Promise<string> {
    const response = await this.fetch(`/v1/ctr:predict${query}`, {
      method: 'POST',
      headers: { 'content-type': TSV, ...headers },
      body: toTsv(rows),
    });
    const { code = '' } = (await response.json()) as { code?: string };
    return `${response.status} ${code}`.trim();
  }

  async predictByGrpc(fields: Record<string, string>): Promise<ServiceError | undefined> {
    const client = new Client(this.address, credentials.createInsecure());
    const metadata = new Metadata();
    for (const [name, value] of Object.entries(fields)) metadata.set(name, value);
    const request = createCtrRequest(toTsv(ROWS), {});
    const path = `/${CTR_SERVICE}/${CTR_PREDICT}`;
    const same = (bytes: Buffer): Buffer => bytes;
    const error = await new Promise<ServiceError | null>((resolve) => {
      const bytes = Buffer.from(encodeCtrRequest(request));
      client.makeUnaryRequest(path, same, same, bytes, metadata, resolve);
    });
    client.close();
    return error ?? undefined;
  }

  /** @returns the error code, 0 without an error */
  async predictByBaidu(authentication: string | undefined): Promise<number> {
    const connection = new RawConnection(this.port);
    const encoder = new RequestEncoder(GENERAL_MODEL_SERVICE, 'inference');
    encoder.authentication = authentication ?? '';
    const output = new OutputBuffer();
    const payload = encodeRequest(createPaddleRequest(ROWS));
    encoder.write(output, { correlation: 1, timeoutMs: 0, payload, attachment: new Uint8Array(0) });
    connection.socket.write(output.writtenBytes());
    const [answer] = await connection.receive(1);
    connection.socket.destroy();
    return answer?.errorCode ?? -1;
  }

  readAudit(): Record<string, string>[] {
    const path = join(this.folder, 'audit.jsonl');
    if (!existsSync(path)) return [];
    const lines = readFileSync(path, 'utf8').split('\n').filter(Boolean);
    return lines.map((line) => JSON.parse(line));
  }
}

test('a key is accepted over every protocol, and without one nothing is', async (t) => {
  let key = '';
  const served = await ServedToy.start(t, ({ keys }) => {
    key = keys.add('ads', '--scope', `predict:${BUNDLE}`);
    return {};
  });
  assert.equal(await served.predict(), '401 UNAUTHENTICATED');
  assert.equal(await served.predict({ authorization: `Bearer ${key}` }), '200');
  assert.equal(await served.predict({ 'x-api-key': key }), '200');
  assert.equal(await served.predict({ 'x-api-key': `${key}x` }), '401 UNAUTHENTICATED');
  assert.equal((await served.predictByGrpc({}))?.code, status.UNAUTHENTICATED);
  assert.equal(await served.predictByGrpc({ authorization: `Bearer ${key}` }), undefined);
  assert.equal(await served.predictByGrpc({ 'x-api-key': key }), undefined);
  assert.equal(await served.predictByBaidu(undefined), 1004);
  assert.equal(await served.predictByBaidu('not a key'), 1004);
  assert.equal(await served.predictByBaidu(key), 0);
  assert.equal(await served.predictByBaidu(`Bearer ${key}`), 0);
  const audit = served.readAudit();
  assert.deepEqual(new Set(audit.map(({ event }) => event)), new Set(['refused']));
  assert.deepEqual(
    new Set(audit.map(({ protocol }) => protocol)),
    new Set(['http', 'grpc', 'baidu_std']),
  );
  assert.doesNotMatch(JSON.stringify(audit), /hck_|not a key/);
});

test('each scope opens its own routes only', async (t) => {
  const found: Record<string, string> = {};
  const served = await ServedToy.start(t, ({ keys }) => {
    for (const scope of ['predict:other', 'predict', 'metrics', 'control:stage', 'control']) {
      found[scope] = keys.add(scope.replace(':', '-'), '--scope', scope);
    }
    return {};
  });
  const fetchStatus = async (path: string, scope: string, method = 'GET'): Promise<number> => {
    const headers = { 'x-api-key': found[scope] ?? '' };
    return (await served.fetch(path, { method, headers })).status;
  };
  const load = `/v2/repository/models/${BUNDLE}/load`;
  for (const [path, method, ...expected] of [
    // predict:other, predict, metrics, control:stage, control
    ['/metrics', 'GET', 403, 403, 200, 403, 403],
    ['/v1/status', 'GET', 403, 403, 200, 403, 403],
    ['/v1/console/snapshot', 'GET', 403, 403, 200, 403, 403],
    ['/v2/models', 'GET', 200, 200, 403, 403, 403],
    [load, 'POST', 403, 403, 403, 200, 200],
    ['/healthz', 'GET', 200, 200, 200, 200, 200],
    ['/no/such/path', 'GET', 404, 404, 403, 403, 403],
  ] as const) {
    const statuses: number[] = [];
    for (const scope of Object.keys(found)) statuses.push(await fetchStatus(path, scope, method));
    assert.deepEqual(statuses, expected, path);
  }
  const headers = { 'x-api-key': found['predict:other'] ?? '' };
  assert.equal(await served.predict(headers), '403 DENIED', 'another model');
  const actions = served.readAudit().filter(({ event }) => event === 'control');
  assert.deepEqual(
    actions.map(({ action, target, key, result }) => [action, target, key, result]),
    [
      ['load model', BUNDLE, 'control-stage', 'OK'],
      ['load model', BUNDLE, 'control', 'OK'],
    ],
  );
});

test('limits of a key: 429 with Retry-After, RESOURCE_EXHAUSTED with RetryInfo', async (t) => {
  const made: string[] = [];
  const served = await ServedToy.start(t, ({ keys }) => {
    made.push(keys.add('slow', '--scope', 'predict', '--requests-per-second', '0.001'));
    made.push(keys.add('small', '--scope', 'predict', '--batch-rows-max', '2'));
    made.push(keys.add('daily', '--scope', 'predict', '--daily-rows', '4'));
    return { anonymousScopes: ['metrics'] };
  });
  const [slow = '', small = '', daily = ''] = made;
  const first = await served.fetch('/v2/models', { headers: { 'x-api-key': slow } });
  assert.equal(first.status, 200);
  const second = await served.fetch('/v2/models', { headers: { 'x-api-key': slow } });
  assert.equal(second.status, 429);
  const retryAfter = Number(second.headers.get('retry-after'));
  assert.ok(retryAfter > 900 && retryAfter <= 1000, `${retryAfter}`);
  const error = await served.predictByGrpc({ 'x-api-key': slow });
  assert.equal(error?.code, status.RESOURCE_EXHAUSTED);
  const [details] = error?.metadata.get('grpc-status-details-bin') ?? [];
  assert.match(String(details), /google\.rpc\.RetryInfo/);
  assert.equal(await served.predictByBaidu(slow), 3004);
  assert.equal(await served.predict({ 'x-api-key': small }), '413 TOO_LARGE');
  assert.equal(await served.predict({ 'x-api-key': small }, ROWS.slice(0, 2)), '200');
  assert.equal(await served.predict({ 'x-api-key': daily }), '200');
  assert.equal(await served.predict({ 'x-api-key': daily }), '429 RATE_LIMITED');
  assert.equal((await served.fetch('/metrics')).status, 200, 'anonymous callers have a scope');
});

test('without settings everything is open, as before', async (t) => {
  const served = await ServedToy.start(t, () => ({ keyFile: undefined }) as never);
  assert.equal(await served.predict(), '200');
  assert.equal((await served.fetch('/metrics')).status, 200);
  assert.equal(await served.predictByGrpc({ authorization: 'Bearer anything' }), undefined);
});

test('pages of allowed origins may call, others may not', async (t) => {
  const served = await ServedToy.start(t, () => ({
    anonymousScopes: ['predict'],
    corsOrigins: ['https://shop.example'],
  }));
  const preflight = async (origin: string): Promise<(string | null)[]> => {
    const headers = { origin, 'access-control-request-method': 'POST' };
    const response = await served.fetch('/v1/ctr:predict', { method: 'OPTIONS', headers });
    const { headers: answered } = response;
    return [
      answered.get('access-control-allow-origin'),
      answered.get('access-control-allow-methods'),
    ];
  };
  assert.deepEqual(await preflight('https://shop.example'), ['https://shop.example', 'GET, POST']);
  assert.deepEqual(await preflight('https://other.example'), [null, null]);
  for (const path of ['/v1/ctr:predict', '/v2/models']) {
    const isPost = path.startsWith('/v1');
    const response = await served.fetch(path, {
      method: isPost ? 'POST' : 'GET',
      headers: { origin: 'https://shop.example', 'content-type': TSV },
      ...(isPost && { body: toTsv(ROWS) }),
    });
    assert.equal(response.status, 200);
    assert.equal(response.headers.get('access-control-allow-origin'), 'https://shop.example');
  }
});

test('addresses are checked, and x-forwarded-for needs a trusted proxy', async (t) => {
  const closed = await ServedToy.start(t, () => ({ anonymousScopes: ['predict'] }));
  assert.equal(await closed.predict({ 'x-forwarded-for': '203.0.113.7' }), '200');
  const served = await ServedToy.start(t, () => ({
    anonymousScopes: ['predict'],
    allowedAddresses: ['192.0.2.0/24'],
    trustedProxies: ['127.0.0.1'],
  }));
  assert.equal(await served.predict({ 'x-forwarded-for': '192.0.2.9' }), '200');
  assert.equal(await served.predict({ 'x-forwarded-for': '192.0.2.9, 203.0.113.7' }), '403 DENIED');
  assert.equal(await served.predict(), '403 DENIED');
  const [record] = served.readAudit();
  assert.deepEqual([record?.['address'], record?.['result']], ['203.0.113.7', 'DENIED']);
});
