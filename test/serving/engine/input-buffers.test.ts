/** Memory for the inputs of batches: used again only after its return, and within limits. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { InputBuffers } from '../../../serving/engine/input-buffers.ts';

test('memory has the asked size, and nobody shares it until it is returned', () => {
  const step = fc.record({ bytes: fc.integer({ min: 0, max: 70_000 }), isReturned: fc.boolean() });
  fc.assert(
    fc.property(fc.array(step, { maxLength: 60 }), (steps) => {
      const buffers = new InputBuffers();
      const held = new Set<ArrayBufferLike>();
      for (const { bytes, isReturned } of steps) {
        const memory = buffers.allocate(bytes);
        assert.deepEqual([memory.length, memory.byteOffset], [bytes, 0]);
        assert.ok(!held.has(memory.buffer), 'in use');
        held.add(memory.buffer);
        if (!isReturned) continue;
        held.delete(memory.buffer);
        buffers.release([memory.buffer as ArrayBuffer]);
      }
    }),
  );
});

test('returned memory is used again, and only so much of it is kept', () => {
  const buffers = new InputBuffers();
  const first = buffers.allocate(60_000);
  buffers.release([first.buffer as ArrayBuffer]);
  assert.equal(buffers.allocate(50_000).buffer, first.buffer);
  const many = Array.from({ length: 20 }, () => buffers.allocate(60_000).buffer as ArrayBuffer);
  buffers.release(many);
  const again = many.map(() => buffers.allocate(60_000).buffer as ArrayBuffer);
  assert.equal(again.filter((buffer) => many.includes(buffer)).length, 8);
});
