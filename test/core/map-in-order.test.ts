import assert from 'node:assert/strict';
import { test } from 'node:test';
import { setImmediate as turn } from 'node:timers/promises';
import fc from 'fast-check';
import { mapInOrder } from '../../lib/core/map-in-order.ts';

async function turns(count: number): Promise<void> {
  for (let i = 0; i < count; i++) await turn();
}

test('results come in the order of the items, and at most the limit are in progress', async () => {
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
        const answers = mapInOrder(
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

test('results do not wait for the next item; a failure ends the stream', async () => {
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
  const answers = mapInOrder(endless(), async (i) => i, 4);
  assert.deepEqual([(await answers.next()).value, (await answers.next()).value], [1, 2]);
  async function* three() {
    try {
      yield* [1, 2, 3];
    } finally {
      released = true;
    }
  }
  const failing = mapInOrder(
    three(),
    (i) => (i === 2 ? Promise.reject(new Error('no')) : Promise.resolve(i)),
    2,
  );
  assert.equal((await failing.next()).value, 1);
  await assert.rejects(failing.next(), /no/);
  assert.equal(released, true);
});
