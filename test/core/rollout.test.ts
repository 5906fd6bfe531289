/** The moves of a rollout, over all walks. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { canTransition, isInProgress, nextStates, ROLLOUT_STATES } from '../../lib/core/rollout.ts';

test('a rollout begins with seen, activates staged versions, never leaves quarantine', () => {
  const picks = fc.array(fc.nat(), { maxLength: 40 });
  fc.assert(
    fc.property(picks, (choices) => {
      const walk: string[] = [];
      let state: (typeof ROLLOUT_STATES)[number] | undefined;
      for (const choice of choices) {
        const next = nextStates(state);
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

test('every state is reachable, and every state in progress can fail', () => {
  const reached = new Set(nextStates(undefined));
  for (const state of reached) for (const next of nextStates(state)) reached.add(next);
  assert.deepEqual([...reached].sort(), [...ROLLOUT_STATES].sort());
  for (const state of ROLLOUT_STATES) {
    assert.equal(
      isInProgress(state),
      state === 'failed' || (canTransition(state, 'failed') && state !== 'active'),
    );
  }
});
