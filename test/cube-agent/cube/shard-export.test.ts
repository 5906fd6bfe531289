/** Chains of every kind of layer as dictionary directories: what a Map says is what our reader of Cube's files reads. */
import assert from 'node:assert/strict';
import { readdirSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { KeySet } from '../../../cube-agent/cube/key-set.ts';
import { exportedTable, exportShard } from '../../../cube-agent/cube/shard-export.ts';
import { keyToBigint } from '../../../lib/core/keys.ts';
import { decodeRows } from '../../../lib/core/row-codec.ts';
import { readCubeDict } from '../../../lib/store/cube-dict.ts';
import { CubeDictWriter } from '../../../lib/store/cube-dict-writer.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { anyChain, mapOf, writeChain } from '../../store/chains.ts';
import { layerPathIn } from '../../store/layers.ts';

const VALUE_BYTES_MAX = 1024;

function entriesOf(folder: string): Map<bigint, string> {
  const { keys, values, ends } = readCubeDict(folder);
  const value = (i: number): string =>
    Buffer.from(values.slice(ends[i - 1] ?? 0, ends[i])).toString('hex');
  return new Map(Array.from(ends, (_, i) => [keyToBigint(keys, i), value(i)]));
}

test('base and deltas of every kind are merged as lookups see them, and the sample is true', (t) => {
  const root = temporaryFolder(t);
  let runs = 0;
  fc.assert(
    fc.property(anyChain(3), (chain) => {
      const folder = join(root, String(runs++));
      const { dtype, dim, shardIndex } = chain.table;
      const [table] = writeChain(folder, chain).tables;
      assert.ok(table);
      const paths = table.shards[shardIndex]!.map(({ contentId }) =>
        layerPathIn(folder)('t', contentId),
      );
      const cubeValue = (stored: Uint8Array): Uint8Array =>
        dtype === 'bytes' ? stored : new Uint8Array(decodeRows(dtype, stored, dim, 1).buffer);
      const expected = new Map([...mapOf(chain)].map(([key, stored]) => [key, cubeValue(stored)]));
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
      assert.deepEqual(entriesOf(join(folder, 'dict')), new Map(hex));
      const keys = sample.keys();
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
  const entries = entriesOf(folder);
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
  assert.equal(exportedTable(manifest(of('t', 256)), undefined).name, 't');
  assert.throws(() => exportedTable(manifest(of('t', 257)), undefined), { code: 'TOO_LARGE' });
  const two = manifest(of('a', 1), of('b', 1));
  assert.equal(exportedTable(two, 'b').name, 'b');
  assert.throws(() => exportedTable(two, undefined), /has the tables a, b: name the one/);
  assert.throws(() => exportedTable(two, 'c'), /has the tables a, b/);
});
