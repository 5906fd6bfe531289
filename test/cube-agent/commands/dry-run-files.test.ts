/** `--dry-run` and `--json` of commands that write files or start processes. */
import assert from 'node:assert/strict';
import { mkdirSync, readdirSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { toArguments } from '../../../lib/platform/arguments.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { makeTransferConf } from '../cube/support/transfer-conf.ts';

/** Runs a command with --dry-run, and with --json as well. @returns the text and the result */
async function runDry(...args: string[]): Promise<{ text: string; json: Record<string, unknown> }> {
  const [text, json] = await Promise.all([
    runAgentCommand(...args, '--dry-run'),
    runAgentCommand(...args, '--dry-run', '--json'),
  ]);
  assert.equal(text.code, 0, text.stderr);
  assert.equal(json.code, 0, json.stderr);
  return { text: text.stdout, json: JSON.parse(json.stdout) };
}

test('dry runs of keygen, transfer and fleet from-cube-conf write no file', async (t) => {
  const folder = temporaryFolder(t);
  const config = join(folder, 'transfer.conf');
  writeFileSync(config, makeTransferConf());
  const [key, fleet, cubeConf] = ['key.pem', 'fleet.json', 'cube.conf'].map((name) =>
    join(folder, name),
  ) as [string, string, string];
  const made = await runDry('keygen', '--out', key);
  assert.match(made.text, /a new key: private key .*key\.pem .*\(dry run: nothing was written\)/);
  assert.deepEqual(made.json, { privateKey: key, publicKey: `${key}.pub`, dryRun: true });
  const convert = toArguments({ config, fleetOut: fleet, cubeConfOut: cubeConf });
  const converted = await runDry('transfer', ...convert);
  assert.match(converted.text, /would write .*fleet\.json \(dry run/);
  assert.deepEqual(
    [converted.json['dictName'], converted.json['shardNum'], converted.json['written']],
    ['test_dict', 2, [fleet, cubeConf]],
  );
  assert.deepEqual(readdirSync(folder), ['transfer.conf']);

  const real = JSON.parse((await runAgentCommand('transfer', ...convert, '--json')).stdout);
  assert.deepEqual([real.written, real.dryRun], [[fleet, cubeConf], false]);
  const again = await runAgentCommand('transfer', ...convert, '--dry-run');
  assert.equal(again.code, 1);
  assert.match(again.stderr, /already exists/);
  const out = join(folder, 'other.json');
  const other = await runDry('fleet', 'from-cube-conf', '--cube-conf', cubeConf, '--out', out);
  assert.match(other.text, /test_dict, 2 replicas \(dry run/);
  assert.deepEqual([other.json['bundles'], other.json['dryRun']], [['test_dict'], true]);
  assert.ok(!readdirSync(folder).includes('other.json'));
});

test('dry runs of sign, watch-donefiles and gate change nothing', async (t) => {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const repository = openRepository(location, { create: true });
  await repository.publish(makeVersion(folder, { version: '1', table: 't' }));
  const key = join(folder, 'key.pem');
  const keyId = JSON.parse((await runAgentCommand('keygen', '--out', key, '--json')).stdout).keyId;
  assert.match(keyId, /^[0-9a-f]{16}$/);
  const done = join(folder, 'done');
  mkdirSync(done);
  const line = { id: '7', key: '7', input: '/models/7' };
  writeFileSync(join(done, 'base.txt'), `${JSON.stringify(line)}\n`);
  const before = readdirSync(folder, { recursive: true }).sort();

  const version = ['--repository', location, '--bundle', 'ctr', '--version', '1'];
  const signed = await runDry('sign', ...version, '--signing-key', key);
  assert.match(signed.text, /is signed by key .*\(dry run/);
  assert.deepEqual([signed.json['keyId'], signed.json['dryRun']], [keyId, true]);

  const place = ['--donefiles', done, '--repository', location, '--bundle', 'ads'];
  const watched = await runDry('watch-donefiles', ...place, '--shard-num', '2');
  assert.match(watched.text, /would build base 7 from \/models\/7 \(line 1\) \(dry run/);
  assert.deepEqual(
    (watched.json['steps'] as { version: string }[]).map((step) => step.version),
    ['7'],
  );
  const endless = await runAgentCommand('watch-donefiles', ...place, '--shard-num', '2', '--json');
  assert.equal(endless.code, 2);
  assert.match(endless.stderr, /--json needs --once or --dry-run/);

  const golden = join(done, 'golden.jsonl');
  writeFileSync(golden, '{"C1":"a","label":1}\n{"C1":"b"}\n');
  const gated = await runDry('gate', ...version, '--golden', golden, '--limit', 'aucMin=0.7');
  assert.match(gated.text, /would compare ctr 1 with no version on 2 of 2 rows of .*golden/);
  assert.deepEqual((gated.json['golden'] as { rows: number }).rows, 2);
  const absent = await runAgentCommand('gate', ...version, '--golden', 'nowhere', '--dry-run');
  assert.equal(absent.code, 2, absent.stderr);
  const after = readdirSync(folder, { recursive: true }).filter((name) => name !== golden);
  assert.deepEqual(after.filter((name) => !String(name).endsWith('golden.jsonl')).sort(), before);
});
