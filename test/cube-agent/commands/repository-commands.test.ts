/** Keys, pins and garbage collection from the command line, as real processes. */
import assert from 'node:assert/strict';
import { statSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { FakeS3Server } from '../../repository/support/fake-s3-server.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { StaticServer } from '../../repository/support/static-server.ts';
import { runAgentCommand } from '../../support/commands.ts';

process.env['AWS_ACCESS_KEY_ID'] = 'test';
process.env['AWS_SECRET_ACCESS_KEY'] = 'test';

async function makeRepository(t: TestContext, ...versions: string[]): Promise<string> {
  const location = join(temporaryFolder(t), 'repository');
  const repository = openRepository(location, { create: true });
  for (const version of versions) {
    await repository.publish(makeVersion(temporaryFolder(t), { version, table: version }));
  }
  return location;
}

async function ok(...args: string[]): Promise<string> {
  const { code, stdout, stderr } = await runAgentCommand(...args);
  assert.equal(code, 0, stderr);
  return stdout;
}

const why = ['--reason', 'holidays', '--by', 'ann'];

test('a pinned channel refuses to move until it is unpinned', async (t) => {
  const repository = await makeRepository(t, '1', '2');
  const of = ['--repository', repository, '--bundle', 'ctr'];
  await ok('activate', ...of, '--version', '1', ...why, '--expected', '0');
  assert.match(await ok('pin', ...of, ...why), /pinned to version 1 \(entry 2\)/);
  const refused = await runAgentCommand('activate', ...of, '--version', '2', ...why);
  assert.equal(refused.code, 1);
  assert.match(refused.stderr, /is pinned to version 1 by ann \("holidays", entry 2\); unpin/);
  assert.match(await ok('history', ...of), /1 \(pinned\)/);
  await ok('unpin', ...of, ...why);
  await ok('activate', ...of, '--version', '2', ...why);
  const late = await runAgentCommand('rollback', ...of, ...why, '--from', '1');
  assert.match(late.stderr, /does not point to 1/);
  assert.match(await ok('rollback', ...of, ...why, '--from', '2'), /version 2 is quarantined/);
});

test('a quarantine can be lifted or not be made, and the history says so', async (t) => {
  const repository = await makeRepository(t, '1', '2');
  const of = ['--repository', repository, '--bundle', 'ctr'];
  for (const version of ['1', '2']) await ok('activate', ...of, '--version', version, ...why);
  const kept = await ok('rollback', ...of, ...why, '--no-quarantine');
  assert.match(kept, /points back to version 1\n$/);
  await ok('activate', ...of, '--version', '2', ...why);
  assert.match(await ok('rollback', ...of, ...why), /version 2 is quarantined/);
  const lift = ['quarantine', ...of, '--version', '2', '--lift', '--by', 'eve', '--reason', 'fine'];
  assert.match(await ok(...lift, '--dry-run'), /ctr 2 is no longer quarantined.*dry run/s);
  const refused = await runAgentCommand('activate', ...of, '--version', '2', ...why);
  assert.match(refused.stderr, /version 2 of ctr is quarantined/);
  assert.equal(await ok(...lift), 'ctr 2 is no longer quarantined\n');
  assert.equal(await ok(...lift), 'ctr 2 was not quarantined\n');
  assert.match(await ok('history', ...of), /1 \(quarantine of 2 lifted\).* eve +fine/);
  await ok('activate', ...of, '--version', '2', ...why);
  // Quarantined without a rollback, lifted, and quarantined again.
  const quarantine = ['quarantine', ...of, '--version', '1', ...why];
  await ok(...quarantine);
  await ok('quarantine', ...of, '--version', '1', '--lift', ...why);
  assert.match(await ok('history', ...of), /2 \(quarantine of 1 lifted\)/);
  assert.equal(await ok(...quarantine), 'ctr 1 is quarantined\n');
});

test('a key is made, signs what is published, and what is not signed is not taken', async (t) => {
  const from = await makeRepository(t, '1', '2');
  const folder = temporaryFolder(t);
  const key = join(folder, 'key.pem');
  assert.match(await ok('keygen', '--out', key), /^key [0-9a-f]{16}: /);
  assert.equal(statSync(key).mode & 0o077, 0);
  assert.equal((await runAgentCommand('keygen', '--out', key)).code, 1);
  const to = join(folder, 'to');
  const copy = ['publish', '--from', from, '--repository', to, '--bundle', 'ctr', '--version'];
  await ok(...copy, '1', '--signing-key', key);
  await ok(...copy, '2');
  const trusting = ['--repository', to, '--bundle', 'ctr', '--trusted-keys', `${key}.pub`];
  const signed = ['--signing-key', key];
  const refused = await runAgentCommand(
    'activate',
    ...trusting,
    ...signed,
    '--version',
    '2',
    ...why,
  );
  assert.match(refused.stderr, /manifest of version 2 of ctr .* is not signed/);
  await ok('sign', '--repository', to, '--bundle', 'ctr', '--version', '2', ...signed);
  await ok('activate', ...trusting, ...signed, '--version', '2', ...why);
  assert.match(await ok('status', ...trusting), /channel stable: 2/);
});

test('a version is copied from a folder to a bucket and read over HTTP', async (t) => {
  const from = await makeRepository(t, '1', '2');
  const store = await FakeS3Server.start(t);
  const of = ['--repository', store.url, '--bundle', 'ctr'];
  for (const version of ['1', '2']) {
    assert.match(
      await ok('publish', '--from', from, ...of, '--version', version),
      /published in s3:/,
    );
    await ok('activate', ...of, '--version', version, ...why);
  }
  assert.match(
    await ok('publish', '--from', from, ...of, '--version', '2'),
    /was already published/,
  );
  assert.match(await ok('status', ...of), /channel stable: 2, previous 1\npublished: 1, 2/);
  const back = join(temporaryFolder(t), 'back');
  await ok(
    'publish',
    ...toArguments({ from: store.url, repository: back, bundle: 'ctr', version: 2 }),
  );
  const other = await FakeS3Server.start(t);
  await ok(
    'publish',
    ...toArguments({ from: store.url, repository: other.url, bundle: 'ctr', version: 1 }),
  );
  const server = await StaticServer.start(t, back);
  const manifest = await openRepository(server.url).readManifest('ctr', '2');
  assert.deepEqual(manifest, await openRepository(from).readManifest('ctr', '2'));
  const status = await ok('status', '--repository', server.url, '--bundle', 'ctr');
  assert.match(status, /does not point to a version yet/);
});

test('gc says what would be removed, then removes it', async (t) => {
  const repository = await makeRepository(t, '1');
  const of = ['--repository', repository, '--bundle', 'ctr'];
  const { kept, versions } = JSON.parse(await ok('gc', ...of, '--dry-run', '--json'));
  assert.deepEqual([kept, versions], [[{ version: '1', why: 'it is recent' }], []]);
  assert.match(await ok('gc', ...of), /1 +keep +it is recent\nremoved 0 versions: 0 files/);
});
