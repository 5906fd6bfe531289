/** transfer.conf as teams have it, and as it should not be. */
import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { parseTransferConf, toFleet } from '../../../cube-agent/cube/transfer-conf.ts';
import { CubeConf } from '../../../lib/client/cube-conf.ts';
import { parseFleet } from '../../../lib/core/fleet.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import { makeTransferConf } from './support/transfer-conf.ts';

test('a file as the original has it becomes a fleet and a cube.conf', async (t) => {
  const folder = temporaryFolder(t);
  const path = join(folder, 'transfer.conf');
  writeFileSync(path, makeTransferConf());
  const [fleetOut, cubeConfOut] = [join(folder, 'fleet.json'), join(folder, 'cube.conf')];
  const flags = ['--fleet-out', fleetOut, '--cube-conf-out', cubeConfOut];
  const { code, stdout, stderr } = await runAgentCommand(
    'transfer',
    '--config',
    path,
    '--check',
    ...flags,
  );
  assert.equal(code, 0, stderr);
  assert.match(stdout, /bundle test_dict: 2 shards, 1 replicas of each/);
  assert.match(stdout, /1 +0 +10\.0\.0\.2:8000 +\/ssd2\/cube_open +10\.0\.0\.2:8001/);
  const fleet = parseFleet(readFileSync(fleetOut, 'utf8'), fleetOut);
  assert.equal(fleet.bundles.get('test_dict')?.[0]?.shards[1]?.[0]?.data, '10.0.0.2:8000');
  const cube = await CubeConf.open(cubeConfOut);
  assert.equal(cube.fleet().bundles.get('test_dict')?.[0]?.shards[0]?.[0]?.data, '10.0.0.1:8000');
  const again = await runAgentCommand('transfer', '--config', path, '--fleet-out', fleetOut);
  assert.equal(again.code, 1);
  assert.match(again.stderr, /already exists/);
});

test('comments, spaces, addresses with colons and later lines are read as they are meant', () => {
  const text = makeTransferConf()
    .replace('dict_name: test_dict', '# who\n  dict_name :  ads   # the dictionary')
    .replace('donefile_address: /home/done', 'donefile_address: http://10.0.0.9:80/done // there')
    .replace('cube0_0: 10.0.0.1:8000:', 'cube0_0: [::1]:8000:')
    .replace('[cube_agent]', 'extra: 1\n[cube_agent]\ncube7_0: 10.0.0.7:1:/x\nagent7_0: no');
  const read = parseTransferConf(text, 'transfer.conf');
  assert.equal(read.dictName, 'ads');
  assert.equal(read.donefileAddress, 'http://10.0.0.9:80/done');
  assert.equal(read.instances[0]?.server, '[::1]:8000');
  assert.equal(read.warnings.length, 3);
  assert.match(read.warnings.join('\n'), /"extra" in \[default\] has no meaning/);
  assert.match(read.warnings.join('\n'), /cube7_0 is beyond shard_num 2/);
});

test('what is missing or wrong is named with its line', async (t) => {
  const cases: readonly [string | RegExp, string, RegExp][] = [
    ['dict_name: test_dict\n', '', /\[default\] lacks dict_name$/],
    ['dict_name: test_dict', 'dict_name: ../etc', /line 2: dict_name: expected a name/],
    ['shard_num: 2', 'shard_num: 1e9', /line \d+: shard_num: expected a number from 1/],
    ['shard_num: 2', 'shard_num: 3', /lacks agent2_0/],
    ['shard_num: 2', 'shard_num: 65536', /lacks agent/],
    [
      'mode: base_only',
      'mode: $(reboot)',
      /mode: expected base_only or base_delta, got "\$\(reboot\)"/,
    ],
    ['10.0.0.2:8000:', '10.0.0.2:80000:', /line \d+: endpoint/],
    ['10.0.0.2:8000:', '10.0.0.2', /expected ip:port:deploy_path/],
    ['10.0.0.2:8000:', '10.0.0.1:8000:', /two instances are the server 10\.0\.0\.1:8000/],
    ['mode: base_only', 'mode', /line \d+: expected "key: value"/],
  ];
  for (const [from, to, message] of cases) {
    const text = makeTransferConf().replace(from, to);
    assert.throws(() => parseTransferConf(text, 'transfer.conf'), {
      code: 'INVALID_ARGUMENT',
      message,
    });
  }
  const path = join(temporaryFolder(t), 'transfer.conf');
  writeFileSync(path, makeTransferConf().replace('mode:', 'colour: red\nmode:'));
  const { code, stderr } = await runAgentCommand('transfer', '--config', path, '--check');
  assert.equal(code, 1);
  assert.match(stderr, /unknown or invalid lines: 1/);
});

test('any text is read or refused, and what is read is a whole fleet', () => {
  const lines = makeTransferConf().split('\n');
  const line = fc.oneof(
    fc.constantFrom(...lines),
    fc.string(),
    fc
      .tuple(fc.constantFrom('shard_num', 'cube0_0', 'mode', '[x]'), fc.string())
      .map((two) => two.join(': ')),
  );
  fc.assert(
    fc.property(fc.array(line, { maxLength: 5 }), fc.nat(lines.length), (more, at) => {
      const text = [...lines.slice(0, at), ...more, ...lines.slice(at)].join('\n');
      try {
        const read = parseTransferConf(text, 'transfer.conf');
        assert.equal(toFleet(read).bundles.get(read.dictName)?.[0]?.shards.length, read.shardNum);
      } catch (error) {
        assert.equal((error as { code?: string }).code, 'INVALID_ARGUMENT');
      }
    }),
  );
});
