/**
 * Rollouts with a real gate and real traffic: a version that fails the gate never goes live, and an
 * unhealthy one is rolled back.
 */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { BUNDLE } from '../../serving/support/toy-bundle.ts';
import { runAgentCommand } from '../../support/commands.ts';
import type { RunningProcess } from '../../support/processes.ts';
import { failedLimits } from '../support/gate-fixture.ts';
import {
  GatedFleet,
  negateScores,
  poisonLive,
  REQUESTS,
  removeLiveRows,
  sendRequests,
} from '../support/gated-fleet.ts';

/** Why the rollout failed, by the controller's log. */
function findReason({ lines }: RunningProcess, failed: string): string {
  const line = lines.find(({ msg, version }) => msg === 'failed' && version === failed);
  return String(line?.['reason']);
}

test('the gate and the health watch decide which versions go live', async (t) => {
  const fleet = await GatedFleet.start(t);
  const { toys, canary, stable } = fleet;
  const readReport = async (version: string) =>
    JSON.parse(await toys.repository.rolloutLog(BUNDLE, version).readGateReport(1, 'json'));
  // No request takes 0 ms, so every version exceeds this limit.
  const watching = fleet.startController({ watchMs: 3_600_000, limits: ['p99-ms: 0'] });

  await t.test(
    'a version with score drift fails the gate, and its report gives the reason',
    async () => {
      await fleet.publish('2', negateScores);
      const way = await fleet.waitForState('2', 'quarantined');
      assert.equal(way, 'seen staging staged gating failed quarantined');
      assert.equal(
        findReason(watching, '2'),
        'failed the gate (report 1: cube-agent gate --show 2)',
      );
      for (const channel of ['canary', 'stable'])
        assert.equal(await fleet.listVersions(channel), '1');
      const of = ['--repository', toys.location, '--bundle', BUNDLE];
      const page = join(toys.folder, 'report.html');
      const show = await runAgentCommand('gate', ...of, '--show', '2', '--html', page);
      assert.match(show.stdout, /^FAIL {2}toy 2 against 1\n[\s\S]*FAIL +drift of scores, mean/);
      assert.match(readFileSync(page, 'utf8'), /<svg/);
      assert.match(failedLimits(await readReport('2')).join(), /driftMeanMax/);
    },
  );

  await t.test('a version that becomes unhealthy on stable is rolled back', async () => {
    await fleet.publish('3', poisonLive);
    const way = await fleet.waitForState('3', 'active');
    assert.equal(way, 'seen staging staged gating activating active');
    assert.equal((await readReport('3')).verdict, 'pass');
    await stable.waitUntilActive('3');
    assert.ok((await sendRequests(stable, true)) < REQUESTS, 'some fail');
    await fleet.waitForState('3', 'quarantined');
    const reason = /% of the requests fail .*; p99 is \d+ ms \(limit 0\)/;
    assert.match(findReason(watching, '3'), reason);
    for (const serving of [stable, canary]) await serving.waitUntilActive('1');
    assert.equal(await fleet.listVersions('stable'), '1 3 1');
    await watching.kill();
  });

  await t.test('a version with missing rows is rolled back on the canary alone', async () => {
    // Latency is not part of this test, since the machine is shared.
    const limits = ['p99-ms: 600000'];
    const careful = fleet.startController({ holdMs: 3_600_000, gate: false, limits });
    assert.equal(await sendRequests(stable), REQUESTS);
    await fleet.publish('4', removeLiveRows);
    await canary.waitUntilActive('4');
    assert.equal(await sendRequests(canary), REQUESTS);
    const way = await fleet.waitForState('4', 'quarantined');
    assert.equal(way, 'seen staging staged activating failed rolled-back quarantined');
    const reason = /^[\d.]+ % more of the keys are unseen .*% between mean scores .*over \d+ req/;
    assert.match(findReason(careful, '4'), reason);
    await canary.waitUntilActive('1');
    assert.equal(await fleet.listVersions('canary'), '1 3 1 4 1');
    assert.equal(await fleet.listVersions('stable'), '1 3 1', 'only the canary has seen it');
    assert.doesNotMatch((await stable.get('/metrics')).body, /version="4"/);
    const { quarantined } = await toys.repository.readChannel(BUNDLE, 'stable');
    assert.deepEqual([...quarantined].sort(), ['2', '3', '4']);
  });
});
