import assert from 'node:assert/strict';
import { existsSync, readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { encodeHeader } from '../../lib/core/layer-header.ts';
import type { LayerInput } from '../../lib/core/layer-input.ts';
import { verifyLayerFile } from '../../lib/store/layer-check.ts';
import { type WrittenLayer, writeLayer } from '../../lib/store/layer-file.ts';
import {
  type AnyLayer,
  arbitraryLayer,
  arbitraryTable,
  createLayerInput,
  formatExpectedRows,
  readAllRows,
  readDeleted,
} from './support/arbitrary-layer.ts';
import { packKeys, temporaryFolder } from './support/layers.ts';

const PARENT = 'ab'.repeat(16);

function writeTo(folder: string, input: LayerInput, segmentBytesMax?: number): WrittenLayer {
  return writeLayer(input, (contentId) => join(folder, `${contentId}.cube`), segmentBytesMax);
}

const scenario = arbitraryTable.chain((table) =>
  fc.boolean().chain((isDelta) =>
    fc.record({
      table: fc.constant(table),
      isDelta: fc.constant(isDelta),
      layer: arbitraryLayer(table, isDelta),
    }),
  ),
);

function reversed(layer: AnyLayer): AnyLayer {
  return { ...layer, keys: [...layer.keys].reverse(), deleted: [...layer.deleted].reverse() };
}

test('a layer is independent of input order, passes the deep check and reads back', (context) => {
  const folder = temporaryFolder(context);
  fc.assert(
    fc.property(scenario, ({ table, isDelta, layer }) => {
      const parent = isDelta ? PARENT : '';
      const { segmentBytesMax } = layer;
      const written = writeTo(folder, createLayerInput(table, layer, parent), segmentBytesMax);
      const again = writeTo(
        folder,
        createLayerInput(table, reversed(layer), parent),
        segmentBytesMax,
      );
      assert.deepEqual(again, written);
      const { header, rows, deleted } = verifyLayerFile(written.path, { deep: true });
      assert.deepEqual([rows, deleted], [layer.keys.length, layer.deleted.length]);
      assert.deepEqual(
        [header.kind, header.parentContentId, header.dtype, header.dim],
        [isDelta ? 'delta' : 'base', parent, table.dtype, table.dim],
      );
      const page = readFileSync(written.path).subarray(0, 4096);
      assert.deepEqual(encodeHeader(header), new Uint8Array(page));
      assert.deepEqual(readAllRows(written.path), formatExpectedRows(table, layer));
      assert.deepEqual(readDeleted(written.path), new Set(layer.deleted));
    }),
    { numRuns: 250 },
  );
});

test('the content decides the layout: dense, inline or indexed', (context) => {
  const folder = temporaryFolder(context);
  const common = { table: 't', shardIndex: 0, shardNum: 1, keys: packKeys([1n, 2n, 3n]) };
  const rows = { ...common, dtype: 'f32' as const, dim: 2, rows: new Uint8Array(3 * 8) };
  const values = { values: new Uint8Array(24), ends: Uint32Array.of(8, 16, 24) };
  const keys = packKeys([1n, 2n, 4n]);
  const readLayout = (input: LayerInput): string => writeTo(folder, input).layout;
  assert.equal(readLayout(rows), 'dense');
  assert.equal(readLayout({ ...rows, keys }), 'inline');
  const wide = (dim: number): LayerInput => ({
    ...rows,
    keys,
    dim,
    rows: new Uint8Array(12 * dim),
  });
  assert.equal(readLayout(wide(32)), 'inline', 'rows of 128 bytes');
  assert.equal(readLayout(wide(33)), 'indexed', 'rows of 132 bytes');
  assert.equal(readLayout({ ...rows, layout: 'indexed' }), 'indexed');
  assert.equal(
    readLayout({ ...rows, parentContentId: PARENT }),
    'inline',
    'a delta is never dense',
  );
  assert.equal(readLayout({ ...common, dtype: 'bytes', ...values }), 'indexed');
});

test('what cannot be a layer is refused by name, and nothing is left', (context) => {
  const folder = join(temporaryFolder(context), 'absent');
  const common = { table: 't', shardIndex: 1, shardNum: 2, keys: packKeys([5n, 9n]) };
  const base = { ...common, dtype: 'f16' as const, dim: 2, rows: new Uint8Array(8) };
  const values = { ...common, dtype: 'bytes' as const, values: new Uint8Array(3) };
  const cases: [LayerInput, RegExp][] = [
    [{ ...base, keys: packKeys([5n, 5n]) }, /key 5 comes twice/],
    [{ ...base, deleted: packKeys([7n]) }, /a base has no deleted keys/],
    [{ ...base, parentContentId: 'x' }, /"x" is not a contentId/],
    [{ ...base, parentContentId: '0'.repeat(32) }, /is not a contentId/],
    [{ ...base, parentContentId: PARENT, deleted: packKeys([7n, 7n]) }, /key 7 is deleted twice/],
    [
      { ...base, parentContentId: PARENT, deleted: packKeys([9n]) },
      /key 9 is deleted and also has a row/,
    ],
    [{ ...base, parentContentId: PARENT, deleted: packKeys([8n]) }, /key 8 does not belong/],
    [{ ...base, rows: new Uint8Array(16) }, /16 bytes are not keys with rows of 2/],
    [{ ...values, ends: Uint32Array.of(3) }, /1 ends of values/],
    [{ ...values, ends: Uint32Array.of(2, 1) }, /key 9 has -1 bytes/],
    [{ ...values, ends: Uint32Array.of(1, 2) }, /3 bytes of values, of which 2 are used/],
    [{ ...values, ends: Uint32Array.of(0, 2 ** 26) }, /key 9 has 67108864 bytes/],
  ];
  for (const [input, message] of cases) {
    assert.throws(() => writeTo(folder, input), { code: 'INVALID_ARGUMENT', message });
  }
  assert.ok(!existsSync(folder));
});

test('a row of 40 bytes takes at most 62 in a file, a row of ten i8 elements 30', (context) => {
  const folder = temporaryFolder(context);
  const count = 200_000;
  const keys = new Uint32Array(2 * count).map((_, i) => Math.imul(i + 1, 0x9e37_79b1) >>> 0);
  const common = { table: 't', dim: 10, shardIndex: 0, shardNum: 1, keys };
  const perRow = (dtype: 'f32' | 'i8', rowBytes: number): number => {
    const input = { ...common, dtype, rows: new Uint8Array(count * rowBytes) };
    return writeTo(folder, input).bytes / count;
  };
  assert.ok(perRow('f32', 40) <= 62);
  // 24-byte slots at a load of 0.8 take 30 bytes; the rest is the header page and checksums.
  assert.ok(perRow('i8', 16) <= 30.1);
});
