/** Shadows of another serving process, and the report that rollouts read. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { createServer as createHttpServer } from 'node:http';
import { type AddressInfo, createServer } from 'node:net';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { DEFAULT_LIMITS } from '../../cube-agent/gate/gate-limits.ts';
import { readShadowFindings } from '../../cube-agent/gate/shadow-findings.ts';
import { checkShadow } from '../../cube-agent/gate/verdict.ts';
import { createLogger } from '../../lib/platform/logs.ts';
import { completeConfig } from '../../serving/config/serving-config.ts';
import { startServing } from '../../serving/server.ts';
import { BUNDLE, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';
import { TOYS, until } from './support/traffic-server.ts';

const ROWS = toyRows(3);

async function publishToys(t: TestContext): Promise<ToyRepository> {
  const toys = new ToyRepository(t);
  for (const toy of Object.values(TOYS)) await toys.publish(toy);
  await toys.activate('1');
  await toys.activate('2', 'canary');
  return toys;
}

/** @returns host:port */
async function serve(t: TestContext, toys: ToyRepository, channel: string, shadows = '[]') {
  const trafficFile = join(toys.folder, `${channel}.yaml`);
  writeFileSync(trafficFile, `shadows: ${shadows}`);
  const model = { repository: toys.location, bundle: BUNDLE, channel: [channel], instances: 1 };
  const config = completeConfig({ port: 0, timeoutMs: 60_000, trafficFile, models: [model] });
  const serving = await startServing({ config, logger: createLogger('test', { level: 'silent' }) });
  t.after(() => serving.stop());
  await until(async () => (await fetch(`http://${serving.address}/readyz`)).ok);
  return serving.address;
}

function makeShadow(name: string, address: string): string {
  const endpoint = `http://${address}`;
  return JSON.stringify([{ name, model: BUNDLE, share: 1, endpoint, 'timeout-ms': 600_000 }]);
}

async function predict(address: string): Promise<string> {
  const response = await fetch(`http://${address}/v1/ctr:predict`, {
    method: 'POST',
    headers: { 'content-type': 'text/tab-separated-values' },
    body: toTsv(ROWS),
  });
  const text = await response.text();
  assert.equal(response.status, 200, text);
  return JSON.parse(text).version;
}

test('another process answers copies, and the gate reads the comparison', async (t) => {
  const toys = await publishToys(t);
  const other = await serve(t, toys, 'canary');
  const shadow = makeShadow('next', other);
  const primary = await serve(t, toys, 'stable', shadow);
  const requirement = { bundle: BUNDLE, version: '2', against: '1', requestsMin: 3 };
  await assert.rejects(
    readShadowFindings([primary], requirement),
    /0 of 3 requests were shadowed to version 2 from version 1 so far/,
  );
  const isEnough = (): Promise<boolean> =>
    readShadowFindings([primary], requirement).then(
      () => true,
      () => false,
    );
  await until(async () => {
    assert.equal(await predict(primary), '1');
    return isEnough();
  });
  const summary = await readShadowFindings([primary, primary], requirement);
  assert.equal(summary.failed, 0);
  assert.equal(summary.rows, ROWS.length * summary.requests);
  const [first, second] = [TOYS['1'], TOYS['2']];
  const differences = ROWS.map((row) =>
    Math.abs((first?.score(row)[1] ?? 0) - (second?.score(row)[1] ?? 0)),
  );
  const mean = differences.reduce((sum, value) => sum + value, 0) / ROWS.length;
  assert.ok(Math.abs(summary.drift.mean - mean) < 1e-5, `${summary.drift.mean} for ${mean}`);
  const limits = { ...DEFAULT_LIMITS, shadowRequestsMin: 3, driftMeanMax: mean / 2 };
  const failed = checkShadow(summary, limits).filter(({ outcome }) => outcome === 'fail');
  assert.ok(failed.some(({ limit }) => limit === 'driftMeanMax'));
  await assert.rejects(readShadowFindings([], requirement), /shadowRequestsMin needs --shadow/);
});

test('a process that never answers costs callers nothing, and few copies wait', async (t) => {
  let connections = 0;
  const hung = createServer(() => connections++);
  await new Promise<void>((resolve) => hung.listen(0, '127.0.0.1', resolve));
  t.after(() => hung.close());
  const { port } = hung.address() as { port: number };
  const toys = await publishToys(t);
  const shadow = makeShadow('hung', `127.0.0.1:${port}`);
  const primary = await serve(t, toys, 'stable', shadow);
  for (let i = 0; i < 40; i++) assert.equal(await predict(primary), '1');
  const metrics = await (await fetch(`http://${primary}/metrics`)).text();
  // 16 copies wait; all others were dropped before their rows were encoded.
  assert.match(metrics, /shadow_requests_total{shadow="hung",outcome="dropped"} 24/);
  assert.ok(connections <= 16, `${connections}`);
});

test('a process that does not answer in time gets one copy at a time until it does', async (t) => {
  let answer = (): void => undefined;
  let requests = 0;
  const target = createHttpServer((request, response) => {
    requests++;
    request.resume();
    answer = () => response.writeHead(400).end('{"code":"INVALID_ARGUMENT","error":"as asked"}');
  });
  await new Promise<void>((resolve) => target.listen(0, '127.0.0.1', resolve));
  t.after(() => {
    target.closeAllConnections();
    target.close();
  });
  const { port } = target.address() as AddressInfo;
  const toys = await publishToys(t);
  const shadow = JSON.parse(makeShadow('slow', `127.0.0.1:${port}`));
  shadow[0]['timeout-ms'] = 1;
  const primary = await serve(t, toys, 'stable', JSON.stringify(shadow));
  const count = async (outcome: string): Promise<number> => {
    const metrics = await (await fetch(`http://${primary}/metrics`)).text();
    const line = new RegExp(`shadow_requests_total{shadow="slow",outcome="${outcome}"} (\\d+)`);
    return Number(line.exec(metrics)?.[1] ?? 0);
  };
  const change = (timeoutMs: number): void => {
    shadow[0]['timeout-ms'] = timeoutMs;
    writeFileSync(join(toys.folder, 'stable.yaml'), `shadows: ${JSON.stringify(shadow)}`);
  };
  await predict(primary);
  await until(async () => (await count('DEADLINE_EXCEEDED')) === 1);
  // The next copies wait, as soon as the file is read: one, and all others are dropped.
  change(600_000);
  await until(async () => {
    await predict(primary);
    return (await count('dropped')) >= 5;
  });
  const sent = requests;
  for (let i = 0; i < 5; i++) await predict(primary);
  assert.equal(requests, sent);
  // It answers: several copies are sent at a time again.
  answer();
  await until(async () => (await count('INVALID_ARGUMENT')) === 1);
  await until(async () => {
    await predict(primary);
    return requests >= sent + 5;
  });
});
