/** `cube-agent policy`: the gate's limits for a bundle, changed by people who say why. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { openRepository } from '../../../lib/repository/repository.ts';
import { generateKeyPair, SigningKey, TrustedKeys } from '../../../lib/repository/signatures.ts';
import { makeVersion, temporaryFolder } from '../../repository/support/fixtures.ts';
import { runAgentCommand } from '../../support/commands.ts';
import type { CommandResult } from '../../support/processes.ts';

async function makeBundle(t: TestContext) {
  const folder = temporaryFolder(t);
  const location = join(folder, 'repository');
  const repository = openRepository(location, { create: true });
  await repository.publish(makeVersion(join(folder, 'built'), { version: '1' }));
  const policy = (action: string, ...more: string[]): Promise<CommandResult> =>
    runAgentCommand('policy', action, '--repository', location, '--bundle', 'ctr', ...more);
  return { folder, location, repository, policy };
}

test('limits are laid over those before, with who, when and why', async (t) => {
  const { folder, location, repository, policy } = await makeBundle(t);
  const reason = ['--by', 'ann', '--reason', 'shared machines'];
  const limits = ['--limit', 'aucMin=0.75', '--limit', 'latencyP99RatioMax=none'];
  const dry = await policy('set', ...limits, ...reason, '--dry-run');
  assert.match(dry.stdout, /nothing was written/, dry.stderr);
  assert.deepEqual(await repository.policyLog('ctr').readHistory(), []);
  const first = await policy('set', ...limits, ...reason, '--json');
  assert.equal(JSON.parse(first.stdout).entry.seq, 1, first.stderr);
  const shown = await policy('show');
  assert.match(shown.stdout, /aucMin +0\.75 +set +minimum AUC/);
  assert.match(shown.stdout, /latencyP99RatioMax +none +set/);
  assert.match(shown.stdout, /psiMax +0\.2 +default/);
  assert.match(shown.stdout, /1 +\d{4}-\S+ +ann +shared machines +aucMin=0\.75 latencyP99/);

  const file = join(folder, 'policy.json');
  writeFileSync(file, '{"psiMax": 0.1}');
  const whole = await policy('set', '--file', file, '--limit', 'aucMin=0.8', ...reason);
  assert.equal(whole.code, 0, whole.stderr);
  const { limits: held, history } = JSON.parse((await policy('show', '--json')).stdout);
  assert.deepEqual([held, history.length], [{ psiMax: 0.1, aucMin: 0.8 }, 2]);

  // Of two who decided on one entry the second one is told.
  const log = openRepository(location).policyLog('ctr');
  const [before, newest] = await log.readHistory();
  const late = { limits: { psiMax: 1 }, by: 'bob', reason: 'his' };
  await assert.rejects(log.append(before, late), /ann wrote entry 2 first/);
  const again = await log.append(newest, { ...late, limits: { aucMin: 0.8, psiMax: 0.1 } });
  assert.equal(again.seq, 2, 'what holds already adds nothing');
});

test('invalid limits, missing reasons and empty changes are refused', async (t) => {
  const { folder, repository, policy } = await makeBundle(t);
  const file = join(folder, 'policy.json');
  writeFileSync(file, '{"aucMin": 7}');
  const why = ['--reason', 'test'];
  const refused: [RegExp, string[]][] = [
    [/--limit auc=1: unknown limit/, ['--limit', 'auc=1', ...why]],
    [/--limit aucMin=x: expected a number or none/, ['--limit', 'aucMin=x', ...why]],
    [/policy\.json: aucMin: expected a number in 0\.\.1/, ['--file', file, ...why]],
    [/pass --limit or --file/, why],
  ];
  const results = await Promise.all(refused.map(([, flags]) => policy('set', ...flags)));
  for (const [i, { code, stderr }] of results.entries()) {
    assert.notEqual(code, 0);
    assert.match(stderr, refused[i]![0]);
  }
  assert.deepEqual(await repository.policyLog('ctr').readHistory(), []);
});

test('with trusted keys only a signed policy is taken', async (t) => {
  const { folder, location } = await makeBundle(t);
  const { privatePem, publicPem } = generateKeyPair();
  const [key, pub] = [join(folder, 'key.pem'), join(folder, 'key.pub')];
  writeFileSync(key, privatePem);
  writeFileSync(pub, publicPem);
  const [signing, trusted] = [SigningKey.read(key), TrustedKeys.read(pub)];
  const request = { limits: { aucMin: 0.5 }, by: 'ann', reason: 'test' };
  const own = openRepository(location, { keys: { signing, trusted } }).policyLog('ctr');
  const entry = await own.append(undefined, request);
  assert.deepEqual((await own.readHistory())[0]?.limits, request.limits);
  await openRepository(location)
    .policyLog('ctr')
    .append(entry, { ...request, limits: {} });
  await assert.rejects(own.readHistory(), /0000000002\.json is not signed/);
});
