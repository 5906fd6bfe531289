/** Batches reach a worker with their own slab, however many slabs there are. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../lib/core/errors.ts';
import type { GraphPlan } from '../../../lib/features/graph-plan.ts';
import {
  allocateSlab,
  type SlabShape,
  viewResult,
  viewSlab,
} from '../../../serving/engine/batch-slab.ts';
import { BATCH_DONE, SlabChannel, SlabReceiver } from '../../../serving/engine/slab-channel.ts';

const PLAN = { denseNum: 3, keyNum: 2, tables: [], ids: [], hasBags: false };
const SHAPE: SlabShape = {
  plan: PLAN as unknown as GraphPlan,
  rowsMax: 8,
  outputs: [],
  lookupThread: 'worker',
};
/** More than a worker knows at a time. */
const SLABS = 40;

function createSlabs(): SharedArrayBuffer[] {
  return Array.from({ length: SLABS }, (_, i) => {
    // One is too large to be known.
    const slab = i === 7 ? new SharedArrayBuffer((4 << 20) + 8) : allocateSlab(SHAPE, 0);
    viewSlab(SHAPE, slab).dense[0] = i;
    return slab;
  });
}

test('each batch has its own slab and rows, and each result comes from its slab', () => {
  const slabs = createSlabs();
  // Few slabs in turn, as in use, and all of them.
  const use = fc.oneof(fc.nat({ max: 3 }), fc.nat({ max: SLABS - 1 }));
  const batch = fc.tuple(use, fc.integer({ min: 1, max: 8 }), fc.boolean());
  fc.assert(
    fc.property(fc.array(batch, { maxLength: 200 }), (batches) => {
      const [channel, receiver] = [new SlabChannel(), new SlabReceiver(SHAPE)];
      for (const [i, rowCount, fails] of batches) {
        const message = structuredClone(channel.encode({ slab: slabs[i]!, rowCount }));
        const received = receiver.receive(message);
        assert.equal(received.rowCount, rowCount);
        assert.equal(received.views.dense[0], i);
        received.views.result.set([i, rowCount, 0.5]);
        if (fails) {
          const reply = { kind: 'failed', code: 'INTERNAL', message: `slab ${i}` } as const;
          assert.throws(
            () => channel.decode(reply),
            (error) => error instanceof CubeError && error.message === `slab ${i}`,
          );
        } else {
          const result = { misses: i, lookupMicros: rowCount, inferMicros: 0.5 };
          assert.deepEqual(channel.decode(BATCH_DONE), result);
        }
      }
    }),
  );
});

test('a slab in use is a number, and results come in the order of the batches', () => {
  const [first, second] = createSlabs();
  const channel = new SlabChannel();
  channel.encode({ slab: first!, rowCount: 1 });
  channel.encode({ slab: second!, rowCount: 2 });
  viewResult(first!)[0] = 11;
  viewResult(second!)[0] = 22;
  assert.equal(channel.decode(BATCH_DONE).misses, 11);
  assert.equal(channel.decode(BATCH_DONE).misses, 22);
  assert.equal(typeof channel.encode({ slab: second!, rowCount: 3 }), 'number');
});
