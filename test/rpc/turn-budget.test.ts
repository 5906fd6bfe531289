import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { TurnBudget } from '../../lib/rpc/turn-budget.ts';

test('requests beyond the budget of a turn run in later turns, in order', async () => {
  const budget = new TurnBudget(3);
  const begun: number[] = [];
  const begin = (request: number): void => {
    if (budget.take()) begun.push(request);
    else budget.defer(() => begin(request));
  };
  for (let request = 0; request < 8; request++) begin(request);
  assert.deepEqual(begun, [0, 1, 2]);
  await nextTurn();
  assert.deepEqual(begun, [0, 1, 2, 3, 4, 5]);
  // A request that arrives now waits behind those that were deferred.
  begin(8);
  await nextTurn();
  assert.deepEqual(begun, [0, 1, 2, 3, 4, 5, 6, 7, 8]);
  // That turn has begun three: the next one waits too.
  begin(9);
  assert.equal(begun.length, 9);
  await nextTurn();
  assert.equal(begun.length, 10);
});

test('a turn touches only the requests that it begins', async () => {
  const budget = new TurnBudget(2);
  let runs = 0;
  const begin = (): void => {
    runs++;
    if (!budget.take()) budget.defer(begin);
  };
  for (let request = 0; request < 100; request++) begin();
  assert.equal(runs, 100);
  for (let turn = 1; turn <= 49; turn++) {
    await nextTurn();
    assert.equal(runs, 100 + 2 * turn);
  }
});
