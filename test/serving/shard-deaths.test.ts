/**
 * Shards that die by kill -9 and return under traffic, again and again: what callers see of it, by policy and with a
 * second replica. The figures are told as diagnostics (docs/stores.md); held are only what must be so on every machine.
 */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { formatFleet } from '../../lib/core/fleet.ts';
import { ServingProcess } from './serving-process.ts';
import { CubeServers } from './stores/cube-servers.ts';
import { BUNDLE, ToyBundle } from './toy-bundle.ts';
import { ToyRepository, Traffic } from './toy-service.ts';

const toy = new ToyBundle({ version: '1', seed: 701, shardNum: 2 });
const DEATHS = 2;
const DEAD_MS = 300;

interface Figures {
  readonly requests: number;
  readonly whole: number;
  readonly degraded: number;
  readonly failures: Readonly<Record<string, number>>;
  /** From when a shard had its version again to the first of twenty whole answers in a row. */
  readonly wholeAfterMs: readonly number[];
}

async function dieAndReturn(
  t: TestContext,
  { replicas, flags }: { replicas: number; flags: readonly string[] },
): Promise<Figures> {
  const toys = new ToyRepository(t);
  await toys.publish(toy);
  await toys.activate('1');
  const manifest = await toys.repository.manifest(BUNDLE, '1');
  const groups = Array.from({ length: replicas }, () => new CubeServers(BUNDLE, toys.location));
  for (const servers of groups) {
    t.after(() => servers.stop());
    await servers.load(manifest);
  }
  const maps = groups.map((servers) => servers.fleet.bundles.get(BUNDLE)![0]!);
  const shards = [0, 1].map((shard) => maps.map((map) => map.shards[shard]![0]!));
  const path = join(toys.folder, 'fleet.json');
  writeFileSync(path, formatFleet({ bundles: new Map([[BUNDLE, [{ shardNum: 2, shards }]]]) }));
  const serving = await ServingProcess.start(t, [
    ...['--repository', toys.location, '--bundle', BUNDLE, '--store', 'remote', '--fleet', path],
    ...['--instances', '1', '--timeout-ms', '10000', ...flags],
  ]);
  await serving.untilReady();
  const traffic = new Traffic(serving, [toy], 4);
  await traffic.untilAnswered('1');
  const wholeAfterMs: number[] = [];
  for (let i = 0; i < DEATHS; i++) {
    const { data: address } = maps[0]!.shards[i % 2]![0]!;
    const before = troubles(traffic);
    await groups[0]!.kill(address);
    await sleep(DEAD_MS);
    // With one replica some caller has met the dead one; with two nobody ever does.
    while (replicas === 1 && troubles(traffic) === before) await sleep(2);
    await groups[0]!.restart(address);
    await groups[0]!.load(manifest);
    const backMs = performance.now();
    let since = backMs;
    for (let seen = troubles(traffic), whole = wholeOf(traffic); ; ) {
      await sleep(2);
      if (troubles(traffic) > seen) {
        [seen, whole, since] = [troubles(traffic), wholeOf(traffic), performance.now()];
      } else if (wholeOf(traffic) >= whole + 20) break;
    }
    wholeAfterMs.push(Math.round(since - backMs));
  }
  await traffic.stop();
  const failures: Record<string, number> = {};
  for (const { body } of traffic.refused) failures[body.code] = (failures[body.code] ?? 0) + 1;
  const whole = wholeOf(traffic);
  const { degraded, refused } = traffic;
  const requests = whole + degraded + refused.length;
  const figures = { requests, whole, degraded, failures, wholeAfterMs };
  t.diagnostic(JSON.stringify(figures));
  return figures;
}

function troubles({ refused, degraded }: Traffic): number {
  return refused.length + degraded;
}

function wholeOf({ answered, degraded }: Traffic): number {
  return (answered.get('1') ?? 0) - degraded;
}

test('policy fail: only UNAVAILABLE, no score from half the rows, whole again each time', async (t) => {
  const { failures, degraded, wholeAfterMs } = await dieAndReturn(t, { replicas: 1, flags: [] });
  assert.deepEqual(Object.keys(failures), ['UNAVAILABLE']);
  assert.equal(degraded, 0);
  assert.equal(wholeAfterMs.length, DEATHS);
});

test('policy default: nobody is refused, who misses rows is told', async (t) => {
  const flags = ['--on-unavailable', 'default'];
  const { failures, degraded } = await dieAndReturn(t, { replicas: 1, flags });
  assert.deepEqual(failures, {});
  assert.ok(degraded > 0);
});

test('a second replica: no request fails, none is degraded', async (t) => {
  const { failures, degraded } = await dieAndReturn(t, { replicas: 2, flags: [] });
  assert.deepEqual([failures, degraded], [{}, 0]);
});
