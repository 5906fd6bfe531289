import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import fc from 'fast-check';
import { inOrder } from '../../lib/core/in-order.ts';

async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await turn();
}

test('answers come in the order of the items, however long each takes, and no more are in work than may be', async () => {
  const delays = fc.integer({ min: 0, max: 4 });
  const step = fc.record({ read: delays, work: delays, take: delays });
  await fc.assert(
    fc.asyncProperty(
      fc.array(step, { maxLength: 12 }),
      fc.integer({ min: 1, max: 4 }),
      async (steps, max) => {
        let working = 0;
        let started = 0;
        let taken = 0;
        async function* items() {
          for (const [i, { read }] of steps.entries()) {
            await turns(read);
            yield i;
          }
        }
        const answers = inOrder(
          items(),
          async (i) => {
            working++;
            started++;
            assert.ok(working <= max && started <= taken + max + 1);
            await turns(steps[i]!.work);
            working--;
            return i;
          },
          max,
        );
        const order: number[] = [];
        for await (const answer of answers) {
          taken++;
          order.push(answer);
          await turns(steps[answer]!.take);
        }
        assert.deepEqual(
          order,
          steps.map((_, i) => i),
        );
      },
    ),
    { numRuns: 200 },
  );
});

test('an answer comes while nothing more does; a failure ends it, and the items are let go', async () => {
  let released = false;
  async function* endless() {
    try {
      yield 1;
      yield 2;
      await new Promise(() => undefined);
    } finally {
      released = true;
    }
  }
  const answers = inOrder(endless(), async (i) => i, 4);
  assert.deepEqual([(await answers.next()).value, (await answers.next()).value], [1, 2]);
  async function* three() {
    try {
      yield* [1, 2, 3];
    } finally {
      released = true;
    }
  }
  const failing = inOrder(
    three(),
    (i) => (i === 2 ? Promise.reject(new Error('no')) : Promise.resolve(i)),
    2,
  );
  assert.equal((await failing.next()).value, 1);
  await assert.rejects(failing.next(), /no/);
  assert.equal(released, true);
});
