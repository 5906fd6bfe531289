/** The estimate of waiting time, in virtual time. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../lib/core/errors.ts';
import { ServiceRate } from '../../../serving/engine/service-rate.ts';
import { Admission } from '../../../serving/protocols/admission.ts';
import { getErrorCode } from '../../support/errors.ts';

/** A rate that has seen the first batches of a process, which do not count. */
function makeWarmRate(): ServiceRate {
  const rate = new ServiceRate();
  for (let i = 0; i < 16; i++) rate.recordBatch(1, 0, true);
  return rate;
}

/** Finishes batches one after another, while rows wait. @returns the time after the last */
function runBatches(
  rate: ServiceRate,
  startMs: number,
  { count, rows, eachMs }: { count: number; rows: number; eachMs: number },
): number {
  for (let i = 1; i <= count; i++) rate.recordBatch(rows, startMs + i * eachMs, true);
  return startMs + count * eachMs;
}

test('waiting rows take as long as the measured rate says', () => {
  const rate = makeWarmRate();
  assert.equal(rate.estimateMs(1_000, 0), 0, 'no rate is known');
  rate.recordBatch(64, 0, true);
  const nowMs = runBatches(rate, 0, { count: 50, rows: 64, eachMs: 2 });
  assert.ok(Math.abs(rate.estimateMs(3_200, nowMs) - 100) < 1e-6);
  assert.equal(rate.estimateMs(0, nowMs), 0);
});

test('the first batches of a process, which are slow, give no estimate', () => {
  const rate = new ServiceRate();
  const nowMs = runBatches(rate, 0, { count: 16, rows: 1, eachMs: 200 });
  assert.equal(rate.estimateMs(100, nowMs), 0);
  rate.recordBatch(10, nowMs, true);
  rate.recordBatch(10, nowMs + 1, true);
  assert.ok(rate.estimateMs(100, nowMs + 1) < 20);
});

test('time without waiting rows does not count', () => {
  const rate = makeWarmRate();
  rate.recordBatch(64, 0, true);
  const nowMs = runBatches(rate, 0, { count: 10, rows: 64, eachMs: 2 });
  rate.recordBatch(64, nowMs + 2, false);
  for (let i = 1; i < 100; i++) rate.recordBatch(1, nowMs + 1_000 * i, false);
  assert.ok(Math.abs(rate.estimateMs(320, nowMs + 100_000) - 10) < 1e-6);
});

test('the rate follows a change within seconds, and a stalled engine looks slow', () => {
  const rate = makeWarmRate();
  rate.recordBatch(64, 0, true);
  const fastMs = runBatches(rate, 0, { count: 1_000, rows: 64, eachMs: 1 });
  const before = rate.estimateMs(6_400, fastMs);
  const slowMs = runBatches(rate, fastMs, { count: 300, rows: 64, eachMs: 10 });
  assert.ok(before < 101 && rate.estimateMs(6_400, slowMs) > 700);
  assert.ok(rate.estimateMs(6_400, slowMs + 5_000) > 3_000);
});

test('an idle engine never refuses, whatever it measured before', () => {
  const event = fc.record({
    rows: fc.integer({ min: 1, max: 4_096 }),
    afterMs: fc.double({ min: 0, max: 1e6, noNaN: true }),
    isWaiting: fc.boolean(),
  });
  fc.assert(
    fc.property(
      fc.array(event, { maxLength: 50 }),
      fc.double({ min: 0, max: 1e9, noNaN: true }),
      fc.double({ min: 0.001, max: 600_000, noNaN: true }),
      (events, restMs, remainingMs) => {
        const rate = new ServiceRate();
        let nowMs = 0;
        for (const { rows, afterMs, isWaiting } of events) {
          nowMs += afterMs;
          rate.recordBatch(rows, nowMs, isWaiting);
        }
        const waitMs = rate.estimateMs(0, nowMs + restMs);
        const engine = {
          estimateWaitMs: () => waitMs,
          estimateRowsMs: (rows: number) => rate.estimateMs(rows, nowMs + restMs),
          recordOffer: () => 100,
        };
        new Admission(1).checkWait([engine], { remainingMs, isHead: true });
      },
    ),
  );
});

test('a request may wait for half of its time, in the engine with the shortest queue', () => {
  const admission = new Admission(1);
  const engine = (waitMs: number) => ({
    estimateWaitMs: () => waitMs,
    estimateRowsMs: () => 100,
    recordOffer: () => 0,
  });
  const isAdmitted = (remainingMs: number, ...waits: readonly number[]): boolean => {
    try {
      admission.checkWait(waits.map(engine), { remainingMs });
      return true;
    } catch (error) {
      assert.equal(CubeError.from(error).code, 'OVERLOADED');
      return false;
    }
  };
  assert.equal(isAdmitted(1_000, 500), true);
  assert.equal(isAdmitted(1_000, 501), false);
  assert.equal(isAdmitted(100, 51), false);
  assert.equal(isAdmitted(1_000, 900, 20), true);
  assert.equal(isAdmitted(1_000), true, 'no version is loaded: another error follows');
});

test('while too much is offered, only some rows may wait for the engine', () => {
  const admission = new Admission(1);
  const check = (waitMs: number, offered: number, isHead = true): string =>
    getErrorCode(() => {
      const engine = {
        estimateWaitMs: () => waitMs,
        estimateRowsMs: (rows: number) => rows / 50,
        recordOffer: () => offered,
      };
      admission.checkWait([engine], { remainingMs: 1_000, isHead });
    });
  assert.equal(check(80, 2), 'no error');
  assert.equal(check(90, 2), 'OVERLOADED', '4,096 rows take 82 ms');
  assert.equal(check(90, 1), 'no error');
  assert.equal(check(90, 2, false), 'no error', 'it was admitted by its head');
});
