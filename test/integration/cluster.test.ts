/**
 * One cluster of real processes: versions switch under traffic without a failed request or an answer that mixes two of
 * them; then shard servers are killed with kill -9, and return.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import type { Server } from '../../tools/demo/processes.ts';
import { Traffic } from '../../tools/demo/traffic.ts';
import { type Answer, Cluster, eventually } from './cluster.ts';

const SHARD_NUM = 4;
let cluster: Cluster;
/** Of version 1. */
let servers: Server[];
let serving: Server;

before(async () => {
  cluster = await Cluster.create();
  await cluster.publish('1', SHARD_NUM, 0);
  await cluster.publish('2', SHARD_NUM, 2);
  await cluster.publish('3', 3, 3);
  await cluster.agent('activate', '--version', '1', '--reason', 'first');
  servers = await cluster.startShards(SHARD_NUM);
  await cluster.startShards(3);
  await cluster.startAgent();
  serving = await cluster.startServing('--store', 'remote', '--fleet', cluster.path('fleet.json'));
});
after(() => cluster.destroy());

async function underTraffic(work: (traffic: Traffic) => Promise<void>): Promise<void> {
  const rows = cluster.lines.join('\n');
  const traffic = new Traffic(cluster.endpoint, rows, cluster.reference);
  traffic.start();
  await traffic.untilAnswered('1', 20);
  await work(traffic);
  const report = await traffic.stop();
  assert.equal(report.failed, 0, report.firstFailure);
  assert.equal(report.mixed, 0);
  assert.ok(report.requests > 100);
}

test('version 2 goes out and back', async () => {
  await underTraffic(async (traffic) => {
    await cluster.agent('activate', '--version', '2', '--reason', 'retrained');
    await traffic.untilAnswered('2', 50);
    await cluster.agent('rollback', '--reason', 'enough');
    await traffic.untilAnswered('1', 50);
  });
});

test('a version with another number of shards goes out and back', async () => {
  await underTraffic(async (traffic) => {
    await cluster.agent('activate', '--version', '3', '--reason', 'resharded');
    await traffic.untilAnswered('3', 50);
    await cluster.agent('rollback', '--reason', 'enough');
    await traffic.untilAnswered('1', 50);
  });
});

test('a quarantined version is not activated again', async () => {
  await assert.rejects(
    cluster.agent('activate', '--version', '2', '--reason', 'again'),
    /quarantin/,
  );
});

async function kill(shard: number): Promise<void> {
  const { process } = servers[shard] as Server;
  cluster.processes.onUnexpectedExit = () => undefined;
  const gone = new Promise((resolve) => process.once('exit', resolve));
  process.kill('SIGKILL');
  await gone;
}

/** Starts the shard where it was; nothing else is told. */
async function revive(shard: number): Promise<void> {
  const port = Number((servers[shard] as Server).address.split(':').at(-1));
  servers[shard] = await cluster.startShard(shard, SHARD_NUM, port);
}

function assertRight(answer: Answer, from: number): void {
  assert.equal(answer.status, 200, answer.error);
  assert.equal(answer.version, '1');
  assert.equal(answer.degraded, false);
  assert.ok(
    cluster.difference(answer, from) <= 1e-5,
    `differs by ${cluster.difference(answer, from)}`,
  );
}

test('policy fail: a dead shard is an error that says so, and its return makes traffic whole', async () => {
  assertRight(await cluster.predict(0, 32), 0);
  for (const shard of [1, 3]) {
    await kill(shard);
    for (let from = 0; from < 320; from += 32) {
      const answer = await cluster.predict(from, 32);
      assert.equal(answer.status, 503);
      assert.equal(answer.probabilities, undefined);
      assert.match(answer.error ?? '', /unavailable|shard/i);
    }
    await revive(shard);
    await eventually(async () => (await cluster.predict(0, 32)).status === 200, 'traffic is whole');
    for (let from = 0; from < 320; from += 32) assertRight(await cluster.predict(from, 32), from);
  }
  serving.process.kill('SIGTERM');
  await new Promise((resolve) => serving.process.once('exit', resolve));
});

test('policy default: answers say that they are degraded and how many keys were unavailable', async () => {
  await cluster.startServing(
    ...['--store', 'remote', '--fleet', cluster.path('fleet.json')],
    ...['--on-unavailable', 'default', '--max-unavailable-share', '0.9'],
  );
  assertRight(await cluster.predict(0, 32), 0);
  await kill(2);
  const answer = await cluster.predict(0, 32);
  assert.equal(answer.status, 200, answer.error);
  assert.equal(answer.degraded, true);
  assert.ok((answer.unavailable ?? 0) > 0);
  await revive(2);
  await eventually(async () => (await cluster.predict(0, 32)).degraded === false, 'whole again');
  assertRight(await cluster.predict(0, 32), 0);
});
