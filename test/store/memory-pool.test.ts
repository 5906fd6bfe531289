import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { MemoryPool, type PooledMemory } from '../../lib/store/memory-pool.ts';

const PAGE = 65_536;

function take(pool: MemoryPool, bytes: number): PooledMemory {
  return pool.acquireAll([bytes], 'test')[0]!;
}

test('a released memory is reused, and grown when it is too small', () => {
  const pool = new MemoryPool(1000 * PAGE, 'wasm');
  const small = take(pool, 10 * PAGE);
  pool.release(small);
  assert.equal(take(pool, 9 * PAGE), small);
  pool.release(small);
  const grown = take(pool, 300 * PAGE);
  assert.equal(grown, small);
  assert.equal(grown.length, 300 * PAGE);
  assert.equal(grown.memory.buffer.byteLength, 300 * PAGE);
  pool.release(grown);
  assert.notEqual(take(pool, 10 * PAGE), grown, 'far too large: kept for a large layer');
  assert.deepEqual([pool.usedBytes, pool.pooledBytes], [10 * PAGE, 300 * PAGE]);
});

test('when the budget has no room for another memory, a far larger one serves', () => {
  const pool = new MemoryPool(300 * PAGE, 'wasm');
  const large = take(pool, 250 * PAGE);
  pool.release(large);
  const first = take(pool, 50 * PAGE);
  assert.notEqual(first, large);
  assert.equal(take(pool, 40 * PAGE), large);
});

test('several sizes are acquired all or none', () => {
  const pool = new MemoryPool(100 * PAGE, 'wasm');
  pool.release(take(pool, 30 * PAGE));
  assert.throws(() => pool.acquireAll([60 * PAGE, 50 * PAGE], 'test'), { code: 'TOO_LARGE' });
  assert.deepEqual([pool.usedBytes, pool.pooledBytes], [0, 30 * PAGE]);
  const both = pool.acquireAll([40 * PAGE, 60 * PAGE], 'test');
  assert.ok(both[0]!.length >= 40 * PAGE && both[1]!.length >= 60 * PAGE);
  assert.throws(() => take(pool, 1), { code: 'OVERLOADED', message: /budget of 6553600 are used/ });
});

test('a free memory that is too large never takes the room of the next size', () => {
  for (const [free, ...needs] of [
    [90, 50, 40],
    [60, 50, 48],
  ] as const) {
    const pool = new MemoryPool(100 * PAGE, 'wasm');
    pool.release(take(pool, free * PAGE));
    const sizes = needs.map((pages) => pages * PAGE);
    assert.equal(pool.acquireAll(sizes, 'test').length, 2, `${needs} beside a free one of ${free}`);
    assert.ok(pool.usedBytes <= 100 * PAGE);
  }
});

test('whatever is acquired and released, used and pooled stay within the budget', () => {
  const step = fc.oneof(
    fc.record({ acquire: fc.array(fc.integer({ min: 1, max: 60 }), { maxLength: 3 }) }),
    fc.record({ release: fc.nat() }),
  );
  fc.assert(
    fc.property(fc.array(step, { maxLength: 30 }), (steps) => {
      const pool = new MemoryPool(128 * PAGE, 'portable');
      const held: PooledMemory[] = [];
      for (const one of steps) {
        if ('release' in one) {
          const [memory] = held.splice(one.release % Math.max(1, held.length), 1);
          if (memory !== undefined) pool.release(memory);
        } else {
          try {
            const sizes = one.acquire.map((pages) => pages * PAGE);
            const memories = pool.acquireAll(sizes, 'test');
            memories.forEach((memory, i) => {
              assert.ok(memory.length >= sizes[i]! && memory.bytes.length === memory.length);
            });
            held.push(...memories);
          } catch (error) {
            assert.ok(error instanceof CubeError, String(error));
            const needed = one.acquire.reduce((sum, pages) => sum + pages * PAGE, 0);
            assert.ok(pool.usedBytes + needed > 128 * PAGE, 'what fits the budget is given');
          }
        }
        const used = held.reduce((sum, memory) => sum + memory.length, 0);
        assert.equal(pool.usedBytes, used);
        assert.ok(used + pool.pooledBytes <= 128 * PAGE);
        assert.equal(new Set(held).size, held.length);
      }
    }),
    { numRuns: 60 },
  );
});
