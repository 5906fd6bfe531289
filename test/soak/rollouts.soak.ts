/**
 * Fifty rollouts and rollbacks under callers at full speed: 4 shards on each of two hosts, agents
 * that run their servers, and a serving process. Run by `npm run soak`; `npm run bench -- rollouts`
 * measures the same.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { ChannelWatch } from '../../bench/support/channel-watch.ts';
import { BUNDLE } from '../../bench/support/demo-model.ts';
import {
  type Caller,
  LookupCaller,
  makeCounts,
  PredictionCaller,
} from '../../bench/support/rollout-callers.ts';
import { RolloutFleet } from '../../bench/support/rollout-fleet.ts';
import { VersionPublisher } from '../../bench/support/rollout-versions.ts';
import { onTestEnd, temporaryFolder } from '../repository/support/fixtures.ts';

const SHAPE = { hosts: 2, shardNum: 4 };
const TABLE_ROWS = 120_000;
const SWITCHES = 50;
const IN_FLIGHT = 4;
const MIXED_UNTIL = 10;

async function callUntil(caller: Caller, until: () => boolean): Promise<void> {
  const callRepeatedly = async (): Promise<void> => {
    while (!until()) await caller.call();
  };
  await Promise.all(Array.from({ length: IN_FLIGHT }, callRepeatedly));
}

test('no request fails or mixes versions during fifty rollouts and rollbacks', async (t) => {
  const folder = temporaryFolder(t);
  const source = await VersionPublisher.create(folder, TABLE_ROWS, SHAPE.shardNum);
  await source.publish(1);
  await source.repository.activate(BUNDLE, 'stable', { version: '1', by: 'test', reason: 'first' });
  const fleet = await RolloutFleet.start(folder, SHAPE);
  onTestEnd(t, () => fleet.stop());
  await fleet.startServing();
  const watch = new ChannelWatch(folder);
  const callers = [
    new LookupCaller(folder, TABLE_ROWS, () => watch.manifest),
    await PredictionCaller.open(folder, fleet.url),
  ];
  let done = false;
  onTestEnd(t, () => {
    done = true;
    watch.close();
    for (const caller of callers) caller.close();
  });
  await watch.waitForVersion();
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
    const { requests, failed, wrong, mixed, firstProblem = '', versions } = counts;
    t.diagnostic(`${requests} requests, ${versions.length} versions`);
    assert.deepEqual([failed, wrong, mixed], [0, 0, 0], firstProblem);
    assert.ok(versions.length > rollbacks, `${versions.length} versions answered`);
  }

  await source.publish(version + 1, { shard: 2, from: 1 });
  await fleet.rollOut(version + 1);
  for (const caller of callers) {
    caller.counts = makeCounts();
    await callUntil(caller, () => caller.counts.mixed >= MIXED_UNTIL);
  }
});
