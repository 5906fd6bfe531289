/**
 * A shard whose replicas all hang (SIGSTOP), behind a serving process with one model for each
 * policy: the lookup leaves time to answer, later requests do not wait for the shard, and it is
 * used again once it continues.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { formatFleet } from '../../lib/core/fleet.ts';
import { CubeServers } from './stores/support/cube-servers.ts';
import { type Answer, ServingProcess } from './support/serving-process.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { ToyRepository } from './support/toy-service.ts';

const toy = new ToyBundle({ version: '1', seed: 801, shardNum: 2 });
/** Long enough for a busy machine; the lookup may take two thirds of it. */
const TIMEOUT_MS = 4_500;
const LONG_TIMEOUT_MS = 300_000;
const HANGING = { replicas: 2, areProcesses: true };

test('a shard that hangs: default answers in time, fail says why, and both recover', async (t) => {
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const servers = new CubeServers(BUNDLE, toys.location, HANGING);
  t.after(() => servers.stop());
  await servers.load(await toys.repository.readManifest(BUNDLE, '1'));
  writeFileSync(join(toys.folder, 'fleet.json'), formatFleet(servers.fleet));
  const source = `repository: repo, bundle: ${BUNDLE}, store: remote, fleet: fleet.json`;
  const model = `{ ${source}, instances: 1`;
  const path = join(toys.folder, 'serving.yaml');
  writeFileSync(
    path,
    `models:\n  - ${model}, name: default, on-unavailable: default }\n  - ${model}, name: fail }\n`,
  );
  const serving = await ServingProcess.start(t, ['--config', path]);
  await serving.waitUntilReady();
  const rows = toTsv(toyRows(30));
  const predict = (name: string, timeoutMs: number): Promise<Answer> =>
    serving.post(`/v1/ctr:predict?model=${name}`, rows, {
      'content-type': 'text/tab-separated-values',
      'timeout-ms': String(timeoutMs),
    });
  for (const name of ['default', 'fail']) {
    const { status, body } = await predict(name, LONG_TIMEOUT_MS);
    assert.deepEqual([status, body.degraded], [200, false]);
  }

  const hung = [servers.getAddress(1, 0), servers.getAddress(1, 1)];
  for (const address of hung) servers.signal(address, 'SIGSTOP');
  const waiting = predict('fail', TIMEOUT_MS);
  const requests = Array.from({ length: 12 }, () => predict('default', TIMEOUT_MS));
  for (const { status, body } of await Promise.all(requests)) {
    assert.deepEqual([status, body.degraded], [200, true], JSON.stringify(body));
  }
  const late = await waiting;
  assert.deepEqual([late.status, late.body.code], [504, 'DEADLINE_EXCEEDED']);
  assert.match(late.body.error, /no answer for \d+ of \d+ lookups .*shard 1 of 2/);

  // No request waits for the shard: `fail` says so, and both models use one store.
  for (let i = 0; i < 5; i++) {
    const degraded = await predict('default', LONG_TIMEOUT_MS);
    assert.deepEqual([degraded.status, degraded.body.degraded], [200, true]);
    const failed = await predict('fail', LONG_TIMEOUT_MS);
    assert.deepEqual([failed.status, failed.body.code], [503, 'UNAVAILABLE']);
    assert.match(failed.body.error, /nothing is sent until a probe is answered/);
  }
  // The metrics of the store name the first of its models.
  const { body: metrics } = await serving.get('/metrics');
  assert.match(metrics, /hypercube_serving_store_circuits_open\{model="\w+"\} 2\n/);
  assert.match(
    metrics,
    /hypercube_serving_store_repeated_requests_total\{model="\w+",kind="backup"/,
  );
  for (const address of hung) {
    const share = `store_server_share{model="default",server="${address}"} `;
    assert.ok(metrics.includes(`${share}0\n`), share);
  }
  assert.match(metrics, /store_concurrency_limit\{model="\w+",server="[^"]+"\} [1-9]/);
  assert.match(metrics, /store_in_flight\{model="\w+",server="[^"]+"\} 0/);

  for (const address of hung) servers.signal(address, 'SIGCONT');
  await serving.waitFor('/metrics', ({ body }) => /circuits_open\{model="\w+"\} 0\n/.test(body));
  for (const name of ['default', 'fail']) {
    const { status, body } = await predict(name, LONG_TIMEOUT_MS);
    assert.deepEqual([status, body.degraded], [200, false], JSON.stringify(body));
  }
});
