/**
 * Fifty rollouts and rollbacks one after another under callers at full speed: 4 shards with a replica on each of two hosts, agents
 * that run their servers, a serving process. Run by `npm run soak`; `npm run bench -- rollouts` measures the same.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { RolloutFleet } from '../../bench/rollout-fleet.ts';
import { type Caller, Lookups, newCounts, Predictions } from '../../bench/rollout-traffic.ts';
import { VersionSource } from '../../bench/rollout-versions.ts';
import { BUNDLE } from '../../bench/serving-model.ts';
import { atEnd, temporaryFolder } from '../repository/fixtures.ts';

const SHAPE = { hosts: 2, shardNum: 4 };
const TABLE_ROWS = 120_000;
const SWITCHES = 50;
const IN_FLIGHT = 4;
const MIXED_UNTIL = 10;

async function callUntil(caller: Caller, until: () => boolean): Promise<void> {
  const lane = async (): Promise<void> => {
    while (!until()) await caller.call();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, lane));
}

test('fifty rollouts and rollbacks under callers: none fails, none is mixed, and what is mixed is noticed', async (t) => {
  const folder = temporaryFolder(t);
  const source = await VersionSource.create(folder, TABLE_ROWS, SHAPE.shardNum);
  await source.publish(1);
  await source.repository.activate(BUNDLE, 'stable', { version: '1', by: 'test', reason: 'first' });
  const fleet = await RolloutFleet.start(folder, SHAPE);
  atEnd(t, () => fleet.stop());
  await fleet.startServing();
  const callers = [new Lookups(folder, TABLE_ROWS), await Predictions.open(folder, fleet.url)];
  let done = false;
  atEnd(t, () => {
    done = true;
    for (const caller of callers) caller.close();
  });
  const calling = callers.map((caller) => callUntil(caller, () => done));
  let version = 1;
  let rollbacks = 0;
  while (version - 1 + rollbacks < SWITCHES) {
    version++;
    await source.publish(version);
    await fleet.rollOut(version);
    if (version % 2 === 1) continue;
    await fleet.rollBack();
    rollbacks++;
  }
  done = true;
  await Promise.all(calling);
  for (const { counts } of callers) {
    const { requests, failed, mixed, first = '', versions } = counts;
    t.diagnostic(`${requests} requests, ${versions.length} versions`);
    assert.deepEqual({ failed, mixed }, { failed: 0, mixed: 0 }, first);
    assert.ok(versions.length > rollbacks, `${versions.length} versions answered`);
  }

  await source.publish(version + 1, { shard: 2, from: 1 });
  await fleet.rollOut(version + 1);
  for (const caller of callers) {
    caller.counts = newCounts();
    await callUntil(caller, () => caller.counts.mixed >= MIXED_UNTIL);
  }
});
