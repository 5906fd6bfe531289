/** `cube-agent experiment`: experiments on a bundle, changed by people who say why. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { openRepository } from '../../../lib/repository/repository.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import type { CommandResult } from '../../support/processes.ts';

const WHY = ['--by', 'ann', '--reason', 'try it'];
const FILE = `experiments:
  - name: ranking
    variants: [{ name: control, weight: 90 }, { name: new, weight: 10, version: 1 }]
    overrides: { "7": new }
  - name: layout
    slot: C1
    variants: [{ name: a, weight: 1 }, { name: b, weight: 1 }]
`;

async function makeBundle(t: TestContext) {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const repository = openRepository(location, { create: true });
  await repository.publish(makeVersion(join(folder, 'built'), { version: '1' }));
  const file = join(folder, 'experiments.yaml');
  writeFileSync(file, FILE);
  const experiment = (action: string, ...more: string[]): Promise<CommandResult> =>
    runAgentCommand('experiment', action, '--repository', location, '--bundle', 'ctr', ...more);
  return { folder, location, repository, file, experiment };
}

test('experiments are set, changed and stopped, with who, when and why', async (t) => {
  const { location, repository, file, experiment } = await makeBundle(t);
  const log = repository.experimentLog('ctr');
  assert.match((await experiment('show')).stdout, /ctr has no experiments/);
  const dry = await experiment('set', '--file', file, ...WHY, '--dry-run');
  assert.match(dry.stdout, /entry 1: ranking \(control 90, new 10\), layout.*nothing was written/);
  assert.deepEqual(await log.readHistory(), []);
  const first = await experiment('set', '--file', file, ...WHY, '--json');
  assert.equal(JSON.parse(first.stdout).entry.seq, 1, first.stderr);
  const again = await experiment('set', '--file', file, ...WHY);
  assert.match(again.stdout, /entry 1 has these experiments already/, again.stderr);

  const weights = ['--name', 'ranking', '--weight', 'new=30', '--weight', 'control=70'];
  const changed = await experiment('set', ...weights, ...WHY);
  assert.match(changed.stdout, /entry 2: ranking \(control 70, new 30\), layout/, changed.stderr);
  const shown = (await experiment('show')).stdout;
  assert.match(shown, /ranking +control +70 +70 % +as without the experiment +1 overrides/);
  assert.match(shown, / new +30 +30 % +version 1/);
  assert.match(shown, /layout .*slot C1, 0 overrides/);
  assert.match(shown, /entry 2, \S+, by ann: try it/);
  const of = ['--repository', location, '--bundle', 'ctr'];
  const status = await runAgentCommand('status', ...of);
  assert.match(status.stdout, /experiments: ranking \(control 70, new 30\), layout/);

  await experiment('stop', '--name', 'layout', ...WHY);
  await experiment('stop', '--all', ...WHY);
  const { history } = JSON.parse((await experiment('history', '--json')).stdout);
  const names = history.map((entry: { experiments: { name: string }[] }) =>
    entry.experiments.map(({ name }) => name),
  );
  const both = ['ranking', 'layout'];
  assert.deepEqual(names, [both, both, ['ranking'], []]);
  assert.match((await experiment('history')).stdout, /3 +\S+ +ann +try it +ranking \(control 70/);

  // Of two who decided on one entry the second one is told.
  const [before] = await log.readHistory();
  const late = { experiments: [], by: 'bob', reason: 'his' };
  await assert.rejects(log.append(before, late), /ann wrote entry 2 first/);
});

test('a version that an experiment names is not garbage', async (t) => {
  const { folder, repository, file, experiment } = await makeBundle(t);
  const policy = { keepVersions: 0, keepMs: 0 };
  const collect = async (): Promise<readonly string[]> =>
    (await repository.collectGarbage('ctr', policy, { by: 'test', dryRun: true })).versions;
  await repository.publish(makeVersion(join(folder, 'built'), { version: '2' }));
  await repository.activate('ctr', 'stable', { version: '2', by: 'test', reason: 'test' });
  assert.deepEqual(await collect(), ['1']);
  await experiment('set', '--file', file, ...WHY);
  assert.deepEqual(await collect(), []);
  await experiment('stop', '--all', ...WHY);
  assert.deepEqual(await collect(), ['1']);
});

test('wrong experiments are refused with what to do', async (t) => {
  const { repository, file, experiment, folder } = await makeBundle(t);
  await experiment('set', '--file', file, ...WHY);
  const write = (text: string): string => {
    const path = join(folder, 'wrong.yaml');
    writeFileSync(path, text);
    return path;
  };
  const refused: [RegExp, string, string[]][] = [
    [/nothing to set; pass --file, or --name with --weight/, 'set', []],
    [/--weight needs --name/, 'set', ['--weight', 'new=1']],
    [/--name needs --weight/, 'set', ['--name', 'ranking']],
    [/no variant old \(it has: control, new\)/, 'set', ['--name', 'ranking', '--weight', 'old=1']],
    [/--weight new=x: expected variant=weight/, 'set', ['--name', 'ranking', '--weight', 'new=x']],
    [/no experiment x \(running: ranking, layout\)/, 'set', ['--name', 'x', '--weight', 'new=1']],
    [/pass either --name or --all/, 'stop', []],
    [/no experiment x \(running/, 'stop', ['--name', 'x']],
  ];
  for (const [expected, action, flags] of refused) {
    const { code, stderr } = await experiment(action, ...flags, ...WHY);
    assert.notEqual(code, 0);
    assert.match(stderr, expected);
  }
  const wrong: [RegExp, string][] = [
    [/unknown field "model"/, FILE.replace('name: ranking', 'name: ranking\n    model: ctr')],
    [/has no version 9 of ctr/, FILE.replace('version: 1', 'version: 9')],
    [
      /ctr has no channel canary: activate a version/,
      FILE.replace('version: 1', 'channel: canary'),
    ],
    [/the name ranking is used twice/, FILE.replace('name: layout', 'name: ranking')],
  ];
  for (const [expected, text] of wrong) {
    const { code, stderr } = await experiment('set', '--file', write(text), ...WHY);
    assert.notEqual(code, 0);
    assert.match(stderr, expected);
  }
  assert.equal((await repository.experimentLog('ctr').readHistory()).length, 1);
});
