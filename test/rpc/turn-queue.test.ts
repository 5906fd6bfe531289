import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as nextTurn } from 'node:timers/promises';
import { TurnQueue } from '../../lib/rpc/turn-queue.ts';

/** A queue whose tasks and turns take the given time on a clock of its own. */
function startQueue(taskMs: number): {
  done: number[];
  add(count: number): void;
  turn(turnMs: number): Promise<void>;
} {
  let nowMs = 0;
  const done: number[] = [];
  const queue = new TurnQueue(() => nowMs);
  let added = 0;
  return {
    done,
    add(count) {
      for (let i = 0; i < count; i++) {
        const task = added++;
        queue.add(() => {
          done.push(task);
          nowMs += taskMs;
        });
      }
    },
    turn(turnMs) {
      nowMs += turnMs;
      return nextTurn();
    },
  };
}

test('a short turn is followed by one task, in order', async () => {
  const { done, add, turn } = startQueue(2);
  add(3);
  assert.deepEqual(done, []);
  await turn(0.1);
  assert.deepEqual(done, [0]);
  await turn(0.1);
  add(1);
  await turn(0.1);
  await turn(0.1);
  assert.deepEqual(done, [0, 1, 2, 3]);
});

test('tasks take as long as the turn before them, at most 10 ms', async () => {
  const { done, add, turn } = startQueue(2);
  add(100);
  await turn(8);
  assert.equal(done.length, 4);
  await turn(1_000);
  assert.equal(done.length, 9);
  await turn(0.1);
  assert.equal(done.length, 10);
});
