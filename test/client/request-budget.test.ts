/** Budgets of retries and backups, and the timer of backups, on sequences of requests. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { BackupCaller, BackupTimer } from '../../lib/client/backup-timer.ts';
import { RequestBudget } from '../../lib/client/request-budget.ts';
import { systemClock } from '../../lib/platform/clock.ts';

test('additional requests are at most a tenth of the requests, after a burst of 100', () => {
  const step = fc.constantFrom('request', 'urgent', 'not urgent');
  fc.assert(
    fc.property(fc.array(step, { maxLength: 3_000 }), (steps) => {
      const budget = new RequestBudget();
      let requests = 0;
      let taken = 0;
      for (const kind of steps) {
        if (kind === 'request') {
          budget.countRequest();
          requests++;
        } else if (budget.tryTake(kind === 'urgent')) taken++;
        assert.ok(taken <= 100 + requests / 10 + 1e-6);
      }
    }),
    { numRuns: 100 },
  );
});

test('quiet traffic leaves half of the burst, however many backups it wants', () => {
  const budget = new RequestBudget();
  for (let i = 0; i < 10_000; i++) {
    budget.countRequest();
    budget.tryTake(false);
  }
  let urgent = 0;
  while (budget.tryTake(true)) urgent++;
  assert.ok(urgent >= 49 && urgent <= 51, `${urgent} left for a replica that hangs`);
});

test('five backups in a hundred requests, the share above p95, never empty the budget', () => {
  const budget = new RequestBudget();
  for (let i = 0; i < 10_000; i++) {
    budget.countRequest();
    if (i % 20 === 0) assert.ok(budget.tryTake(false), `refused at request ${i}`);
  }
});

class Caller extends BackupCaller {
  isSettled = false;
  toldAtMs = 0;
  readonly #onTold: () => void;

  constructor(onTold: () => void) {
    super();
    this.#onTold = onTold;
  }

  sendBackup(): void {
    this.toldAtMs = performance.now();
    this.#onTold();
  }
}

test('each call that has not settled is told once, not before it is due', async () => {
  const timer = new BackupTimer(systemClock);
  const count = 2_000;
  let told = 0;
  const callers: Caller[] = [];
  await new Promise<void>((resolve) => {
    const onTold = (): void => {
      told++;
      if (told === count / 2) resolve();
    };
    for (let i = 0; i < count; i++) {
      const caller = new Caller(onTold);
      callers.push(caller);
      timer.add(caller, performance.now(), 1 + (i % 3));
      if (i % 2 === 0) caller.isSettled = true;
    }
  });
  await new Promise((resolve) => setTimeout(resolve, 20));
  assert.equal(told, count / 2);
  for (const { isSettled, toldAtMs, backupAtMs } of callers) {
    assert.ok(isSettled ? toldAtMs === 0 : toldAtMs >= backupAtMs);
  }
});
