/** Shadows of plain models, and the credentials of shadow endpoints, over real sockets. */
import assert from 'node:assert/strict';
import { mkdirSync, readFileSync, writeFileSync } from 'node:fs';
import { dirname, join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { parseTraffic } from '../../serving/config/traffic-file.ts';
import { pairOutputs, toOutputValues } from '../../serving/models/output-values.ts';
import { temporaryFolder } from '../repository/support/fixtures.ts';
import { everyType, multiply, TYPES } from './support/plain-models.ts';
import { ServedToy } from './support/served-toy.ts';
import { ServingProcess } from './support/serving-process.ts';
import { BUNDLE } from './support/toy-bundle.ts';
import { until } from './support/traffic-server.ts';

interface Comparison {
  readonly shadow: string;
  readonly model: string;
  readonly version: string;
  readonly against: string;
  readonly requests: number;
  readonly rows: number;
  readonly failures: Readonly<Record<string, number>>;
  readonly drift: { readonly mean: number; readonly largest: number; readonly psi: number };
}

async function readComparisons(serving: ServingProcess): Promise<readonly Comparison[]> {
  const answer = await fetch(`${serving.url}/v1/shadows`);
  return ((await answer.json()) as { shadows: Comparison[] }).shadows;
}

/** Serves a repository of models in Triton's layout, with these shadows. */
async function serve(
  t: TestContext,
  models: Readonly<Record<string, Uint8Array>>,
  shadows: readonly object[] = [],
): Promise<ServingProcess> {
  const folder = temporaryFolder(t);
  for (const [path, bytes] of Object.entries(models)) {
    const file = join(folder, 'models', path, 'model.onnx');
    mkdirSync(dirname(file), { recursive: true });
    writeFileSync(file, bytes);
  }
  const traffic = join(folder, 'traffic.yaml');
  writeFileSync(traffic, JSON.stringify({ shadows }));
  const flags = ['--model-repository', join(folder, 'models'), '--traffic-file', traffic];
  const serving = await ServingProcess.start(t, flags);
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  return serving;
}

async function infer(serving: ServingProcess, path: string): Promise<void> {
  const inputs = [{ name: 'x', datatype: 'FP32', shape: [2, 3], data: [1, 2, 3, 4, 5, 6] }];
  const { status, body } = await serving.post(
    `/v2/models/${path}/infer`,
    JSON.stringify({ inputs }),
  );
  assert.equal(status, 200, JSON.stringify(body));
  assert.deepEqual(body.outputs[0].data, [2, 4, 6, 8, 10, 12]);
}

/** The comparison of a shadow that answered or failed. */
async function awaitComparison(serving: ServingProcess, shadow: string): Promise<Comparison> {
  let found: Comparison | undefined;
  await until(async () => {
    found = (await readComparisons(serving)).find((one) => one.shadow === shadow);
    return found !== undefined;
  });
  assert.ok(found);
  return found;
}

test('requests to plain models are answered again by another model or version', async (t) => {
  const serving = await serve(
    t,
    {
      'double/1': multiply(2),
      'triple/2': multiply(3),
      'types/1': everyType,
    },
    [
      { name: 'model', model: 'double', share: 1, 'target-model': 'triple', version: 2 },
      { name: 'other-tensors', model: 'double', share: 1, 'target-model': 'types' },
      { name: 'absent', model: 'double', share: 1, version: 9 },
      { name: 'none', model: 'double', share: 0, 'target-model': 'triple' },
    ],
  );
  await infer(serving, 'double');
  const compared = await awaitComparison(serving, 'model');
  assert.deepEqual([compared.model, compared.version, compared.against], ['double', '2', '1']);
  assert.deepEqual([compared.requests, compared.rows, compared.failures], [1, 6, {}]);
  assert.ok(Math.abs(compared.drift.mean - 3.5) < 1e-6);
  assert.deepEqual((await awaitComparison(serving, 'other-tensors')).failures, {
    INVALID_ARGUMENT: 1,
  });
  assert.deepEqual((await awaitComparison(serving, 'absent')).failures, { NOT_FOUND: 1 });
  assert.ok(!(await readComparisons(serving)).some(({ shadow }) => shadow === 'none'));
});

test('another process answers copies of requests to plain models', async (t) => {
  const other = await serve(t, { 'm/1': multiply(2), 'n/7': multiply(4) });
  const [one, many] = [{ share: 1, endpoint: other.url }, { 'timeout-ms': 60_000 }];
  const folder = temporaryFolder(t);
  const file = join(folder, 'm.onnx');
  writeFileSync(file, multiply(2));
  const traffic = join(folder, 'traffic.yaml');
  const shadows = [
    { name: 'same', model: 'm', version: 1, ...one, ...many },
    { name: 'next', model: 'm', 'target-model': 'n', version: 7, ...one, ...many },
    { name: 'channel', model: 'm', channel: 'canary', ...one },
    { name: 'gone', model: 'm', 'target-model': 'absent', ...one },
  ];
  writeFileSync(traffic, JSON.stringify({ shadows }));
  const serving = await ServingProcess.start(t, ['--model', file, '--traffic-file', traffic]);
  await serving.waitFor('/readyz', ({ status }) => status === 200);
  await infer(serving, 'm');
  const same = await awaitComparison(serving, 'same');
  assert.deepEqual([same.version, same.requests, same.rows, same.drift.largest], ['1', 1, 6, 0]);
  const next = await awaitComparison(serving, 'next');
  assert.deepEqual([next.version, next.drift.mean], ['7', 7]);
  assert.deepEqual((await awaitComparison(serving, 'channel')).failures, { UNSUPPORTED: 1 });
  assert.deepEqual((await awaitComparison(serving, 'gone')).failures, { NOT_FOUND: 1 });
});

test('outputs of every type are compared by value', () => {
  const outputs = TYPES.map(([, dataType, data]) => {
    if (dataType === 'BYTES') return { name: dataType, dataType, shape: [2], data: ['a', 'b'] };
    const size = { BOOL: 1, FP16: 2, BF16: 2, FP64: 8 }[dataType as string] ?? 8;
    const bytes = new Uint8Array(2 * size);
    assert.equal(data.length, 2);
    return { name: dataType, dataType, shape: [bytes.length], data: bytes };
  });
  const values = outputs.map((output) => toOutputValues(output as never));
  const [first, second] = pairOutputs(values, values.toReversed());
  assert.deepEqual(first, second);
  const texts = [{ name: 't', values: ['a', 'b', 'c'] }];
  const changed = [{ name: 't', values: ['a', 'x', 'c'] }];
  assert.deepEqual([...pairOutputs(texts, changed)[1]], [0, 1, 0]);
  const half = { name: 'h', dataType: 'FP16', shape: [2], data: Uint8Array.of(0, 0x3c, 0, 0xc0) };
  assert.deepEqual([...Float64Array.from(toOutputValues(half as never).values as never)], [1, -2]);
  const wide = { name: 'i', dataType: 'INT64', shape: [1], data: new Uint8Array(8).fill(255) };
  assert.deepEqual([...Float64Array.from(toOutputValues(wide as never).values as never)], [-1]);
  const short = [{ name: 't', values: ['a'] }];
  assert.throws(() => pairOutputs(texts, short), /output t has 3 elements, and the shadow has 1/);
  assert.throws(() => pairOutputs(texts, []), /the shadow does not have it/);
  const large = [{ name: 'l', values: new Float32Array(100_000) }];
  assert.equal(pairOutputs(large, large)[0].length, 65_536);
});

test('an API key for a shadow endpoint is read from its file, and never shown', async (t) => {
  let key = '';
  const other = await ServedToy.start(t, ({ keys }) => {
    key = keys.add('shadow', '--scope', `predict:${BUNDLE}`);
    return {};
  });
  const folder = temporaryFolder(t);
  const keyFile = join(folder, 'shadow.key');
  writeFileSync(keyFile, `${key}\n`);
  const endpoint = `http://${other.address}`;
  const shadow = { model: BUNDLE, share: 1, endpoint, 'timeout-ms': 60_000 };
  const traffic = join(folder, 'traffic.yaml');
  const shadows = [
    { name: 'with-key', 'api-key-file': keyFile, ...shadow },
    { name: 'without', ...shadow },
  ];
  writeFileSync(traffic, JSON.stringify({ shadows }));
  const primary = await ServedToy.start(t, ({ keys }) => {
    key = keys.add('caller', '--scope', `predict:${BUNDLE},metrics`);
    return { trafficFile: traffic };
  });
  assert.equal(await primary.predict({ authorization: `Bearer ${key}` }), '200');
  let metrics = '';
  await until(async () => {
    metrics = await (await primary.fetch('/metrics', { headers: { 'x-api-key': key } })).text();
    return /shadow="with-key"/.test(metrics) && /shadow="without"/.test(metrics);
  });
  assert.match(metrics, /shadow_requests_total{shadow="with-key",outcome="OK"} 1/);
  assert.match(metrics, /shadow_requests_total{shadow="without",outcome="UNAUTHENTICATED"} 1/);
  const log = readFileSync(primary.logFile, 'utf8');
  assert.ok(log.length > 0 && !log.includes(readFileSync(keyFile, 'utf8').trim()));
});

test('wrong credentials of a shadow are errors of the traffic file', (t) => {
  const folder = temporaryFolder(t);
  const file = (name: string, text: string): string => {
    writeFileSync(join(folder, name), text);
    return join(folder, name);
  };
  const parse = (more: object): unknown => {
    const shadow = { name: 's', model: 'm', share: 1, endpoint: 'https://h:1', ...more };
    return parseTraffic(JSON.stringify({ shadows: [shadow] }), 'traffic.yaml');
  };
  const short = file('short', 'secret');
  const good = file('good', 'x'.repeat(32));
  assert.ok(parse({ 'api-key-file': good }));
  assert.throws(() => parse({ 'api-key-file': join(folder, 'absent') }), /absent: no such file/);
  assert.throws(
    () => parse({ 'api-key-file': short }),
    (error: Error) => {
      assert.match(error.message, /traffic\.yaml.*api-key-file.*short: a token has at least 16/);
      return !error.message.includes('secret');
    },
  );
  assert.throws(() => parse({ 'tls-ca': good }), /tls-ca/);
  assert.throws(
    () => parse({ 'tls-ca': good, endpoint: 'http://h:1' }),
    /tls-ca.*expected an endpoint that begins with https/,
  );
  assert.throws(
    () => parse({ 'api-key-file': good, endpoint: undefined, version: 1 }),
    /api-key-file.*only for a shadow with an endpoint/,
  );
  assert.throws(() => parse({ 'api-key': 'x'.repeat(32) }), /api-key/);
});
