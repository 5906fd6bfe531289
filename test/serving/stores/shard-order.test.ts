import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import type { KernelKind } from '../../../lib/core/kernels/kernels.ts';
import { keyToBigint, setKey } from '../../../lib/core/keys.ts';
import { MemoryStore } from '../../../serving/stores/memory-store.ts';
import { ShardOrder } from '../../../serving/stores/shard-order.ts';
import { createOracleTable } from '../../client/support/oracle.ts';
import { TestRepository } from './support/test-repository.ts';

const KINDS: readonly KernelKind[] = ['wasm', 'portable'];
const u64 = fc.bigInt({ min: 0n, max: 2n ** 64n - 1n });

/** Keys in an array that may begin at any multiple of four bytes. */
function placeKeys(keys: readonly bigint[], skewWords: number): Uint32Array {
  const placed = new Uint32Array(skewWords + 2 * keys.length).subarray(skewWords);
  keys.forEach((key, i) => {
    setKey(placed, i, key);
  });
  return placed;
}

test('keys are sorted by shard stably, and their rows come back in order', () => {
  const batch = fc.record({
    shardNum: fc.constantFrom(2, 3, 4, 7, 16, 1000, 65_537),
    dim: fc.oneof(fc.integer({ min: 1, max: 20 }), fc.constantFrom(4, 8, 10, 16, 32)),
    keys: fc.array(fc.oneof(u64, fc.bigInt(0n, 9n)), { minLength: 1, maxLength: 400 }),
    start: fc.nat({ max: 3 }),
    skewWords: fc.nat({ max: 1 }),
    kind: fc.constantFrom(...KINDS),
  });
  fc.assert(
    fc.property(batch, ({ shardNum, dim, keys, start, skewWords, kind }) => {
      const order = new ShardOrder(shardNum, dim, kind);
      const count = keys.length;
      const before = Array.from({ length: start }, () => 5n);
      order.sort(placeKeys([...before, ...keys], skewWords), start, count);
      const sorted = new Uint32Array(order.bytes.buffer, order.sortedAt, 2 * count);
      const sortedRows = new Float32Array(order.bytes.buffer, order.sortedRowsAt, count * dim);
      const expected = keys
        .map((key, position) => ({ key, position, shard: Number(key % BigInt(shardNum)) }))
        .sort((a, b) => a.shard - b.shard || a.position - b.position);
      expected.forEach(({ key, position }, i) => {
        assert.equal(keyToBigint(sorted, i), key);
        assert.equal(order.positions[i], position);
        for (let e = 0; e < dim; e++) sortedRows[i * dim + e] = position + e / 64;
      });
      for (const shard of new Set(expected.map((one) => one.shard))) {
        const end = expected.findLastIndex((one) => one.shard === shard) + 1;
        assert.equal(order.ends[shard], end);
      }
      const length = (start + count) * dim;
      const rows = new Float32Array(skewWords + length + 1).subarray(skewWords);
      order.unsort(rows, start, count, dim);
      for (let i = 0; i < length; i++) {
        const at = i - start * dim;
        const value = at < 0 ? 0 : Math.floor(at / dim) + (at % dim) / 64;
        assert.equal(rows[i], value, `element ${i}`);
      }
      assert.equal(rows[length], 0, 'wrote outside its range');
    }),
    { numRuns: 300 },
  );
});

test('a batch of several chunks has the rows and outcomes of each key', async (t) => {
  const repository = await TestRepository.create();
  t.after(() => repository.remove());
  const known = Array.from({ length: 4_000 }, (_, i) => BigInt(i) ** 5n);
  const table = createOracleTable('t', 10, known, { salt: 3 });
  const dense = createOracleTable('u', 3, known.slice(0, 50), { salt: 4 });
  for (const shardNum of [2, 3, 64]) {
    const version = String(shardNum);
    const tables = [table, dense];
    const manifest = await repository.publish({ bundle: 'ctr', version, shardNum, tables });
    const store = new MemoryStore({ repository: repository.repository, budgetBytes: 2 ** 30 });
    t.after(() => store.close());
    await store.prepare(manifest);
    const groups = tables.map(({ name, dim }, g) => {
      const count = g === 0 ? 2_500 : 9_001;
      const keys = Array.from({ length: count }, (_, i) =>
        i % 7 === g ? BigInt(i) + 2n ** 60n : known[(i * 31) % (g === 0 ? 4_000 : 50)]!,
      );
      return {
        table: name,
        keys: placeKeys(keys, 1),
        count,
        rows: new Float32Array(count * dim),
        outcomes: new Uint8Array(count).fill(9),
      };
    });
    const { unseen } = await store.lookup(manifest, groups, 1_000);
    let misses = 0;
    groups.forEach(({ keys, rows, outcomes, count }, g) => {
      const { dim, rows: known } = tables[g]!;
      for (let i = 0; i < count; i++) {
        const row = known.get(keyToBigint(keys, i));
        if (row === undefined) misses++;
        assert.equal(outcomes[i], row === undefined ? 1 : 0);
        const expected = [...(row ?? new Float32Array(dim))];
        assert.deepEqual([...rows.subarray(i * dim, (i + 1) * dim)], expected);
      }
    });
    assert.equal(unseen, misses);
  }
});
