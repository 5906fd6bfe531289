/** Versions switch under traffic: no failed request, no answer that mixes two versions. */
import assert from 'node:assert/strict';
import { after, before, test } from 'node:test';
import { Traffic } from '../../tools/demo/traffic.ts';
import { Cluster } from './cluster.ts';

let cluster: Cluster;

before(async () => {
  cluster = await Cluster.create();
  await cluster.publish('1', 4, 0);
  await cluster.publish('2', 4, 2);
  await cluster.publish('3', 3, 3);
  await cluster.agent('activate', '--version', '1', '--reason', 'first');
  await cluster.startShards(4);
  await cluster.startShards(3);
  await cluster.startAgent();
  await cluster.startServing('--store', 'remote', '--fleet', cluster.path('fleet.json'));
});
after(() => cluster.destroy());

async function underTraffic(work: (traffic: Traffic) => Promise<void>): Promise<void> {
  const rows = cluster.lines.join('\n');
  const traffic = new Traffic(cluster.endpoint, rows, cluster.reference);
  traffic.start();
  await traffic.untilAnswered('1', 20);
  await work(traffic);
  const report = await traffic.stop();
  assert.equal(report.failed, 0);
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
