/**
 * Chains of every kind of layer as dictionary directories: what a Map says is what our reader of
 * Cube's files reads.
 */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { KeySet } from '../../../cube-agent/cube/key-set.ts';
import { exportShard, selectExportedTable } from '../../../cube-agent/cube/shard-export.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import { decodeRows } from '../../../lib/core/row-codec.ts';
import { readCubeDict } from '../../../lib/store/cube-dict.ts';
import { CubeDictWriter } from '../../../lib/store/cube-dict-writer.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { arbitraryChain, toExpectedRows, writeChain } from '../../store/support/arbitrary-chain.ts';
import { createLayerPath } from '../../store/support/layers.ts';

const VALUE_BYTES_MAX = 1024;

function readEntries(folder: string): Map<bigint, string> {
  const { keys, values, ends } = readCubeDict(folder);
  const value = (i: number): string =>
    Buffer.from(values.slice(ends[i - 1] ?? 0, ends[i])).toString('hex');
  return new Map(Array.from(ends, (_, i) => [keyToBigint(keys, i), value(i)]));
}

test('base and deltas of every kind are merged, and the sample has correct values', (t) => {
  const root = temporaryFolder(t);
  let runs = 0;
  fc.assert(
    fc.property(arbitraryChain(3), (chain) => {
      const folder = join(root, String(runs++));
      const { dtype, dim, shardIndex } = chain.table;
      const [table] = writeChain(folder, chain).tables;
      assert.ok(table);
      const paths = table.shards[shardIndex]!.map(({ contentId }) =>
        createLayerPath(folder)('t', contentId),
      );
      const cubeValue = (stored: Uint8Array): Uint8Array =>
        dtype === 'bytes' ? stored : new Uint8Array(decodeRows(dtype, stored, dim, 1).buffer);
      const expected = new Map(
        [...toExpectedRows(chain)].map(([key, stored]) => [key, cubeValue(stored)]),
      );
      const written = (): ReturnType<typeof exportShard> =>
        exportShard(table, shardIndex, paths, join(folder, 'dict'), 8);
      const isLong = [...expected.values()].some(({ length }) => length > VALUE_BYTES_MAX);
      if (expected.size === 0 || isLong) {
        assert.throws(written, { code: isLong ? 'TOO_LARGE' : 'UNSUPPORTED' });
        return;
      }
      const sample = written();
      const hex = [...expected].map(
        ([key, value]) => [key, Buffer.from(value).toString('hex')] as const,
      );
      assert.deepEqual(readEntries(join(folder, 'dict')), new Map(hex));
      const keys = sample.toKeys();
      assert.ok(sample.expectations.length > 0);
      for (const [i, { value }] of sample.expectations.entries()) {
        const is = expected.get(keyToBigint(keys, i));
        assert.deepEqual(value && Buffer.from(value), is && Buffer.from(is));
      }
    }),
    { numRuns: 30 },
  );
});

test('a record that does not fit into a data file begins the next one', (t) => {
  const folder = join(temporaryFolder(t), 'dict');
  const writer = new CubeDictWriter(folder, 64);
  for (let key = 0; key < 10; key++) writer.add(key, 7, new Uint8Array(key * 3).fill(key));
  writer.finish();
  const entries = readEntries(folder);
  assert.equal(entries.size, 10);
  assert.equal(entries.get((7n << 32n) + 9n), '09'.repeat(27));
  assert.ok(readdirSync(folder).includes('data.3'));
});

test('a set of keys holds what was added, high words included', () => {
  fc.assert(
    fc.property(fc.array(fc.tuple(fc.nat(40), fc.nat(40)), { maxLength: 3000 }), (keys) => {
      const set = new KeySet();
      const naive = new Set<string>();
      for (const [low, high] of keys) {
        assert.equal(set.add(low, high), !naive.has(`${low} ${high}`));
        naive.add(`${low} ${high}`);
      }
      assert.equal(set.size, naive.size);
      for (let low = 0; low < 42; low++) assert.equal(set.has(low, 3), naive.has(`${low} 3`));
    }),
  );
  const large = new KeySet();
  for (let i = 0; i < 5000; i++) assert.ok(large.add(i * 1024, i));
  assert.ok(!large.add(1024, 1));
  assert.ok(!large.has(1024, 2));
});

test('tables that a C++ server could not serve are refused', () => {
  const layer = { contentId: 'a'.repeat(32), kind: 'base', bytes: 1, sha256: '', rows: 1 } as const;
  const of = (name: string, dim: number) =>
    ({ name, dim, dtype: 'f32', rows: 1, defaultRow: [], shardNum: 1, shards: [[layer]] }) as const;
  const manifest = (...tables: ReturnType<typeof of>[]) =>
    ({
      bundle: 'b',
      version: '1',
      files: [],
      slots: [],
      tables,
      hash: { scheme: 'raw', seed: 0n, modulo: 0n },
    }) as const;
  assert.equal(selectExportedTable(manifest(of('t', 256)), undefined).name, 't');
  assert.throws(() => selectExportedTable(manifest(of('t', 257)), undefined), {
    code: 'TOO_LARGE',
  });
  const two = manifest(of('a', 1), of('b', 1));
  assert.equal(selectExportedTable(two, 'b').name, 'b');
  assert.throws(() => selectExportedTable(two, undefined), /has tables a, b; choose the one/);
  assert.throws(() => selectExportedTable(two, 'c'), /has tables a, b/);
});
