import assert from 'node:assert/strict';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { readPrunedModel } from '../../../tools/cube-builder/pruned-model.ts';
import { shardsOf } from '../../../tools/cube-builder/sharding.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { element, writePruned } from './fixtures.ts';

test('whatever fits in memory at once, every row is in its shard exactly once', (t) => {
  const folder = temporaryFolder(t);
  const sizes = fc.record({
    rows: fc.integer({ min: 0, max: 300 }),
    dim: fc.integer({ min: 1, max: 5 }),
    shardNum: fc.integer({ min: 1, max: 9 }),
    budgetBytes: fc.integer({ min: 0, max: 8000 }),
  });
  fc.assert(
    fc.property(sizes, ({ rows, dim, shardNum, budgetBytes }) => {
      const input = writePruned(join(folder, 'out'), [{ name: 't', rows, dim }]);
      const [table] = readPrunedModel(input, undefined).tables;
      assert.ok(table !== undefined);
      const shards = [...shardsOf(table, shardNum, budgetBytes)];
      assert.deepEqual(
        shards.map(({ shardIndex }) => shardIndex),
        Array.from({ length: shardNum }, (_, i) => i),
      );
      for (const { shardIndex, keys, rows: values } of shards) {
        const expected = Array.from({ length: rows }, (_, i) => i).filter(
          (i) => i % shardNum === shardIndex,
        );
        assert.deepEqual(
          [...keys],
          expected.flatMap((i) => [i, 0]),
        );
        assert.deepEqual(
          [...values],
          expected.flatMap((i) => Array.from({ length: dim }, (_, j) => element('t', i, j))),
        );
      }
    }),
    { numRuns: 60 },
  );
});
