/** Safety properties of nextStep for arbitrary input. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { nextStep, type StepInput } from '../../../cube-agent/rollout/next-step.ts';
import { canTransition, ROLLOUT_STATES } from '../../../lib/core/rollout.ts';

const version = fc.constantFrom('1', '2', '3');
const maybe = fc.option(version, { nil: undefined });
const millis = fc.constantFrom(0, 10, 100);

const channel = (name: string) =>
  fc.record({
    channel: fc.constant(name),
    seq: fc.integer({ min: 0, max: 3 }),
    pointer: maybe,
    changedBy: fc.constant('ann'),
    isPinned: fc.boolean(),
    isMovedByRollout: fc.boolean(),
    previous: fc.option(fc.constantFrom('1', '3'), { nil: undefined }),
  });

const replica = fc.record({
  address: fc.constant('a'),
  holds: fc.boolean(),
  isActive: fc.boolean(),
  damaged: fc.constantFrom([], ['t/1'], ['t/2']),
  problems: fc.constant([]),
  trouble: fc.constant(''),
});

const situations: fc.Arbitrary<StepInput> = fc.record({
  rollout: fc.record({
    version: fc.constant('2'),
    state: fc.option(fc.constantFrom(...ROLLOUT_STATES), { nil: undefined }),
    holder: fc.constant('me'),
    isOurs: fc.boolean(),
    fault: fc.constantFrom('version' as const, 'fleet' as const, undefined),
    from: fc.option(fc.constant({ canary: 1, stable: 2 }), { nil: undefined }),
    gatedFrom: fc.option(fc.constant({ canary: 1, stable: 2 }), { nil: undefined }),
  }),
  fleet: fc.record({
    isQuarantined: fc.boolean(),
    manifestFailure: fc.constantFrom(
      undefined,
      ...(['version', 'fleet'] as const).map((fault) => ({ fault, reason: '' })),
    ),
    sourceCheck: fc.constantFrom(
      undefined,
      ...[undefined, 'flipped'].map((damage) => ({ layers: ['t/1'], damage })),
    ),
    candidate: maybe,
    candidateConflict: fc.constantFrom(undefined, 'busy'),
    channels: fc.tuple(channel('canary'), channel('stable')),
    shards: fc.array(fc.array(replica, { minLength: 1, maxLength: 3 }), {
      minLength: 1,
      maxLength: 3,
    }),
    gate: fc.constantFrom(
      undefined,
      ...(['pass', 'fail', 'error'] as const).map((verdict) => ({
        verdict,
        summary: '',
        isFinal: false,
      })),
    ),
    healthFailure: fc.constantFrom(
      undefined,
      ...(['version', 'fleet'] as const).map((fault) => ({ fault, reason: 'ill' })),
    ),
  }),
  policy: fc.record({
    channels: fc.tuple(
      fc.record({ channel: fc.constant('canary'), holdMs: millis }),
      fc.record({ channel: fc.constant('stable'), holdMs: millis }),
    ),
    replicas: fc.constantFrom('all' as const, 1, 2),
    gate: fc.boolean(),
    watchMs: millis,
    stagingMs: millis,
    gatingMs: millis,
    activatingMs: millis,
  }),
  elapsed: fc.record({ inStateMs: millis, sinceMoveMs: millis }),
});

test('a channel moves only to a loaded candidate, from the known entry, never when pinned', () => {
  fc.assert(
    fc.property(situations, ({ rollout, fleet, policy, elapsed }) => {
      const step = nextStep({ rollout, fleet, policy, elapsed });
      if (step.kind === 'enter') assert.ok(canTransition(rollout.state, step.state));
      if (step.kind === 'enter' && rollout.state === 'gating' && step.state === 'activating') {
        const seqs: Readonly<Record<string, number>> | undefined = rollout.gatedFrom;
        assert.ok(
          seqs === undefined || fleet.channels.every((one) => one.seq === seqs[one.channel]),
        );
      }
      if (step.kind === 'back') {
        const view = fleet.channels.find((one) => one.channel === step.channel);
        assert.ok(view?.pointer === rollout.version && !view.isPinned);
        assert.equal(step.quarantines, rollout.fault === 'version');
        // Channels that the rollout never moved were moved by an operator.
        const isLate = rollout.state === 'rolled-back' && view.isMovedByRollout;
        assert.ok(step.quarantines || rollout.from !== undefined || isLate);
      }
      if (step.kind === 'quarantine') assert.equal(rollout.fault, 'version');
      if (step.kind === 'stage')
        assert.ok(!fleet.isQuarantined && fleet.candidateConflict === undefined);
      if (step.kind !== 'move') return;
      assert.equal(rollout.state, 'activating');
      assert.ok(!fleet.isQuarantined && fleet.candidate === rollout.version);
      const view = fleet.channels.find((one) => one.channel === step.channel);
      const from: Readonly<Record<string, number>> = rollout.from ?? {};
      assert.ok(view !== undefined && !view.isPinned && view.seq === (from[step.channel] ?? 0));
      for (const replicas of fleet.shards) {
        const need = policy.replicas === 'all' ? replicas.length : policy.replicas;
        const held = replicas.filter(({ holds }) => holds).length;
        assert.ok(held >= Math.min(need, replicas.length));
      }
    }),
    { numRuns: 5000 },
  );
});
