/** Scatter and gather against the plainest way to say the same. */
import assert from 'node:assert/strict';
import { test } from 'node:test';
import fc from 'fast-check';
import {
  fillRows,
  ShardedKeys,
  writeOutcomes,
  writeRows,
} from '../../lib/client/scatter-gather.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import {
  type LookupGroup,
  OUTCOME_HIT,
  OUTCOME_UNAVAILABLE,
  OUTCOME_UNSEEN,
} from '../../lib/core/lookup-group.ts';
import { fixedRowsResponseBytes } from '../../proto/lookup.ts';
import { createGroup, createOracleTable, KEY_MAX } from './support/oracle.ts';

const key = fc.oneof(
  fc.constantFrom(0n, KEY_MAX),
  fc.bigInt({ min: 0n, max: KEY_MAX }),
  fc.bigInt({ min: 0n, max: 40n }),
);
const batch = fc.record({
  shardNum: fc.oneof(fc.integer({ min: 1, max: 9 }), fc.constantFrom(1_000, 65_536)),
  limits: fc.record({
    keys: fc.integer({ min: 1, max: 30 }),
    groups: fc.integer({ min: 1, max: 4 }),
    responseBytes: fc.integer({ min: 1, max: 2_000 }),
  }),
  groups: fc.array(fc.array(key, { maxLength: 40 }), { maxLength: 5 }),
});

const rowBytesOfGroup = fc.array(
  fc.integer({ min: 1, max: 300 }).map((words) => 4 * words),
  {
    minLength: 5,
    maxLength: 5,
  },
);

function asGroups(groups: readonly (readonly bigint[])[], dim: number): LookupGroup[] {
  return groups.map((keys, g) => createGroup(createOracleTable(`t${g}`, dim, []), keys));
}

test('every key is in exactly one request, of its shard, in the order of its group', () => {
  const scatter = new ShardedKeys(); // one for all runs: what an earlier batch left must not show
  fc.assert(
    fc.property(batch, rowBytesOfGroup, ({ shardNum, limits, groups }, rowBytes) => {
      const expected = new Map<number, { group: number; key: bigint; index: number }[]>();
      groups.forEach((keys, group) => {
        keys.forEach((one, index) => {
          const shard = Number(one % BigInt(shardNum));
          expected.set(shard, [...(expected.get(shard) ?? []), { group, key: one, index }]);
        });
      });
      scatter.assign(asGroups(groups, 1), shardNum);
      const found = new Map<number, { group: number; key: bigint; index: number }[]>();
      for (const request of scatter.createRequests(limits, rowBytes)) {
        const { start, end, parts } = request;
        assert.ok(end > start && end - start <= limits.keys && parts.length <= limits.groups);
        const bytes = parts.map(({ group, count }) =>
          fixedRowsResponseBytes(count, rowBytes[group]!),
        );
        const responseBytes = bytes.reduce((sum, one) => sum + one, 0);
        assert.ok(
          responseBytes <= limits.responseBytes || end - start === 1,
          'only a row may be over',
        );
        const words = new Uint32Array(scatter.keyBytes(request).slice().buffer);
        let i = 0;
        for (const part of request.parts) {
          for (let p = part.start; p < part.start + part.count; p++) {
            const one = {
              group: part.group,
              key: keyToBigint(words, i++),
              index: scatter.order[p]!,
            };
            found.set(request.shard, [...(found.get(request.shard) ?? []), one]);
          }
        }
        assert.equal(2 * i, words.length);
      }
      assert.deepEqual(found, new Map([...expected].sort(([a], [b]) => a - b)));
    }),
    { numRuns: 300 },
  );
});

test('rows of any dim are written to the positions of their keys', () => {
  const scatter = new ShardedKeys();
  fc.assert(
    fc.property(batch, fc.integer({ min: 1, max: 70 }), ({ shardNum, limits, groups }, dim) => {
      const keyGroups = asGroups(groups, dim);
      scatter.assign(keyGroups, shardNum);
      let unseen = 0;
      const rowBytes = groups.map(() => 4 * dim);
      scatter.createRequests(limits, rowBytes).forEach((request, number) => {
        for (const part of request.parts) {
          const target = keyGroups[part.group]!;
          if (number % 3 === 2) {
            fillRows(
              part,
              scatter.order,
              new Float32Array(dim).fill(-1),
              OUTCOME_UNAVAILABLE,
              target,
            );
            continue;
          }
          const found = new Uint8Array(Math.ceil(part.count / 64) * 8);
          const rows = new Float32Array(part.count * dim);
          for (let i = 0; i < part.count; i++) {
            const one = keyToBigint(target.keys, scatter.order[part.start + i]!);
            if (one % 2n === 0n) found[i >>> 3]! |= 1 << (i & 7);
            rows.fill(Number(one % 1_000n), i * dim, (i + 1) * dim);
          }
          writeRows(part, scatter.order, rows, dim, target.rows);
          unseen += writeOutcomes(part, scatter.order, found, target.outcomes);
        }
      });
      let unseenFound = 0;
      groups.forEach((keys, g) => {
        const { rows, outcomes } = keyGroups[g]!;
        keys.forEach((one, i) => {
          const row = rows.subarray(i * dim, (i + 1) * dim);
          if (outcomes[i] === OUTCOME_UNAVAILABLE) assert.ok(row.every((x) => x === -1));
          else {
            assert.equal(outcomes[i], one % 2n === 0n ? OUTCOME_HIT : OUTCOME_UNSEEN);
            assert.ok(row.every((x) => x === Number(one % 1_000n)));
            unseenFound += outcomes[i] === OUTCOME_UNSEEN ? 1 : 0;
          }
        });
      });
      assert.equal(unseen, unseenFound);
    }),
    { numRuns: 200 },
  );
});
