/**
 * Whole fleets under faults keep all invariants, seeds are reproducible, and violations are
 * detected.
 */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import { runEpisode, shrink } from './episode.ts';
import type { InjectedBug } from './simulation-run.ts';

const HOSTS = 4;
/** Episodes in which an injected bug must show; most show in the first. */
const SEEDS = 12;

test('fleets under faults keep every invariant and converge afterwards', async () => {
  for (const seed of [1, 2, 3, 4]) {
    const { violation, rollouts } = await runEpisode({ seed, hosts: HOSTS });
    assert.equal(violation?.message, undefined, `seed ${seed}`);
    assert.ok(rollouts > 1, `seed ${seed}: ${rollouts} rollouts`);
  }
});

test('a seed reproduces its run', async () => {
  const first = await runEpisode({ seed: 5, hosts: HOSTS });
  assert.equal(first.violation?.message, undefined);
  assert.ok(first.rollouts > 1);
  const second = await runEpisode({ seed: 5, hosts: HOSTS });
  assert.deepEqual(second.log, first.log);
});

/** Each bug with the rules that it breaks. The first must be noticed, in some seed. */
const CANARIES: readonly (readonly [InjectedBug, ...string[]])[] = [
  ['activates what is not staged', 'active is staged'],
  ['removes what is held', 'no file that a server needs is removed'],
  ['client mixes', 'one version per answer'],
  ['goes back to what is quarantined', 'a quarantined version never returns'],
  ['goes back to what never served', 'a rollback goes to a version that has served'],
  [
    'serving ignores quarantines',
    'no process serves what it knows to be quarantined',
    'no process begins to serve a quarantined version',
  ],
  ['young processes differ', 'processes of any age serve the same version'],
];

for (const [broken, ...rules] of CANARIES) {
  test(`detected: ${broken}`, async () => {
    for (let seed = 1; seed <= SEEDS; seed++) {
      const episode = await runEpisode({ seed, hosts: HOSTS, bug: broken });
      if (episode.violation === undefined) continue;
      assert.ok(rules.includes(episode.violation.rule), episode.violation.rule);
      if (episode.violation.rule === rules[0]) return;
    }
    assert.fail(`not noticed with ${SEEDS} seeds`);
  });
}

test('a violation is shrunk to a few events that reproduce it', async () => {
  const options = { seed: 1, hosts: HOSTS, bug: 'client mixes' as const };
  const failed = await runEpisode(options);
  const { events } = await shrink(options, failed, 8);
  assert.ok(events.length < failed.events.length);
  const only = new Set(events.map(({ index }) => index));
  const again = await runEpisode({ ...options, only });
  assert.equal(again.violation?.rule, 'one version per answer');
});
