/** Where cube-builder publishes: dry runs, buckets, and locations that cannot be written to. */
import assert from 'node:assert/strict';
import { existsSync, readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { FakeS3Server } from '../../repository/support/fake-s3-server.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runCommand } from '../../support/commands.ts';
import { createRows, hashFiles, runBuilder, writeTable } from './support/tables.ts';

process.env['AWS_ACCESS_KEY_ID'] = 'test';
process.env['AWS_SECRET_ACCESS_KEY'] = 'test';

test('a dry run checks the input, prints the plan and writes nothing', async (t) => {
  const folder = temporaryFolder(t);
  const input = writeTable(join(folder, 'in'), 't', createRows(50));
  const outputPath = join(folder, 'repository');
  const build = toArguments({ input, shardNum: 3, curVersion: 1, bundle: 'b', outputPath });
  const text = await runBuilder(...build, '--dry-run');
  assert.equal(text.code, 0, text.stderr);
  assert.match(
    text.stdout,
    /would build and publish b 1 in .*: shards 0-2 of 3\n {2}t: base of 4 × f32/,
  );
  assert.ok(!existsSync(outputPath));
  const parts = await runBuilder(...build, '--only-build');
  assert.equal(parts.code, 0, parts.stderr);
  assert.match(parts.stdout, /layout inline: its rows are always in memory; with --layout indexed/);
  const before = hashFiles(outputPath);
  const seal = toArguments({ version: 1, bundle: 'b', outputPath });
  const sealed = await runBuilder('seal', ...seal, '--dry-run', '--json');
  assert.equal(sealed.code, 0, sealed.stderr);
  assert.deepEqual(JSON.parse(sealed.stdout).perTable[0].layouts, ['inline']);
  assert.deepEqual([JSON.parse(sealed.stdout).rows, JSON.parse(sealed.stdout).dryRun], [50, true]);
  assert.deepEqual(hashFiles(outputPath), before);
  assert.equal((await runBuilder('seal', ...seal)).code, 0);
  const indexed = [...build, '--cur-version', '2', '--layout', 'indexed'];
  assert.doesNotMatch((await runBuilder(...indexed)).stdout, /layout inline/);
  const { tables, exists, dryRun } = JSON.parse(
    (await runBuilder(...build, '--dry-run', '--json')).stdout,
  );
  assert.deepEqual([tables[0].name, exists, dryRun], ['t', true, true]);
  const wrong = await runBuilder(...build, '--dry-run', '--dtype', 'bytes');
  assert.equal(wrong.code, 1);
});

test('a version is built into a bucket, and cube-check checks it there', async (t) => {
  const folder = temporaryFolder(t);
  const server = await FakeS3Server.start(t);
  const input = writeTable(join(folder, 'in'), 't', createRows(200));
  const base = toArguments({ input, shardNum: 2, bundle: 'b' });
  const local = join(folder, 'repository');
  for (const outputPath of [local, server.url]) {
    const { code, stderr } = await runBuilder(
      ...base,
      ...toArguments({ curVersion: 1, outputPath }),
    );
    assert.equal(code, 0, stderr);
  }
  const changed = writeTable(
    join(folder, 'changed'),
    't',
    createRows(20, (i) => i + 0.5),
  );
  const delta = toArguments({ input: changed, jobMode: 'delta', dependVersion: 1, curVersion: 2 });
  const place = toArguments({ bundle: 'b', outputPath: server.url });
  const added = await runBuilder(...delta, ...place, '--json');
  assert.equal(added.code, 0, added.stderr);
  assert.equal(JSON.parse(added.stdout).published, true);
  const [remote, here] = [openRepository(server.url), openRepository(local)];
  assert.deepEqual(await remote.readManifest('b', '1'), await here.readManifest('b', '1'));
  assert.deepEqual(await remote.listVersions('b'), ['1', '2']);

  const checkRemote = (target: string, ...flags: string[]) =>
    runCommand('tools/cube-check/main.js', target, ...flags);
  const sound = await checkRemote(server.url, '--deep');
  assert.equal(sound.code, 0, sound.stdout + sound.stderr);
  assert.match(sound.stdout, /^sound: checked 2 versions, 4 layers/m);
  const [path, query] = server.url.split('?');
  const one = await checkRemote(`${path}/b/versions/1/manifest.json?${query}`);
  assert.match(one.stdout, /^sound: checked 1 version, 2 layers/m);
  const [key, layer] = [...server.objects].find(([name]) => name.endsWith('.cube'))!;
  layer.body[5000]! ^= 1;
  const damaged = await checkRemote(server.url);
  assert.equal(damaged.code, 1);
  assert.match(damaged.stdout, /the block of 1 MiB at byte 4096 is damaged/);
  server.objects.delete(key);
  assert.match((await checkRemote(server.url)).stdout, /\.cube is missing/);
  assert.deepEqual(
    readdirSync(folder).sort(),
    ['changed', 'in', 'repository'],
    'nothing is left beside the inputs',
  );
});

test('locations that cannot be built into say which command to use', async (t) => {
  const input = writeTable(join(temporaryFolder(t), 'in'), 't', createRows(5));
  const base = toArguments({ input, shardNum: 1, bundle: 'b', curVersion: 1 });
  const http = await runBuilder(...base, '--output-path', 'http://127.0.0.1:1/models');
  assert.equal(http.code, 1);
  assert.match(http.stderr, /a web server can only be read; publish to a folder or s3:/);
  const parts = await runBuilder(...base, '--output-path', 's3://bucket/models', '--only-build');
  assert.equal(parts.code, 2);
  assert.match(parts.stderr, /need a folder; build there, .* cube-agent publish/);
});
