/** Limits of a key: rates, concurrency, quotas and batch sizes, with a clock that the test sets. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { KeyLimits } from '../../lib/access/api-keys.ts';
import { KeyUsage } from '../../lib/access/key-usage.ts';
import { TokenBucket } from '../../lib/access/token-bucket.ts';
import { CubeError } from '../../lib/core/errors.ts';

const DAY_MS = 86_400_000;

class FakeClock {
  monotonicMs = 1_000;
  utcMs: number = 20_000 * DAY_MS + 1_000;
  nowMs = (): number => this.monotonicMs;
  wallMs = (): number => this.utcMs;
}

function createUsage(limits: KeyLimits): { usage: KeyUsage; clock: FakeClock } {
  const clock = new FakeClock();
  return { usage: new KeyUsage('k', limits, clock), clock };
}

/** The code and the wait of a refusal; `OK` without one. */
function attempt(action: () => void): [code: string, retryAfterMs?: number] {
  try {
    action();
    return ['OK'];
  } catch (error) {
    const { code, details } = CubeError.from(error);
    return details.retryAfterMs === undefined ? [code] : [code, details.retryAfterMs];
  }
}

test('a bucket never grants more than its rate and a burst', () => {
  fc.assert(
    fc.property(
      fc.integer({ min: 1, max: 500 }),
      fc.array(fc.tuple(fc.integer({ min: 0, max: 400 }), fc.integer({ min: 1, max: 50 })), {
        maxLength: 200,
      }),
      (perSecond, steps) => {
        const bucket = new TokenBucket(perSecond, 0);
        let nowMs = 0;
        let granted = 0;
        let largest = 0;
        for (const [pauseMs, count] of steps) {
          nowMs += pauseMs;
          const waitMs = bucket.getWaitMs(nowMs);
          if (waitMs > 0) continue;
          bucket.take(count, nowMs);
          granted += count;
          largest = Math.max(largest, count);
        }
        // The last taking may exceed the tokens that were left.
        const allowed = perSecond + (nowMs / 1000) * perSecond + largest;
        assert.ok(granted <= allowed + 1e-6, `${granted} of ${allowed}`);
        const waitMs = bucket.getWaitMs(nowMs);
        assert.equal(bucket.getWaitMs(nowMs + waitMs), 0, 'the announced wait is enough');
      },
    ),
  );
});

test('requests per second are limited, and the error says when to try again', () => {
  const { usage, clock } = createUsage({ requestsPerSecond: 2 });
  for (let i = 0; i < 2; i++)
    assert.deepEqual(
      attempt(() => usage.enter()),
      ['OK'],
    );
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['RATE_LIMITED', 500],
  );
  clock.monotonicMs += 500;
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['OK'],
  );
});

test('a batch larger than the rate is granted once, and delays the next', () => {
  const { usage, clock } = createUsage({ rowsPerSecond: 100 });
  assert.deepEqual(
    attempt(() => usage.takeRows(300)),
    ['OK'],
  );
  const [code, waitMs = 0] = attempt(() => usage.enter());
  assert.equal(code, 'RATE_LIMITED');
  assert.ok(waitMs >= 2_000 && waitMs <= 2_020, `${waitMs}`);
  clock.monotonicMs += waitMs;
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['OK'],
  );
});

test('concurrent requests are limited until they end', () => {
  const { usage } = createUsage({ concurrentMax: 1 });
  usage.enter();
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['RATE_LIMITED', 100],
  );
  usage.leave();
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['OK'],
  );
});

test('a daily quota ends with the day of UTC, also when the clock is set back', () => {
  const { usage, clock } = createUsage({ dailyRequests: 1, dailyRows: 10 });
  usage.enter();
  assert.deepEqual(
    attempt(() => usage.takeRows(11)),
    ['RATE_LIMITED', DAY_MS - 1_000],
  );
  usage.takeRows(10);
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['RATE_LIMITED', DAY_MS - 1_000],
  );
  clock.utcMs -= DAY_MS;
  assert.equal(attempt(() => usage.enter())[0], 'RATE_LIMITED');
  clock.utcMs += 2 * DAY_MS;
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['OK'],
  );
});

test('a batch above the limit of its key is too large, and costs nothing', () => {
  const { usage } = createUsage({ batchRowsMax: 8, rowsPerSecond: 8 });
  assert.deepEqual(
    attempt(() => usage.takeRows(9)),
    ['TOO_LARGE'],
  );
  assert.deepEqual(
    attempt(() => usage.takeRows(8)),
    ['OK'],
  );
});

test('changed limits apply at once and keep what was used', () => {
  const { usage } = createUsage({ dailyRequests: 100 });
  usage.enter();
  usage.enter();
  usage.setLimits({ dailyRequests: 2 });
  assert.equal(attempt(() => usage.enter())[0], 'RATE_LIMITED');
});

test('messages of a call that has begun count as requests, not as concurrent ones', () => {
  const { usage } = createUsage({ concurrentMax: 1, dailyRequests: 3 });
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['OK'],
  );
  assert.deepEqual(
    attempt(() => usage.takeRequest()),
    ['OK'],
  );
  assert.deepEqual(
    attempt(() => usage.takeRequest()),
    ['OK'],
  );
  assert.equal(attempt(() => usage.takeRequest())[0], 'RATE_LIMITED');
  assert.equal(usage.concurrent, 1);
  assert.equal(usage.daily.requests, 3);
});

test('a clock that was far ahead for a moment does not stop the next days', () => {
  const { usage, clock } = createUsage({ dailyRequests: 1 });
  clock.utcMs += 400 * DAY_MS;
  usage.enter();
  usage.leave();
  clock.utcMs -= 400 * DAY_MS;
  assert.deepEqual(
    attempt(() => usage.enter()),
    ['OK'],
  );
  usage.leave();
  // An hour back over midnight gives no second quota.
  clock.utcMs -= 3_600_000;
  assert.equal(attempt(() => usage.enter())[0], 'RATE_LIMITED');
});
