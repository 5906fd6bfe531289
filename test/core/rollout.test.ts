/** The moves of a rollout, over all walks. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { isUnderWay, mayFollow, ROLLOUT_STATES, statesAfter } from '../../lib/core/rollout.ts';

test('whatever happens, a rollout began with seen, activated only what was staged, and never leaves quarantine', () => {
  const picks = fc.array(fc.nat(), { maxLength: 40 });
  fc.assert(
    fc.property(picks, (choices) => {
      const walk: string[] = [];
      let state: (typeof ROLLOUT_STATES)[number] | undefined;
      for (const choice of choices) {
        const next = statesAfter(state);
        if (next.length === 0) break;
        state = next[choice % next.length];
        walk.push(state ?? '');
      }
      if (walk.length > 0) assert.equal(walk[0], 'seen');
      for (const [i, name] of walk.entries()) {
        if (name === 'activating') assert.ok(walk.slice(0, i).includes('staged'), walk.join(' '));
        if (name === 'active') assert.equal(walk[i - 1], 'activating');
        if (name === 'quarantined') assert.equal(i, walk.length - 1);
      }
    }),
  );
});

test('every state is reached, and from each that is under way a failure can be written', () => {
  const reached = new Set(statesAfter(undefined));
  for (const state of reached) for (const next of statesAfter(state)) reached.add(next);
  assert.deepEqual([...reached].sort(), [...ROLLOUT_STATES].sort());
  for (const state of ROLLOUT_STATES) {
    assert.equal(
      isUnderWay(state),
      state === 'failed' || (mayFollow(state, 'failed') && state !== 'active'),
    );
  }
});
