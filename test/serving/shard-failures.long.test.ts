/**
 * Shards are killed with kill -9 and restarted repeatedly under load: the effect on requests, by
 * policy and with a second replica. Measurements are printed as diagnostics (docs/stores.md);
 * assertions hold on every machine.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { formatFleet } from '../../lib/core/fleet.ts';
import { CubeServers } from './stores/support/cube-servers.ts';
import { BUNDLE, ToyBundle, toTsv, toyRows } from './support/toy-bundle.ts';
import { LoadRunner, ToyRepository } from './support/toy-service.ts';

const toy = new ToyBundle({ version: '1', seed: 701, shardNum: 2 });
const DEATHS = 2;
const DEAD_MS = 300;

interface Measurements {
  readonly requests: number;
  readonly whole: number;
  readonly degraded: number;
  readonly failures: Readonly<Record<string, number>>;
  /** Time from the shard's recovery to the first of twenty complete responses in a row. */
  readonly wholeAfterMs: readonly number[];
}

async function killAndRestart(
  t: TestContext,
  { replicas, flags }: { replicas: number; flags: readonly string[] },
): Promise<Measurements> {
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const manifest = await toys.repository.readManifest(BUNDLE, '1');
  // Servers of the first group are killed.
  const groups = Array.from({ length: replicas }, (_, group) => {
    return new CubeServers(BUNDLE, toys.location, { areProcesses: group === 0 });
  });
  for (const servers of groups) {
    t.after(() => servers.stop());
    await servers.load(manifest);
  }
  const maps = groups.map((servers) => servers.fleet.bundles.get(BUNDLE)![0]!);
  const shards = [0, 1].map((shard) => maps.map((map) => map.shards[shard]![0]!));
  const path = join(toys.folder, 'fleet.json');
  writeFileSync(path, formatFleet({ bundles: new Map([[BUNDLE, [{ shardNum: 2, shards }]]]) }));
  const serving = await toys.startRemote(t, path, 1, flags);
  await serving.waitUntilReady();
  const traffic = new LoadRunner(serving, [toy], 4);
  await traffic.waitForAnswers('1');
  const wholeAfterMs: number[] = [];
  for (let i = 0; i < DEATHS; i++) {
    const { data: address } = maps[0]!.shards[i % 2]![0]!;
    const before = countFailures(traffic);
    await groups[0]!.kill(address);
    await sleep(DEAD_MS);
    // With one replica, some request meets the dead shard; with two, no request does.
    while (replicas === 1 && countFailures(traffic) === before) await sleep(2);
    await groups[0]!.restart(address);
    await groups[0]!.load(manifest);
    const backMs = performance.now();
    let since = backMs;
    for (let seen = countFailures(traffic), whole = countComplete(traffic); ; ) {
      await sleep(2);
      if (countFailures(traffic) > seen) {
        [seen, whole, since] = [countFailures(traffic), countComplete(traffic), performance.now()];
      } else if (countComplete(traffic) >= whole + 20) break;
    }
    wholeAfterMs.push(Math.round(since - backMs));
  }
  await traffic.stop();
  const failures: Record<string, number> = {};
  for (const { body } of traffic.refused) failures[body.code] = (failures[body.code] ?? 0) + 1;
  const whole = countComplete(traffic);
  const { degraded, refused } = traffic;
  const requests = whole + degraded + refused.length;
  const figures = { requests, whole, degraded, failures, wholeAfterMs };
  t.diagnostic(JSON.stringify(figures));
  return figures;
}

function countFailures({ refused, degraded }: LoadRunner): number {
  return refused.length + degraded;
}

function countComplete({ answered, degraded }: LoadRunner): number {
  return (answered.get('1') ?? 0) - degraded;
}

test('policy fail: requests fail without partial scores, then recover', async (t) => {
  const { failures, degraded, wholeAfterMs } = await killAndRestart(t, { replicas: 1, flags: [] });
  assert.deepEqual(Object.keys(failures), ['UNAVAILABLE']);
  assert.equal(degraded, 0);
  assert.equal(wholeAfterMs.length, DEATHS);
});

test('policy default: no request fails, incomplete responses are degraded', async (t) => {
  const flags = ['--on-unavailable', 'default'];
  const { failures, degraded } = await killAndRestart(t, { replicas: 1, flags });
  assert.deepEqual(failures, {});
  assert.ok(degraded > 0);
});

test('with a second replica no request fails or is degraded', async (t) => {
  const { failures, degraded } = await killAndRestart(t, { replicas: 2, flags: [] });
  assert.deepEqual([failures, degraded], [{}, 0]);
});

for (const policy of ['fail', 'default'] as const) {
  test(`with a dead shard readiness follows policy ${policy}`, async (t) => {
    const toys = new ToyRepository(t);
    await toys.publish(toy);
    await toys.activate('1');
    const manifest = await toys.repository.readManifest(BUNDLE, '1');
    const servers = new CubeServers(BUNDLE, toys.location, { areProcesses: true });
    t.after(() => servers.stop());
    await servers.load(manifest);
    const path = join(toys.folder, 'fleet.json');
    writeFileSync(path, formatFleet(servers.fleet));
    const serving = await toys.startRemote(t, path, 1, ['--on-unavailable', policy]);
    await serving.waitUntilReady();
    const { data: address } = servers.fleet.bundles.get(BUNDLE)![0]!.shards[1]![0]!;
    await servers.kill(address);
    if (policy === 'fail') {
      const { body } = await serving.waitFor('/readyz', ({ status }) => status === 503);
      assert.match(body.error, /^requests for toy fail: .*shard 1/);
      const { models } = (await serving.get('/v1/status')).body;
      assert.equal(models[0].active, '1', 'the version stays active');
    } else {
      // A degraded answer shows that the dead shard was noticed.
      let answer = await serving.postTsv(toTsv(toyRows(50)));
      while (!answer.body.degraded) answer = await serving.postTsv(toTsv(toyRows(50)));
      assert.equal((await serving.get('/readyz')).status, 200);
    }
    await servers.restart(address);
    await servers.load(manifest);
    await serving.waitFor('/readyz', ({ status }) => status === 200);
  });
}
