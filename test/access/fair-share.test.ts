/** Shares of callers under overload: by weight, without starvation, and work-conserving. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { FairShare } from '../../lib/access/fair-share.ts';
import { Principal } from '../../lib/access/principal.ts';
import { ALL_SCOPES } from '../../lib/access/scopes.ts';
import { Admission } from '../../serving/protocols/admission.ts';
import { getErrorCode } from '../support/errors.ts';

/** Offered rows per tick of each caller, and its weight. */
interface Caller {
  readonly weight: number;
  readonly offered: number;
}

/**
 * Serves `capacity` rows a tick; a caller above its share is refused while rows wait. Returns the
 * rows served of each caller in the last ticks.
 */
function simulate(callers: readonly Caller[], capacity: number, ticks: number): number[] {
  const share = new FairShare();
  const served = callers.map(() => 0);
  let waiting = 0;
  for (let tick = 0; tick < ticks; tick++) {
    const nowMs = tick * 5;
    for (let turn = 0; turn < Math.max(...callers.map(({ offered }) => offered)); turn++) {
      callers.forEach(({ weight, offered }, i) => {
        if (turn >= offered) return;
        const isBusy = waiting > capacity;
        if (isBusy && share.exceeds(`${i}`, nowMs)) return;
        if (waiting > 4 * capacity) return;
        share.record(`${i}`, weight, 1, nowMs);
        waiting++;
        if (tick > ticks / 2) served[i]!++;
      });
    }
    waiting = Math.max(0, waiting - capacity);
  }
  return served;
}

test('a caller below its share is never refused, whatever others send', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 8 }),
      fc.integer({ min: 30, max: 200 }),
      (weight, flood) => {
        const capacity = 20;
        // Under half of its share.
        const offered = Math.max(1, Math.floor((capacity * weight) / (weight + 1) / 2));
        const ticks = 1_000;
        const [quiet = 0] = simulate(
          [
            { weight, offered },
            { weight: 1, offered: flood },
          ],
          capacity,
          ticks,
        );
        assert.ok(quiet >= offered * (ticks / 2 - 1), `${quiet} of ${offered * (ticks / 2)}`);
      },
    ),
    { numRuns: 30 },
  );
});

test('callers that all send too much get capacity in proportion to their weights', () => {
  const weights = [1, 2, 5];
  const served = simulate(
    weights.map((weight) => ({ weight, offered: 60 })),
    24,
    2_000,
  );
  const perWeight = served.map((rows, i) => rows / weights[i]!);
  const [first = 0] = perWeight;
  for (const rows of perWeight) assert.ok(Math.abs(rows / first - 1) < 0.1, `${perWeight}`);
});

test('what a quiet caller leaves is used by the others', () => {
  const capacity = 20;
  const served = simulate(
    [
      { weight: 1, offered: 1 },
      { weight: 1, offered: 100 },
    ],
    capacity,
    2_000,
  );
  const used = served.reduce((sum, rows) => sum + rows, 0);
  assert.ok(used > 0.9 * capacity * 1_000, `${used}`);
});

test('a caller that was quiet has its full share again, and a lone caller all of it', () => {
  const share = new FairShare();
  share.record('a', 1, 1_000, 0);
  assert.equal(share.exceeds('a', 0), false, 'alone');
  share.record('b', 1, 10, 0);
  assert.equal(share.exceeds('a', 0), true);
  assert.equal(share.exceeds('b', 0), false);
  assert.equal(share.exceeds('unknown', 0), false);
  share.record('b', 1, 10, 20_000);
  assert.equal(share.exceeds('a', 20_000), false);
});

test('serving refuses only callers above their share, and only while requests wait', () => {
  const admission = new Admission(10);
  const [greedy, modest] = ['greedy', 'modest'].map((id) => new Principal('key', id, ALL_SCOPES));
  assert.ok(greedy && modest);
  admission.recordRows(greedy, 10_000);
  admission.recordRows(modest, 100);
  const check = (waitMs: number, offered: number): readonly string[] =>
    [greedy, modest].map((principal) => {
      const engine = {
        estimateWaitMs: () => waitMs,
        recordOffer: () => offered,
        estimateRowsMs: () => 100,
      };
      const urgency = { remainingMs: 1_000, principal, isHead: true };
      return getErrorCode(() => admission.checkWait([engine], urgency));
    });
  assert.deepEqual(check(50, 0.5), ['OVERLOADED', 'no error']);
  assert.deepEqual(check(1, 0.5), ['no error', 'no error'], 'busy');
  assert.deepEqual(check(1, 5), ['OVERLOADED', 'no error'], 'too much is offered');
  assert.deepEqual(check(0, 5), ['no error', 'no error'], 'idle');
});
