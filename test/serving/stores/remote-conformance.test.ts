/** The REMOTE store runs the whole conformance suite, with real cube-servers. */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { CubeClient } from '../../../lib/client/cube-client.ts';
import { OUTCOME_UNAVAILABLE } from '../../../lib/core/lookup-group.ts';
import { RemoteStore } from '../../../serving/stores/remote-store.ts';
import { assertLookup, createGroup, createOracleTable } from '../../client/support/oracle.ts';
import { testStoreConformance } from './support/conformance.ts';
import { CubeServers } from './support/cube-servers.ts';
import { TestRepository } from './support/test-repository.ts';

testStoreConformance('REMOTE', async () => {
  const source = await TestRepository.create();
  const servers = new CubeServers('ctr', join(source.folder, 'repo'));
  const store = new RemoteStore(new CubeClient({ fleet: () => servers.fleet }));
  return {
    store,
    publish: async (version) => {
      const manifest = await source.publish(version);
      await servers.load(manifest);
      return manifest;
    },
    close: async () => {
      await store.close();
      await servers.stop();
      await source.remove();
    },
  };
});

test('prepare fails when a shard lacks the version, and names shard and replica', async () => {
  const source = await TestRepository.create();
  const servers = new CubeServers('ctr', join(source.folder, 'repo'));
  const store = new RemoteStore(new CubeClient({ fleet: () => servers.fleet }));
  try {
    const table = createOracleTable('t', 2, [1n, 2n]);
    const one = await source.publish({ bundle: 'ctr', version: '1', shardNum: 2, tables: [table] });
    await servers.load(one);
    const two = await source.publish({ bundle: 'ctr', version: '2', shardNum: 2, tables: [table] });
    await store.prepare(one);
    await assert.rejects(store.prepare(two), {
      code: 'NOT_READY',
      message: new RegExp(
        'ctr 2 is not on every shard: shard 0 of 2: ' +
          '127\\.0\\.0\\.1:\\d+ VERSION_ABSENT .* \\| shard 1 of 2',
      ),
    });
    await assert.rejects(store.lookup(two, [createGroup(table, [1n])], 1_000), {
      code: 'VERSION_ABSENT',
    });
  } finally {
    await store.close();
    await servers.stop();
    await source.remove();
  }
});

test('keys of a killed server are unavailable until it is started again', async () => {
  const source = await TestRepository.create();
  const servers = new CubeServers('ctr', join(source.folder, 'repo'), { areProcesses: true });
  const store = new RemoteStore(new CubeClient({ fleet: () => servers.fleet }));
  try {
    const keys = Array.from({ length: 50 }, (_, i) => BigInt(i));
    const table = createOracleTable('t', 10, keys.slice(0, 40), { defaultRow: Array(10).fill(5) });
    const version = { bundle: 'ctr', version: '1', shardNum: 3, tables: [table] };
    const manifest = await source.publish(version);
    await servers.load(manifest);
    await store.prepare(manifest);
    const lookUp = async (down?: number): Promise<number> => {
      const group = createGroup(table, keys);
      const summary = await store.lookup(manifest, [group], 5_000);
      const isDown = (shard: number, outcome: number) =>
        down === undefined ? outcome === OUTCOME_UNAVAILABLE : shard === down;
      assertLookup(version, [{ table, keys, group }], summary, isDown);
      return summary.unavailable;
    };
    assert.equal(await lookUp(), 0);
    const address = servers.fleet.bundles.get('ctr')![0]!.shards[1]![0]!.data;
    await servers.kill(address);
    for (let i = 0; i < 10; i++) await lookUp(1);
    await servers.restart(address);
    // The server has not loaded the version yet: its keys are unavailable, not unseen.
    await lookUp();
    await servers.load(manifest);
    while ((await lookUp()) > 0) await sleep(20);
  } finally {
    await store.close();
    await servers.stop();
    await source.remove();
  }
});
