/** The commands with which people steer. */
import assert from 'node:assert/strict';
import { readdirSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { layerPath } from '../../../lib/repository/layout.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { getBaseLayer, makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { runProcess } from '../../support/processes.ts';
import { ControlServer } from '../support/control-server.ts';

async function makeRepository(t: TestContext, ...versions: string[]): Promise<string> {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const repository = openRepository(location, { create: true });
  for (const version of versions) {
    await repository.publish(makeVersion(join(folder, 'built'), { version, table: version }));
  }
  return location;
}

const of = (repository: string): string[] => ['--repository', repository, '--bundle', 'ctr'];

/** One line on stderr, nothing on stdout. */
async function refused(code: number, expected: RegExp, ...args: string[]): Promise<void> {
  const result = await runAgentCommand(...args);
  assert.equal(result.code, code, result.stderr);
  assert.equal(result.stdout, '');
  assert.match(result.stderr, expected);
  if (code === 1) assert.equal(result.stderr.trimEnd().split('\n').length, 1);
}

test('history tells who pointed the channel where and why', async (t) => {
  const repository = await makeRepository(t, '1', '2');
  assert.match(
    (await runAgentCommand('history', ...of(repository))).stdout,
    /does not point to a version yet/,
  );
  const why = ['--reason', 'first', '--by', 'ann'];
  await runAgentCommand('activate', ...of(repository), '--version', '1', ...why);
  await runAgentCommand('activate', ...of(repository), '--version', '2', '--reason', 'tab\there');
  const { stdout } = await runAgentCommand('rollback', ...of(repository), '--reason', 'bad');
  assert.match(
    stdout,
    /^ctr stable: entry 3 points back to version 1; version 2 is quarantined\n$/,
  );
  const lines = (await runAgentCommand('history', ...of(repository))).stdout.split('\n');
  assert.match(lines[0] ?? '', /^SEQ +VERSION +AT +BY +REASON$/);
  assert.match(lines[1] ?? '', /^1 +1 +\d{4}-.*Z +ann +first$/);
  assert.match(lines[2] ?? '', /^2 +2 \(quarantined\) .*@.* tab here$/);
  const { history, quarantined } = JSON.parse(
    (await runAgentCommand('history', ...of(repository), '--json')).stdout,
  );
  assert.deepEqual(
    history.map(({ version }: { version: string }) => version),
    ['1', '2', '1'],
  );
  assert.deepEqual(quarantined, ['2']);
});

const why = ['--reason', 'x'];

test('what cannot be done is refused in one line, and nothing is written', async (t) => {
  const repository = await makeRepository(t, '1');
  const other = ['--repository', repository, '--bundle', 'other'];
  const one = ['--version', '1'];
  const refusals: [RegExp, string[]][] = [
    [
      /has no version 7 of ctr \(it has: 1\)/,
      ['activate', ...of(repository), '--version', '7', ...why],
    ],
    [/has no bundle other \(it has: ctr\)/, ['activate', ...other, ...one, ...why]],
    [
      /no previous version .*: it does not point to a version yet/,
      ['rollback', ...of(repository), ...why],
    ],
    [
      /cannot read none\.json/,
      ['activate', ...of(repository), ...one, ...why, '--fleet', 'none.json'],
    ],
    [/no repository at .*: no such folder/, ['status', ...of(join(repository, 'none'))]],
    [/has no bundle other/, ['status', ...other]],
  ];
  for (const [expected, args] of refusals) await refused(1, expected, ...args);
  const activate = ['activate', ...of(repository), ...one];
  await refused(2, /--reason is empty/, ...activate, '--reason', ' ');
  await refused(2, /--wait needs --fleet/, ...activate, ...why, '--wait');
  await refused(2, /unknown option '--repositry'/, 'activate', '--repositry', 'x');
  assert.equal((await openRepository(repository).readChannel('ctr', 'stable')).history.length, 0);
});

test('wrong flags: exit 2 and what to do', async (t) => {
  const repository = await makeRepository(t, '1');
  const wrong: [RegExp, string[]][] = [
    [/bundle: expected a name/, ['status', '--repository', repository, '--bundle', '../x']],
    [/required option '--reason/, ['activate', ...of(repository), '--version', '1']],
    [/Expected host:port/, ['run', ...of(repository), '--data-dir', 'x', '--server', '8000']],
    [/unknown command/, ['frobnicate']],
  ];
  for (const [expected, args] of wrong) await refused(2, expected, ...args);
  assert.equal((await runProcess('cube-agent/main.js', 'frobnicate')).code, 2);
});

test('variables for other commands do not stop an agent with a configuration file', async (t) => {
  const folder = temporaryFolder(t);
  const config = join(folder, 'agent.yaml');
  writeFileSync(
    config,
    'repository: missing\ndata-dir: host\nbundles: [{name: ctr}]\nservers: ["127.0.0.1:8000"]\n',
  );
  const run = ['run', '--config', config];
  const setVariable = (name: string): void => {
    process.env[name] = join(folder, 'none');
    t.after(() => delete process.env[name]);
  };
  setVariable('CUBE_CONTROL_TOKEN_FILE');
  setVariable('CUBE_TLS_CA');
  await refused(1, /no repository at .*missing/, ...run);
  const both = [...run, '--tls-ca', 'ca.pem'];
  await refused(2, /--config and --tls-ca cannot be combined; put "tls-ca" into .*agent/, ...both);
  setVariable('CUBE_TRUSTED_KEYS');
  await refused(2, /CUBE_TRUSTED_KEYS is set, but .*agent\.yaml has no trusted-keys/, ...run);
});

test('rolling back the only version is refused and quarantines nothing', async (t) => {
  const repository = await makeRepository(t, '1');
  await runAgentCommand('activate', ...of(repository), '--version', '1', '--reason', 'first');
  await refused(
    1,
    /all versions before 1 are quarantined or deleted/,
    'rollback',
    ...of(repository),
    '--reason',
    'x',
  );
  assert.equal((await openRepository(repository).listQuarantined('ctr')).size, 0);
});

test('status shows servers, those that are down and those in a wrong place', async (t) => {
  const repository = await makeRepository(t, '1');
  const dataDir = temporaryFolder(t);
  const server = await ControlServer.start(t, { shardIndex: 1, shardNum: 2, dataDir });
  const fleet = join(dataDir, 'fleet.json');
  const replica = (data: string) => [{ data }];
  const shards = [replica(server.address), replica('127.0.0.1:2')];
  writeFileSync(fleet, JSON.stringify({ format: 1, bundles: { ctr: [{ shardNum: 2, shards }] } }));
  const status = ['status', ...of(repository), '--fleet', fleet];
  const { stdout, code } = await runProcess('cube-agent/main.js', ...status);
  assert.equal(code, 1);
  assert.match(stdout, /no server answers: shard 0\/2, shard 1\/2/);
  assert.match(stdout, /1\/2 +127\.0\.0\.1:2 +down /);
  assert.match(stdout, /channel stable: does not point to a version yet\npublished: 1\n/);
  assert.match(
    stdout,
    /1\/2 +127\.0\.0\.1:\d+ +not ready .* fleet\.json lists this server as shard 0\/2/,
  );
  assert.match(
    stdout,
    /1\/2 +127\.0\.0\.1:2 .* no cube-server answers at 127\.0\.0\.1:2 \(ECONNREFUSED\)/,
  );
  const parsed = JSON.parse(
    (await runAgentCommand('status', ...of(repository), '--fleet', fleet, '--json')).stdout,
  );
  assert.equal(parsed.servers.length, 2);
  const up = await runAgentCommand('status', ...of(repository), '--server', server.address);
  assert.equal(up.code, 0);
  assert.deepEqual(parsed.versions, ['1']);
});

test('publish copies a whole version, verified, and again says it is there', async (t) => {
  const from = await makeRepository(t, '1');
  const target = join(temporaryFolder(t), 'target');
  const args = ['publish', ...toArguments({ from, repository: target, bundle: 'ctr', version: 1 })];
  assert.match(
    (await runProcess('cube-agent/main.js', ...args)).stdout,
    /^ctr 1 published in .*target \(2 layers\)\n$/,
  );
  assert.match((await runAgentCommand(...args)).stdout, /^ctr 1 was already published/);
  const [one, two] = [openRepository(from), openRepository(target)];
  assert.equal(await one.readManifestText('ctr', '1'), await two.readManifestText('ctr', '1'));
  await two.readVersionFile('ctr', '1', 'model.onnx');
  assert.deepEqual(
    readdirSync(join(from, 'ctr/layers/t')).sort(),
    readdirSync(join(target, 'ctr/layers/t')).sort(),
  );
});

test('a damaged entry or manifest stops commands, which say who knows the remedy', async (t) => {
  const repository = await makeRepository(t, '1');
  const move = [...of(repository), '--reason', 'x', '--by', 'ann'];
  await runAgentCommand('activate', ...move, '--version', '1');
  writeFileSync(join(repository, 'ctr/channels/stable/0000000001.json'), '{"version":');
  const remedy =
    /0000000001\.json: not JSON.*; cube-agent doctor and cube-check say how to restore/;
  await refused(1, remedy, 'activate', ...move, '--version', '1');
  await refused(1, remedy, 'rollback', ...move);
  await refused(1, remedy, 'history', ...of(repository));
  writeFileSync(join(repository, 'ctr/versions/1/manifest.json'), '{');
  const manifest = /manifest\.json: not JSON.*; cube-agent doctor and cube-check say how/;
  await refused(1, manifest, 'activate', ...move, '--channel', 'new', '--version', '1');
});

test('publish restores missing files of a version, and reports damaged ones', async (t) => {
  const from = await makeRepository(t, '1');
  const target = join(temporaryFolder(t), 'target');
  const args = ['publish', ...toArguments({ from, repository: target, bundle: 'ctr', version: 1 })];
  await runAgentCommand(...args);
  const { contentId } = getBaseLayer(await openRepository(from).readManifest('ctr', '1'), 1);
  const layer = join(target, layerPath('ctr', 't', contentId));
  rmSync(layer);
  rmSync(join(target, 'ctr/versions/1/model.onnx'));
  const { stdout } = await runAgentCommand(...args);
  assert.match(stdout, /^ctr 1 was already published .*; missing files restored: 2\n$/);
  await openRepository(target).readVersionFile('ctr', '1', 'model.onnx');
  const damaged = readFileSync(layer);
  damaged[7] = (damaged[7] ?? 0) ^ 1;
  rmSync(layer);
  writeFileSync(layer, damaged);
  await refused(1, /has SHA-256 .*remove this damaged file, then build or publish again/, ...args);
  rmSync(layer);
  assert.match((await runAgentCommand(...args)).stdout, /missing files restored: 1\n$/);
  assert.deepEqual(readFileSync(layer), readFileSync(join(from, layerPath('ctr', 't', contentId))));
});

test('publish refuses a damaged source, other content and the same repository', async (t) => {
  const from = await makeRepository(t, '1', '2');
  const other = await makeRepository(t);
  const folder = temporaryFolder(t);
  await openRepository(other).publish(makeVersion(folder, { version: '1', graph: 'another' }));
  const args = (to: string, version: string): string[] => [
    'publish',
    ...toArguments({ from, repository: to, bundle: 'ctr', version }),
  ];
  await refused(1, /version 1 of ctr is published .* with other content/, ...args(other, '1'));
  await refused(1, /the same repository/, ...args(from, '1'));
  await refused(1, /has no version 3 of ctr/, ...args(other, '3'));
  const layer = getBaseLayer(await openRepository(from).readManifest('ctr', '2'), 1);
  const path = join(from, layerPath('ctr', 't', layer.contentId));
  const damaged = readFileSync(path);
  damaged[0] = (damaged[0] ?? 0) ^ 1;
  writeFileSync(path, damaged);
  const target = join(temporaryFolder(t), 'target');
  await refused(1, /SHA-256 .* the manifest says/, ...args(target, '2'));
  assert.deepEqual(await openRepository(target).listVersions('ctr'), []);
  assert.ok(
    !readdirSync(target, { recursive: true }).some((name) => String(name).endsWith('.tmp')),
  );
});

test('every command explains itself', async () => {
  const { code, stdout } = await runProcess('cube-agent/main.js', '--help');
  assert.equal(code, 0);
  for (const command of ['run', 'status', 'activate', 'rollback', 'history', 'publish']) {
    assert.ok(stdout.includes(`cube-agent ${command}`));
    assert.equal((await runAgentCommand(command, '--help')).code, 0);
  }
});
