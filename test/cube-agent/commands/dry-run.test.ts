/** `--dry-run` runs every check and writes nothing; `--json` prints the same result as JSON. */
import assert from 'node:assert/strict';
import { readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { CANDIDATE_CHANNEL } from '../../../lib/core/rollout.ts';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { waitFor } from '../../support/processes.ts';
import {
  AUDIT,
  areAllActive,
  createHost,
  type Host,
  publish,
  startAgent,
} from '../support/host.ts';

async function makePlace(t: TestContext): Promise<Host> {
  const host = await createHost(t, 2);
  for (const version of ['1', '2', '3']) await publish(host, { version, table: version });
  await host.repository.activate('ctr', 'stable', { version: '1', ...AUDIT });
  await host.repository.activate('ctr', 'stable', { version: '2', ...AUDIT });
  return host;
}

const readTree = (host: Host): string[] =>
  readdirSync(host.location, { recursive: true, encoding: 'utf8' }).sort();

test('a dry run prints what would be done and writes nothing', async (t) => {
  const host = await makePlace(t);
  const before = readTree(host);
  const of = ['--repository', host.location, '--bundle', 'ctr', '--reason', 'x', '--dry-run'];
  const dryRuns: readonly (readonly [RegExp, readonly string[]])[] = [
    [
      /entry 3 points to version 3 \(dry run: nothing was written\)/,
      ['activate', '--version', '3'],
    ],
    [/entry 3 points back to version 1; version 2 is quarantined \(dry run/, ['rollback']],
    [/version 3 is staged \(channel candidate, entry 1\) \(dry run/, ['stage', '--version', '3']],
    [/pinned to version 2 \(entry 3\) \(dry run/, ['pin']],
    [/3 is quarantined \(dry run/, ['quarantine', '--version', '3']],
  ];
  await Promise.all(
    dryRuns.map(async ([expected, [command = '', ...args]]) => {
      const { code, stdout, stderr } = await runAgentCommand(command, ...of, ...args);
      assert.equal(code, 0, stderr);
      assert.match(stdout, expected);
    }),
  );
  assert.deepEqual(readTree(host), before);
});

test('a dry run is refused where the command would be', async (t) => {
  const { location, repository } = await makePlace(t);
  await repository.pin('ctr', 'stable', AUDIT);
  const dryRun = openRepository(location, { dryRun: true });
  const request = { version: '3', ...AUDIT };
  await assert.rejects(dryRun.activate('ctr', 'stable', request), /is pinned to version 2 by test/);
  await assert.rejects(dryRun.rollback('ctr', 'stable', 'me', 'x'), /is pinned/);
  await assert.rejects(dryRun.quarantine('ctr', '2', AUDIT), /points to version 2/);
  await assert.rejects(
    dryRun.activate('ctr', 'stable', { ...request, version: '9' }),
    /has: 1, 2, 3/,
  );
  const overHttp = openRepository('http://127.0.0.1:1/models', { dryRun: true });
  await assert.rejects(overHttp.pin('ctr', 'stable', AUDIT));
});

test('publish says what it would copy, and copies only what is missing', async (t) => {
  const host = await makePlace(t);
  const target = join(host.folder, 'target');
  openRepository(target, { create: true });
  const to = [
    'publish',
    ...toArguments({ from: host.location, repository: target, bundle: 'ctr', version: 1 }),
  ];
  const dryRun = await runAgentCommand(...to, '--dry-run');
  assert.match(dryRun.stdout, /^ctr 1: 2 layers \(2000 bytes\) to copy \(dry run/);
  assert.deepEqual(readdirSync(target), []);
  const published = JSON.parse((await runAgentCommand(...to, '--json')).stdout);
  assert.deepEqual([published.published, published.layers, published.bytes], [true, 2, 2000]);
  const again = JSON.parse((await runAgentCommand(...to, '--json')).stdout);
  assert.deepEqual([again.published, again.layers, again.bytes], [false, 0, 0]);
});

test('stage waits until every server has loaded the version', async (t) => {
  const host = await makePlace(t);
  startAgent(t, host);
  await waitFor('all at 2', areAllActive('2', host.servers));
  const shards = host.servers.map(({ address }) => [{ data: address }]);
  const fleet = join(host.folder, 'fleet.json');
  writeFileSync(fleet, JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum: 2, shards }] } }));
  const of = ['--repository', host.location, '--bundle', 'ctr', '--version', '3', '--reason', 'x'];
  const wait = ['--fleet', fleet, '--wait', '--json'];
  const staged = await runAgentCommand('stage', ...of, ...wait);
  assert.equal(staged.code, 0, staged.stderr);
  const { channel, entry, waited } = JSON.parse(staged.stdout);
  assert.deepEqual([channel, entry.version, waited.servers], [CANDIDATE_CHANNEL, '3', 2]);
  assert.equal(areAllActive('2', host.servers)(), true);
  for (const { loaded } of host.servers) assert.ok(loaded.includes('3'));
  const active = JSON.parse((await runAgentCommand('activate', ...of, ...wait)).stdout);
  assert.equal(active.waited.servers, 2);
  assert.equal(areAllActive('3', host.servers)(), true);
  assert.equal(host.servers.flatMap(({ calls }) => calls).filter((c) => c === 'load 3').length, 2);
});
