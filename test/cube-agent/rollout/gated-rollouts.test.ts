/** Rollouts with a real gate and under real traffic: what fails the gate never goes live, what fails afterwards comes back by itself. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { BUNDLE } from '../../serving/toy-bundle.ts';
import { failedLimits } from '../gated.ts';
import { agent, type Running } from '../processes.ts';
import { ask, forgetLive, GatedFleet, negateAll, poisonLive, REQUESTS } from './gated-fleet.ts';

/** Why the rollout failed, by the controller's log. */
function reasonOf({ lines }: Running, failed: string): string {
  const line = lines.find(({ msg, version }) => msg === 'failed' && version === failed);
  return String(line?.['reason']);
}

test('the gate and the watch decide what goes live, over one fleet', async (t) => {
  const fleet = await GatedFleet.start(t);
  const { toys, canary, stable } = fleet;
  const reportOf = async (version: string) =>
    JSON.parse(await toys.repository.rollout(BUNDLE, version).gateReport(1, 'json'));
  // Nothing is answered within 0 ms.
  const watching = fleet.control({ watchMs: 3_600_000, limits: ['p99-ms: 0'] });

  await t.test('a version that drifts fails the gate, and its report tells why', async () => {
    await fleet.publish('2', negateAll);
    const way = await fleet.untilState('2', 'quarantined');
    assert.equal(way, 'seen staging staged gating failed quarantined');
    assert.equal(reasonOf(watching, '2'), 'failed the gate (report 1: cube-agent gate --show 2)');
    for (const channel of ['canary', 'stable']) assert.equal(await fleet.way(channel), '1');
    const of = ['--repository', toys.location, '--bundle', BUNDLE];
    const page = join(toys.folder, 'report.html');
    const show = await agent('gate', ...of, '--show', '2', '--html', page);
    assert.match(show.stdout, /^FAIL {2}toy 2 against 1\n[\s\S]*FAIL +drift of scores, mean/);
    assert.match(readFileSync(page, 'utf8'), /<svg/);
    assert.match(failedLimits(await reportOf('2')).join(), /driftMeanMax/);
  });

  await t.test(
    'one that passes it, fails and is slow once everybody has it goes back',
    async () => {
      await fleet.publish('3', poisonLive);
      const way = await fleet.untilState('3', 'active');
      assert.equal(way, 'seen staging staged gating activating active');
      assert.equal((await reportOf('3')).verdict, 'pass');
      await stable.untilActive('3');
      assert.ok((await ask(stable, true)) < REQUESTS, 'some fail');
      await fleet.untilState('3', 'quarantined');
      const reason = /% of the requests fail .*; p99 is \d+ ms \(limit 0\)/;
      assert.match(reasonOf(watching, '3'), reason);
      for (const serving of [stable, canary]) await serving.untilActive('1');
      assert.equal(await fleet.way('stable'), '1 3 1');
      await watching.kill();
    },
  );

  await t.test('one that forgets what others know goes back from the canary alone', async () => {
    // How long answers take on a shared machine is no part of it.
    const limits = ['p99-ms: 600000'];
    const careful = fleet.control({ holdMs: 3_600_000, gate: false, limits });
    assert.equal(await ask(stable), REQUESTS);
    await fleet.publish('4', forgetLive);
    await canary.untilActive('4');
    assert.equal(await ask(canary), REQUESTS);
    const way = await fleet.untilState('4', 'quarantined');
    assert.equal(way, 'seen staging staged activating failed rolled-back quarantined');
    const reason = /^[\d.]+ % more of the keys are unseen .*% between mean scores .*over \d+ req/;
    assert.match(reasonOf(careful, '4'), reason);
    await canary.untilActive('1');
    assert.equal(await fleet.way('canary'), '1 3 1 4 1');
    assert.equal(await fleet.way('stable'), '1 3 1', 'only the canary has seen it');
    assert.doesNotMatch((await stable.get('/metrics')).body, /version="4"/);
    const { quarantined } = await toys.repository.channel(BUNDLE, 'stable');
    assert.deepEqual([...quarantined].sort(), ['2', '3', '4']);
  });
});
