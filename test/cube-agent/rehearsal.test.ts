/** `--dry-run` goes through every check and writes nothing; `--json` says the same to programs. */
import assert from 'node:assert/strict';
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import { openRepository } from '../../lib/repository/repository.ts';
import { allAt, by, type Host, makeHost, publish, start } from './host.ts';
import { agent, until } from './processes.ts';

async function makePlace(t: TestContext): Promise<Host> {
  const host = await makeHost(t, 2);
  for (const version of ['1', '2', '3']) await publish(host, { version, table: version });
  await host.repository.activate('ctr', 'stable', { version: '1', ...by });
  await host.repository.activate('ctr', 'stable', { version: '2', ...by });
  return host;
}

const treeOf = (host: Host): string[] =>
  readdirSync(host.location, { recursive: true, encoding: 'utf8' }).sort();

test('every command that writes can be rehearsed: it says what it would do, and writes nothing', async (t) => {
  const host = await makePlace(t);
  const before = treeOf(host);
  const of = ['--repository', host.location, '--bundle', 'ctr', '--reason', 'x', '--dry-run'];
  const rehearsals: readonly (readonly [RegExp, readonly string[]])[] = [
    [
      /entry 3 points to version 3 \(dry run: nothing was written\)/,
      ['activate', '--version', '3'],
    ],
    [/entry 3 points back to version 1; version 2 is quarantined \(dry run/, ['rollback']],
    [/stage version 3 \(entry 1 of candidate\) \(dry run/, ['stage', '--version', '3']],
    [/pinned to version 2 \(entry 3\) \(dry run/, ['pin']],
    [/3 is quarantined \(dry run/, ['quarantine', '--version', '3']],
  ];
  await Promise.all(
    rehearsals.map(async ([expected, [command = '', ...args]]) => {
      const { code, stdout, stderr } = await agent(command, ...of, ...args);
      assert.equal(code, 0, stderr);
      assert.match(stdout, expected);
    }),
  );
  assert.deepEqual(treeOf(host), before);
});

test('a rehearsal is refused as the deed would be', async (t) => {
  const { location, repository } = await makePlace(t);
  await repository.pin('ctr', 'stable', by);
  const rehearsed = openRepository(location, { rehearse: true });
  const wish = { version: '3', ...by };
  await assert.rejects(rehearsed.activate('ctr', 'stable', wish), /is pinned to version 2 by test/);
  await assert.rejects(rehearsed.rollback('ctr', 'stable', 'me', 'x'), /is pinned/);
  await assert.rejects(rehearsed.quarantine('ctr', '2', by), /points to version 2/);
  await assert.rejects(
    rehearsed.activate('ctr', 'stable', { ...wish, version: '9' }),
    /has: 1, 2, 3/,
  );
  const overHttp = openRepository('http://127.0.0.1:1/models', { rehearse: true });
  await assert.rejects(overHttp.pin('ctr', 'stable', by));
});

test('publish says what it would copy, and copies only what is missing', async (t) => {
  const host = await makePlace(t);
  const target = join(host.folder, 'target');
  openRepository(target, { create: true });
  const to = [
    'publish',
    '--from',
    host.location,
    '--repository',
    target,
    '--bundle',
    'ctr',
    '--version',
    '1',
  ];
  const rehearsed = await agent(...to, '--dry-run');
  assert.match(rehearsed.stdout, /^ctr 1: 2 layers \(2000 bytes\) to copy \(dry run/);
  assert.deepEqual(readdirSync(target), []);
  const published = JSON.parse((await agent(...to, '--json')).stdout);
  assert.deepEqual([published.published, published.layers, published.bytes], [true, 2, 2000]);
  const again = JSON.parse((await agent(...to, '--json')).stdout);
  assert.deepEqual([again.published, again.layers, again.bytes], [false, 0, 0]);
});

test('stage waits until every server holds the version, which nobody has active; activating it then is a switch', async (t) => {
  const host = await makePlace(t);
  start(t, host);
  await until('all at 2', allAt('2', host.servers));
  const shards = host.servers.map(({ address }) => [{ data: address }]);
  const fleet = join(host.folder, 'fleet.json');
  writeFileSync(fleet, JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum: 2, shards }] } }));
  const of = ['--repository', host.location, '--bundle', 'ctr', '--version', '3', '--reason', 'x'];
  const wait = ['--fleet', fleet, '--wait', '--json'];
  const staged = await agent('stage', ...of, ...wait);
  assert.equal(staged.code, 0, staged.stderr);
  const { channel, entry, waited } = JSON.parse(staged.stdout);
  assert.deepEqual([channel, entry.version, waited.servers], [CANDIDATE_CHANNEL, '3', 2]);
  assert.equal(allAt('2', host.servers)(), true);
  for (const { held } of host.servers) assert.ok(held.includes('3'));
  const active = JSON.parse((await agent('activate', ...of, ...wait)).stdout);
  assert.equal(active.waited.servers, 2);
  assert.equal(allAt('3', host.servers)(), true);
  assert.equal(host.servers.flatMap(({ calls }) => calls).filter((c) => c === 'load 3').length, 2);
});
