/** The tools against servers that answer as the C++ server of PaddlePaddle Cube does. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { OriginalServer } from '../../cube-agent/cube/support/original-server.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { type Entry, floats, writeCubeDict } from '../../store/support/cube-dicts.ts';
import { runCommand } from '../../support/commands.ts';
import { makeKeys, makeRows, publish, type TableSpec } from '../publish-version.ts';

const cli = (...args: string[]) => runCommand('tools/cube-cli/main.js', ...args);
const check = (...args: string[]) => runCommand('tools/cube-check/main.js', ...args);

/** A server with version 100 of one of two shards. */
async function startShard(t: TestContext, shard: number): Promise<OriginalServer> {
  const folder = temporaryFolder(t);
  const keys = [0n, 1n, 2n, 3n].filter((key) => Number(key % 2n) === shard);
  const entries = keys.map((key): Entry => [key, floats(Number(key), 2)]);
  writeCubeDict(join(folder, 'data', '100'), [entries]);
  writeFileSync(join(folder, 'data', 'VERSION'), '100\n');
  return new OriginalServer(folder).listen(t);
}

test('seek and stat speak with the C++ server', async (t) => {
  const servers = [await startShard(t, 0), await startShard(t, 1)];
  const flags = servers.flatMap(({ address }) => ['--server', address]);
  const found = await cli('seek', '2', '3', '5', '--json', '--dict', 'd', ...flags);
  assert.equal(found.code, 0, found.stderr);
  const lines = found.stdout.trimEnd().split('\n');
  assert.deepEqual(
    lines.map((line) => {
      const { key, outcome, shard, version } = JSON.parse(line);
      return [key, outcome, shard, version].join(' ');
    }),
    ['2 hit 0 100', '3 hit 1 100', '5 unseen 1 100'],
  );
  assert.match(found.stderr, /assuming that \S+ is shard 0, \S+ is shard 1; a key of another/);
  const stat = await cli('stat', ...flags);
  assert.equal(stat.code, 0, stat.stderr);
  const line = /^\?\s+127\.0\.0\.1:\d+\s+yes\s+100\*\s+-\s+PaddlePaddle Cube \(C\+\+\)/m;
  assert.match(stat.stdout, line);
  const { replicas } = JSON.parse((await cli('stat', '--json', ...flags)).stdout);
  assert.deepEqual(
    replicas.map(({ ready, version }: Record<string, unknown>) => [ready, version]),
    [
      [true, '100'],
      [true, '100'],
    ],
  );
  const mixed = await cli('seek', '2', '--dict', 'd', ...flags, '--server', '127.0.0.1:1');
  assert.equal(mixed.code, 1);
  assert.match(mixed.stderr, /its shard is not known; pass --cube-conf/);
});

test('cube-check and pinned lookups say what the C++ server cannot do', async (t) => {
  const { address } = await startShard(t, 0);
  const sound = await check(address);
  assert.equal(sound.code, 0, sound.stdout);
  assert.match(sound.stdout, /is a server of PaddlePaddle Cube \(C\+\+\).*version 100/);
  const root = join(temporaryFolder(t), 'repository');
  const rows = makeRows(makeKeys(4), 2);
  const table: TableSpec = { name: 't', dtype: 'f32', dim: 2, layers: [{ rows }] };
  await publish(root, { version: '1', shardNum: 1, tables: [table] });
  const compared = await check(address, '--repository', root);
  assert.equal(compared.code, 1);
  assert.match(compared.stdout, /answers seeks only: compare rows with cube-cli seek --dict/);
  const pinned = ['--repository', root, '--bundle', 'b', '--version', '1', '--server', address];
  const refused = await cli('seek', '2', ...pinned);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /answers seeks only: name a --dict, and remove --repository/);
});
