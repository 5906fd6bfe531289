import assert from 'node:assert/strict';
import { after, test } from 'node:test';
import { CubeClient } from '../../lib/client/cube-client.ts';
import { setKey } from '../../lib/core/keys.ts';
import { OUTCOME_HIT } from '../../lib/core/lookup-group.ts';
import { createReplica } from '../client/support/test-fleet.ts';
import { DataFolder } from './support/data-folder.ts';
import { killServers, ServerProcess } from './support/server-process.ts';

const folder = new DataFolder();
after(() => {
  killServers();
  folder.remove();
});

test('no lookup fails while replicas are drained, undrained and stopped in turn', async () => {
  const keys = Array.from({ length: 64 }, (_, i) => BigInt(i * 7));
  const tables = [{ name: 'dict', dim: 2, keys, value: (key: bigint) => Number(key) }];
  const manifest = folder.write({ bundle: 'ctr', version: '1', shardNum: 1, tables });
  const flags = ['--shard', '0', '--shard-num', '1', '--data-dir', folder.path];
  const servers = await Promise.all([ServerProcess.start(flags), ServerProcess.start(flags)]);
  for (const server of servers) {
    for (const call of ['load', 'activate']) {
      await server.control(call, { bundle: 'ctr', version: '1' });
    }
  }
  const replicas = servers.map(({ address }) => createReplica(address));
  const fleet = { bundles: new Map([['ctr', [{ shardNum: 1, shards: [replicas] }]]]) };
  const client = new CubeClient({ fleet: () => fleet });
  const words = new Uint32Array(2 * keys.length);
  keys.forEach((key, i) => {
    setKey(words, i, key);
  });
  let running = true;
  let answered = 0;
  const worker = async (): Promise<void> => {
    const group = { table: 'dict', keys: words, count: keys.length };
    const rows = new Float32Array(2 * keys.length);
    const outcomes = new Uint8Array(keys.length);
    while (running) {
      await client.lookup(manifest, [{ ...group, rows, outcomes }], 5000);
      assert.ok(outcomes.every((outcome) => outcome === OUTCOME_HIT));
      assert.equal(rows[2], 7);
      answered++;
    }
  };
  const traffic = Promise.all(Array.from({ length: 8 }, worker));
  const some = async (): Promise<void> => {
    const target = answered + 200;
    while (answered < target) await new Promise((resolve) => setTimeout(resolve, 5));
  };
  const [first, second] = servers;
  assert.ok(first && second);
  for (const server of [first, second, first]) {
    await server.control('drain', {});
    await some();
    await server.control('undrain', {});
    await some();
  }
  await first.control('drain', {});
  await some();
  assert.equal((await first.stop()).code, 0);
  await some();
  running = false;
  await traffic;
  client.close();
  assert.equal((await second.stop()).code, 0);
});
