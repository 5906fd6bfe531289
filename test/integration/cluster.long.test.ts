/**
 * One cluster of real processes: versions switch under load without failed or mixed responses; then
 * shard servers are killed with kill -9 and restarted.
 */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { toArguments } from '../../lib/platform/arguments.ts';
import { LoadRunner } from '../../tools/demo/load-runner.ts';
import type { ServerProcess } from '../../tools/demo/processes.ts';
import { type Answer, Cluster, waitUntil } from './support/cluster.ts';

const SHARD_NUM = 4;
let cluster: Cluster;
/** Servers of version 1. */
let servers: ServerProcess[];
let serving: ServerProcess;

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

async function underTraffic(work: (traffic: LoadRunner) => Promise<void>): Promise<void> {
  const rows = cluster.lines.join('\n');
  const traffic = new LoadRunner(cluster.endpoint, rows, cluster.reference);
  traffic.start();
  await traffic.waitForVersion('1', 20);
  await work(traffic);
  const report = await traffic.stop();
  assert.equal(report.failed, 0, report.firstFailure);
  assert.equal(report.mixed, 0);
  assert.ok(report.requests > 100);
}

test('version 2 is rolled out and rolled back under load', async () => {
  await underTraffic(async (traffic) => {
    await cluster.agent('activate', '--version', '2', '--reason', 'retrained');
    await traffic.waitForVersion('2', 50);
    await cluster.agent('rollback', '--reason', 'enough');
    await traffic.waitForVersion('1', 50);
  });
});

test('a version with a different shard count is rolled out and rolled back', async () => {
  await underTraffic(async (traffic) => {
    await cluster.agent('activate', '--version', '3', '--reason', 'resharded');
    await traffic.waitForVersion('3', 50);
    await cluster.agent('rollback', '--reason', 'enough');
    await traffic.waitForVersion('1', 50);
  });
});

test('a quarantined version is not activated again', async () => {
  await assert.rejects(
    cluster.agent('activate', '--version', '2', '--reason', 'again'),
    /quarantin/,
  );
});

async function kill(shard: number): Promise<void> {
  const { process } = servers[shard] as ServerProcess;
  cluster.processes.onUnexpectedExit = () => undefined;
  const gone = new Promise((resolve) => process.once('exit', resolve));
  process.kill('SIGKILL');
  await gone;
}

/** Starts the shard again on its old port. */
async function revive(shard: number): Promise<void> {
  const port = Number((servers[shard] as ServerProcess).address.split(':').at(-1));
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

test('policy fail: a dead shard causes errors, and its return ends them', async () => {
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
    await waitUntil(async () => (await cluster.predict(0, 32)).status === 200, 'traffic is whole');
    for (let from = 0; from < 320; from += 32) assertRight(await cluster.predict(from, 32), from);
  }
  serving.process.kill('SIGTERM');
  await new Promise((resolve) => serving.process.once('exit', resolve));
});

test('policy default: responses are degraded and count unavailable keys', async () => {
  await cluster.startServing(
    ...toArguments({
      store: 'remote',
      fleet: cluster.path('fleet.json'),
      onUnavailable: 'default',
      maxUnavailableShare: '0.9',
    }),
  );
  assertRight(await cluster.predict(0, 32), 0);
  await kill(2);
  const answer = await cluster.predict(0, 32);
  assert.equal(answer.status, 200, answer.error);
  assert.equal(answer.degraded, true);
  assert.ok((answer.unavailable ?? 0) > 0);
  await revive(2);
  await waitUntil(async () => (await cluster.predict(0, 32)).degraded === false, 'whole again');
  assertRight(await cluster.predict(0, 32), 0);
});
