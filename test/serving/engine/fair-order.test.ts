import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { DEFAULT_BATCHING } from '../../../serving/engine/engine-options.ts';
import { FairOrder } from '../../../serving/engine/fair-order.ts';
import { QueuedRequest } from '../../../serving/engine/queued-request.ts';
import { RequestQueue } from '../../../serving/engine/request-queue.ts';

class TestRequest extends QueuedRequest {
  readonly caller: string;

  constructor(caller: string, rowCount: number, weight: number, arrivedMs: number) {
    const share = { id: caller, weight };
    super(rowCount, {
      options: { deadlineMs: 1e9, share },
      arrivedMs,
      resolve: () => undefined,
      reject: () => undefined,
      settled: () => undefined,
    });
    this.caller = caller;
  }
}

/** A queue that serves whole requests. */
class Line {
  readonly queue = new RequestQueue<TestRequest>({ ...DEFAULT_BATCHING, queueTimeoutMs: 0 });
  #nowMs = 0;

  send(caller: string, rowCount: number, weight = 1): TestRequest {
    const request = new TestRequest(caller, rowCount, weight, this.#nowMs);
    this.#nowMs += 0.001;
    this.queue.push(request);
    return request;
  }

  serve(): TestRequest | undefined {
    const request = this.queue.next(this.#nowMs);
    request?.takeSlice(request.rowCount, 0, this.#nowMs);
    if (request !== undefined) this.queue.update(request);
    return request;
  }
}

test('a caller that sends little is next, however many requests of another one wait', () => {
  const line = new Line();
  for (let i = 0; i < 100; i++) line.send('greedy', 64);
  for (let i = 0; i < 10; i++) line.serve();
  line.send('quiet', 64);
  const order = [line.serve()?.caller, line.serve()?.caller];
  assert.ok(order.includes('quiet'), order.join());
});

test('one caller, and all without a key, are served first in, first out', () => {
  fc.assert(
    fc.property(fc.array(fc.integer({ min: 1, max: 99 }), { maxLength: 40 }), (sizes) => {
      const line = new Line();
      const sent = sizes.map((size) => line.send('one', size));
      for (const request of sent) assert.equal(line.serve(), request);
      assert.equal(line.serve(), undefined);
    }),
  );
});

test('while callers wait, their rows differ by their weights and a request each', () => {
  const caller = fc.constantFrom('a', 'b', 'c');
  const step = fc.oneof(
    fc.record({ caller, rows: fc.integer({ min: 1, max: 50 }) }),
    fc.constant('serve' as const),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), fc.integer({ min: 1, max: 4 }), (steps, w) => {
      const weights = { a: 1, b: w, c: 2 };
      const line = new Line();
      // Before any of it, all callers have much to do, and never run dry.
      for (const id of ['a', 'b', 'c'] as const) {
        for (let i = 0; i < 300; i++) line.send(id, 50, weights[id]);
      }
      const served = { a: 0, b: 0, c: 0 };
      for (const one of steps) {
        if (one !== 'serve') {
          line.send(one.caller, one.rows, weights[one.caller]);
          continue;
        }
        const request = line.serve();
        if (request !== undefined) served[request.caller as 'a'] += request.rowCount;
        for (const id of ['a', 'b', 'c'] as const) {
          const difference = served[id] / weights[id] - served.a;
          assert.ok(Math.abs(difference) <= 100, `${id}: ${difference}`);
        }
      }
    }),
  );
});

test('a caller that comes back has no credit for the time in which it sent nothing', () => {
  const order = new FairOrder();
  for (let i = 0; i < 50; i++) order.advance(order.place({ id: 'busy', weight: 1 }, 10));
  const first = order.place({ id: 'new', weight: 1 }, 10);
  const busy = order.place({ id: 'busy', weight: 1 }, 10);
  assert.ok(busy - first <= 10);
});

test('the oldest request decides the delay of a batch, wherever it is in the queue', () => {
  const line = new Line();
  const first = line.send('a', 64);
  line.send('a', 64);
  line.send('b', 1);
  assert.equal(line.queue.oldestArrivalMs(), first.arrivedMs);
});
