/**
 * Who may call a serving process: API keys over every protocol, scopes, limits, address rules, CORS
 * and the audit file, over real sockets.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { test } from 'node:test';
import { status } from '@grpc/grpc-js';
import { waitUntil } from '../rpc/support/echo-server.ts';
import { ROWS, ServedToy, TSV } from './support/served-toy.ts';
import { BUNDLE, toTsv } from './support/toy-bundle.ts';

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

test('a key of one model reads nothing about another', async (t) => {
  const made: string[] = [];
  const served = await ServedToy.start(t, ({ keys }) => {
    made.push(keys.add('this', '--scope', `predict:${BUNDLE}`));
    made.push(keys.add('other', '--scope', 'predict:other'));
    return {};
  });
  for (const path of [
    `/v2/models/${BUNDLE}`,
    `/v2/models/${BUNDLE}/versions/1`,
    `/v2/models/${BUNDLE}/config`,
    `/v1/models/${BUNDLE}`,
    `/v1/models/${BUNDLE}/versions/1`,
    `/v1/models/${BUNDLE}/metadata`,
    `/v1/models/${BUNDLE}/features`,
    `/v1/models/${BUNDLE}/versions/1/features`,
    `/v1/console/examples?model=${BUNDLE}`,
    '/v1/console/examples',
    `/v1/console/row?model=${BUNDLE}&key=7`,
    `/v1/console/table?model=${BUNDLE}&table=deep`,
  ]) {
    const statuses: number[] = [];
    for (const key of made) {
      statuses.push((await served.fetch(path, { headers: { 'x-api-key': key } })).status);
    }
    assert.deepEqual(statuses, [200, 403], path);
  }
  const name = Buffer.from(BUNDLE);
  const named = Buffer.concat([Buffer.from([10, name.length]), name]);
  const signature = Buffer.from('signature_def');
  const tensorflow = Buffer.concat([
    Buffer.from([10, named.length]),
    named,
    Buffer.from([18, signature.length]),
    signature,
  ]);
  for (const [path, request] of [
    ['/inference.GRPCInferenceService/ModelMetadata', named],
    ['/inference.GRPCInferenceService/ModelConfig', named],
    ['/tensorflow.serving.PredictionService/GetModelMetadata', tensorflow],
  ] as const) {
    const codes: (number | undefined)[] = [];
    for (const key of made) {
      codes.push((await served.callGrpc({ 'x-api-key': key }, path, request))?.code);
    }
    assert.deepEqual(codes, [undefined, status.PERMISSION_DENIED], path);
  }
});

test('each message of a stream is a request of its key', async (t) => {
  const made: string[] = [];
  const served = await ServedToy.start(t, ({ keys }) => {
    made.push(keys.add('daily', '--scope', 'predict', '--daily-requests', '3'));
    made.push(keys.add('revoked', '--scope', 'predict'));
    return {};
  });
  const [daily = '', revoked = ''] = made;
  const limited = served.openStream({ 'x-api-key': daily });
  for (let i = 0; i < 3; i++) assert.equal(await limited.send(), 'answered');
  assert.equal(await limited.send(), status.RESOURCE_EXHAUSTED);
  const open = served.openStream({ 'x-api-key': revoked });
  assert.equal(await open.send(), 'answered');
  served.keys.run('revoke', '--id', 'revoked');
  await waitUntil(async () => (await served.predict({ 'x-api-key': revoked })).startsWith('401'));
  assert.equal(await open.send(), status.UNAUTHENTICATED);
});

test('lines that arrive after the key was revoked are not scored', async (t) => {
  let key = '';
  const served = await ServedToy.start(t, ({ keys }) => {
    key = keys.add('bulk', '--scope', 'predict');
    return {};
  });
  const { readable, writable } = new TransformStream<Uint8Array, Uint8Array>();
  const writer = writable.getWriter();
  const line = new TextEncoder().encode(`${JSON.stringify(ROWS[0])}\n`);
  const pending = served.fetch('/v1/ctr:predict', {
    method: 'POST',
    headers: { 'content-type': 'application/x-ndjson', 'x-api-key': key },
    body: readable,
    duplex: 'half',
  } as RequestInit);
  await writer.write(line);
  const reader = (await pending).body?.pipeThrough(new TextDecoderStream()).getReader();
  assert.match(String((await reader?.read())?.value), /"probability"/);
  served.keys.run('revoke', '--id', 'bulk');
  await waitUntil(async () => (await served.predict({ 'x-api-key': key })).startsWith('401'));
  await writer.write(line);
  assert.match(String((await reader?.read())?.value), /"code":"UNAUTHENTICATED"/);
  await writer.close();
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

test('no header moves a client of a proxy to an allowed address', async (t) => {
  const served = await ServedToy.start(t, () => ({
    anonymousScopes: ['predict'],
    allowedAddresses: ['127.0.0.0/8', '192.0.2.0/24'],
    trustedProxies: ['127.0.0.1'],
  }));
  assert.equal(await served.predict({ 'x-forwarded-for': '192.0.2.9:5000' }), '200');
  for (const header of [
    `${'192.0.2.9, '.repeat(300)}203.0.113.7`,
    '203.0.113.7:5000',
    'unknown',
    `203.0.113.7${', 127.0.0.1'.repeat(40)}`,
  ]) {
    assert.equal(await served.predict({ 'x-forwarded-for': header }), '403 DENIED', header);
  }
});

test('a proxy on this host does not make the clients behind it local', async (t) => {
  const served = await ServedToy.start(
    t,
    () => ({ keyFile: undefined, trustedProxies: ['::1'] }) as never,
  );
  const unload = `/v2/repository/models/${BUNDLE}/unload`;
  const headers = { 'x-forwarded-for': '203.0.113.7' };
  assert.equal((await served.fetch(unload, { method: 'POST', headers })).status, 403);
  const name = Buffer.from(BUNDLE);
  const request = Buffer.concat([Buffer.from([18, name.length]), name]);
  const path = '/inference.GRPCInferenceService/RepositoryModelUnload';
  assert.equal((await served.callGrpc(headers, path, request))?.code, status.PERMISSION_DENIED);
  assert.equal((await served.fetch(unload, { method: 'POST' })).status, 200);
});

test('the audit file names the client of a control call, not its proxy', async (t) => {
  let key = '';
  const served = await ServedToy.start(t, ({ keys }) => {
    key = keys.add('deployer', '--scope', 'control:stage');
    return { trustedProxies: ['127.0.0.1'] };
  });
  const headers = { 'x-forwarded-for': '203.0.113.7', 'x-api-key': key };
  const load = `/v2/repository/models/${BUNDLE}/load`;
  assert.equal((await served.fetch(load, { method: 'POST', headers })).status, 200);
  assert.equal(served.readAudit().at(-1)?.['address'], '203.0.113.7');
});

test('no credential is in logs, status, metrics, errors or the audit file', async (t) => {
  let key = '';
  const served = await ServedToy.start(t, ({ keys }) => {
    key = keys.add('everything', '--scope', 'predict,metrics,control');
    return { requestLogShare: 1 };
  });
  const secrets = [key, `${key}-guess`, 'Bearer-of-nothing'];
  const texts: string[] = [];
  for (const secret of secrets) {
    for (const headers of [{ authorization: `Bearer ${secret}` }, { 'x-api-key': secret }]) {
      for (const path of ['/v1/status', '/metrics', '/no/such/path', '/v2/models/none/infer']) {
        texts.push(await (await served.fetch(path, { headers })).text());
      }
      const load = { method: 'POST', headers };
      texts.push(await (await served.fetch('/v2/repository/models/none/load', load)).text());
      texts.push(await served.predict(headers as Record<string, string>));
    }
    texts.push(String((await served.predictByGrpc({ authorization: secret }))?.details));
  }
  texts.push(readFileSync(served.logFile, 'utf8'), JSON.stringify(served.readAudit()));
  const all = texts.join('\n');
  for (const secret of secrets) assert.ok(!all.includes(secret.slice(0, 14)), secret);
  assert.match(all, /UNAUTHENTICATED/);
  assert.match(all, /"model":"toy"/, 'the predictions are logged');
});

test('huge, repeated and malformed credentials are refused, and the server goes on', async (t) => {
  const served = await ServedToy.start(t);
  for (const value of ['x'.repeat(8_000), 'Bearer', 'Bearer ', ',', '"', '%00', 'Bearer a b c']) {
    assert.equal(await served.predict({ authorization: value }), '401 UNAUTHENTICATED');
    assert.equal((await served.predictByGrpc({ 'x-api-key': value }))?.code, 16);
  }
  const tooLarge = { authorization: 'x'.repeat(20_000) };
  assert.equal((await served.fetch('/v2/models', { headers: tooLarge })).status, 431);
  for (const value of ['x'.repeat(3_000), 'x'.repeat(10_000), '\u0000\uffff', 'Bearer']) {
    assert.equal(await served.predictByBaidu(value), 1004);
  }
  assert.equal((await served.fetch('/healthz')).status, 200);
});
