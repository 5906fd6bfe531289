/**
 * Partitions of one layer on several nodes of a Cluster: loaded by `serving load-redis` through one
 * node, looked up through another, and each node's keys lost with it.
 */
import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import { createProgram } from '../../../serving/cli.ts';
import { createLoadRedisCli } from '../../../serving/load-redis.ts';
import {
  countPartitions,
  findPartition,
  makePartitionKey,
} from '../../../serving/stores/redis-layout.ts';
import { RedisStore } from '../../../serving/stores/redis-store.ts';
import { assertLookup, createGroup, type OracleTable } from '../../client/support/oracle.ts';
import { runCommand } from '../../support/commands.ts';
import { RedisServers, redisMissing } from './support/redis-servers.ts';
import { TestRepository } from './support/test-repository.ts';

/** Few wide rows make a layer of two partitions (64 MiB each) with little work. */
const DIM = 131_072;
const ROWS = 132;
const SLOTS = 16_384;
const NODES = 3;
const TIMEOUT_MS = 60_000;

test('the partitions of a layer are spread over the nodes of a Cluster', {
  skip: redisMissing ?? false,
}, async (t) => {
  const repository = await TestRepository.create();
  t.after(() => repository.remove());
  const servers = await RedisServers.cluster();
  t.after(() => servers.stop());
  const keys = Array.from({ length: ROWS }, (_, i) => BigInt(i));
  const rows = new Map(keys.map((key) => [key, new Float32Array(DIM).fill(Number(key) + 1)]));
  const table: OracleTable = { name: 't', dim: DIM, rows, defaultRow: [] };
  const version = { bundle: 'ctr', version: '1', shardNum: 1, tables: [table] };
  const manifest = await repository.publish(version);
  const layer = manifest.tables[0]!.shards[0]![0]!;
  assert.equal(countPartitions(manifest.tables[0]!, layer), 2);

  const from = ['--repository', join(repository.folder, 'repo'), '--bundle', 'ctr'];
  const place = ['--version', '1', '--redis-cluster', 'true', '--redis-url', servers.urls[0]!];
  const load = (...more: string[]) =>
    runCommand('serving/main.js', 'load-redis', ...from, ...place, '--json', ...more);
  const planned = await load('--dry-run');
  assert.deepEqual(
    [JSON.parse(planned.stdout).rows, JSON.parse(planned.stdout).dryRun],
    [ROWS, true],
  );
  for (let node = 0; node < NODES; node++) assert.equal(await servers.send(node, 'DBSIZE'), 0);
  const loaded = await load();
  assert.equal(loaded.code, 0, loaded.stderr);
  assert.equal(JSON.parse(loaded.stdout).rows, ROWS);

  const nodes: number[] = [];
  for (const partition of [0, 1]) {
    const key = makePartitionKey('ctr', layer.contentId, partition);
    const slot = Number(await servers.send(0, 'CLUSTER', 'KEYSLOT', key));
    nodes.push(Math.floor((slot * NODES) / SLOTS));
    assert.ok(Number(await servers.send(nodes[partition]!, 'HLEN', key)) > ROWS / 4);
  }
  assert.notEqual(nodes[0], nodes[1], 'this layer has its partitions on different nodes');

  const choice = { kind: 'redis' as const, urls: [servers.urls[nodes[0]!]!], cluster: true };
  const store = new RedisStore(choice, { repository: repository.repository });
  t.after(() => store.close());
  await store.prepare(manifest);
  const all = createGroup(table, keys);
  const answer = await store.lookup(manifest, [all], TIMEOUT_MS);
  assertLookup(version, [{ table, keys, group: all }], answer);

  await servers.kill(nodes[1]!);
  const lost = keys.filter((key) => findPartition(Number(key), 0, 2) === 1);
  let unavailable = -1;
  const endMs = performance.now() + TIMEOUT_MS;
  while (unavailable !== lost.length && performance.now() < endMs) {
    ({ unavailable } = await store.lookup(manifest, [createGroup(table, keys)], TIMEOUT_MS));
  }
  assert.equal(unavailable, lost.length, 'the keys of the killed node, and no others');
});

test('serving and load-redis have the same options for Redis', () => {
  const describe = (options: readonly { long?: string | undefined; flags: string }[]): string[] =>
    options.flatMap(({ long, flags }) =>
      long?.startsWith('--redis-') && long !== '--redis-fill' ? [flags] : [],
    );
  const [loadRedis] = createLoadRedisCli().commands;
  assert.deepEqual(
    describe(loadRedis?.options ?? []).sort(),
    describe(createProgram().options).sort(),
  );
});
