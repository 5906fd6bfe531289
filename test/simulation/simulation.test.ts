/** Whole fleets under faults: no rule is broken, a seed repeats itself, and a rule that is broken is noticed. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { playEpisode, shrink } from './episode.ts';
import type { Broken } from './fleet-run.ts';

const HOSTS = 4;

test('fleets under faults keep every rule, and come right afterwards', async () => {
  for (const seed of [1, 2, 3, 4]) {
    const { violation, rollouts } = await playEpisode({ seed, hosts: HOSTS });
    assert.equal(violation?.message, undefined, `seed ${seed}`);
    assert.ok(rollouts > 1, `seed ${seed}: ${rollouts} rollouts`);
  }
});

test('a seed repeats itself', async () => {
  const first = await playEpisode({ seed: 5, hosts: HOSTS });
  const second = await playEpisode({ seed: 5, hosts: HOSTS });
  assert.deepEqual(second.log, first.log);
});

const CANARIES: readonly [Broken, string][] = [
  ['activates what is not staged', 'active is staged'],
  ['removes what is held', 'no file that a server needs is removed'],
  ['client mixes', 'one version per answer'],
  ['goes back to what is quarantined', 'a quarantined version never returns'],
];

for (const [broken, rule] of CANARIES) {
  test(`noticed: ${broken}`, async () => {
    for (let seed = 1; seed <= 5; seed++) {
      const episode = await playEpisode({ seed, hosts: HOSTS, broken });
      if (episode.violation === undefined) continue;
      assert.equal(episode.violation.rule, rule);
      return;
    }
    assert.fail('not noticed with five seeds');
  });
}

test('what breaks a rule is shrunk to few events that break it again', async () => {
  const options = { seed: 1, hosts: HOSTS, broken: 'client mixes' as const };
  const failed = await playEpisode(options);
  const { events } = await shrink(options, failed, 8);
  assert.ok(events.length < failed.events.length);
  const only = new Set(events.map(({ index }) => index));
  const again = await playEpisode({ ...options, only });
  assert.equal(again.violation?.rule, 'one version per answer');
});
