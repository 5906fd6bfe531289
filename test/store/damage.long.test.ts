import assert from 'node:assert/strict';
import { randomUUID } from 'node:crypto';
import { readFileSync, rmSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { CubeError } from '../../lib/core/errors.ts';
import { xxh64 } from '../../lib/core/hash.ts';
import { HEADER_BYTES } from '../../lib/core/layer-format.ts';
import { decodeHeader } from '../../lib/core/layer-header.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { verifyLayerFile } from '../../lib/store/layer-check.ts';
import { readLayerRows } from '../../lib/store/layer-file.ts';
import { ResidentStore } from '../../lib/store/resident-store.ts';
import {
  createLayerPath,
  createManifest,
  expectedLookup,
  getLoadedTable,
  type LookupResult,
  lookup,
  type TestTable,
  tableRef,
  temporaryFolder,
  writeTable,
} from './support/layers.ts';

const TABLES: readonly TestTable[] = [
  { name: 'inline', dim: 3, shardIndex: 0, shardNum: 1, keys: [0n, 1n, 5n, 77n, 2n ** 64n - 1n] },
  { name: 'dense', dim: 3, shardIndex: 0, shardNum: 1, keys: [4n, 6n, 8n, 10n] },
];
const DEFAULT_ROW = [0, 0, 0];

/** A store, and the manifest and bytes of a valid layer. */
interface Bench {
  readonly store: ResidentStore;
  readonly folder: string;
  readonly table: TestTable;
  readonly manifest: Manifest;
  readonly bytes: Uint8Array;
}

function setUp(context: TestContext, table: TestTable): Bench {
  const folder = temporaryFolder(context);
  const written = writeTable(folder, table);
  const store = new ResidentStore({ budgetBytes: 1 << 20 });
  context.after(() => store.close());
  const manifest = createManifest('damaged', [tableRef(table, written)]);
  return { store, folder, table, manifest, bytes: new Uint8Array(readFileSync(written.path)) };
}

/** Loads damaged bytes of a layer: undefined when refused with a meaningful code, else its rows. */
async function loadDamaged(
  { store, folder, table, manifest }: Bench,
  damaged: Uint8Array,
): Promise<LookupResult | undefined> {
  // A fresh file each time: rewriting one would wait for the disk.
  const path = join(folder, `${randomUUID()}.cube`);
  writeFileSync(path, damaged);
  try {
    await store.load({ manifest, shardIndex: 0, layerPath: () => path });
  } catch (error) {
    assert.ok(error instanceof CubeError, String(error));
    assert.ok(error.code === 'CORRUPT' || error.code === 'UNSUPPORTED', error.message);
    assert.equal(store.version('test', 'damaged'), undefined);
    return undefined;
  } finally {
    rmSync(path);
  }
  const answer = lookup(getLoadedTable(store, 'damaged', table.name), [...table.keys, 500n]);
  store.unload('test', 'damaged');
  return answer;
}

for (const table of TABLES) {
  test(`${table.name}: no flipped byte and no truncation gives a wrong row`, async (context) => {
    const bench = setUp(context, table);
    const { bytes, store } = bench;
    const right = expectedLookup(table, DEFAULT_ROW, [...table.keys, 500n]);
    assert.deepEqual(await loadDamaged(bench, bytes), right);
    let loaded = 0;
    // The padding of the header page is uniform: testing a part of it is enough.
    for (let at = 0; at < bytes.length; at += at >= 600 && at < 4000 ? 61 : 1) {
      const flipped = bytes.slice();
      flipped[at]! ^= 1 << (at % 8);
      const answer = await loadDamaged(bench, flipped);
      if (answer !== undefined) assert.deepEqual(answer, right, `byte ${at} flipped`);
      loaded += answer === undefined ? 0 : 1;
    }
    assert.equal(loaded, 0, 'every byte is covered by a checksum');
    for (let length = 0; length < bytes.length; length += length < 64 ? 1 : 61) {
      const answer = await loadDamaged(bench, bytes.slice(0, length));
      assert.equal(answer, undefined, `truncated to ${length} bytes`);
    }
    const longer = new Uint8Array(bytes.length + 1);
    longer.set(bytes);
    assert.equal(await loadDamaged(bench, longer), undefined);
    assert.deepEqual(store.getMemoryUsage().usedBytes, 0);
    assert.deepEqual(await loadDamaged(bench, bytes), right, 'the worker goes on');
  });
}

/** Changes a header field and corrects the header checksum. */
function withField(bytes: Uint8Array, at: number, value: bigint, size: 4 | 8): Uint8Array {
  const hostile = bytes.slice();
  const view = new DataView(hostile.buffer);
  if (size === 8) view.setBigUint64(at, value, true);
  else view.setUint32(at, Number(value), true);
  view.setBigUint64(16, 0n, true);
  view.setBigUint64(16, xxh64(hostile.subarray(0, HEADER_BYTES)), true);
  return hostile;
}

const HOSTILE = [0n, 1n, 2n, 7n, 2n ** 31n, 2n ** 32n - 1n, 2n ** 53n, 2n ** 63n, 2n ** 64n - 1n];
const U32_FIELDS = [8, 12, 56, 60, 64, 68, 72, 76, 80, 84, 144, 148, 152, 156, 256];
const U64_FIELDS = [
  88, 96, 104, 112, 120, 128, 136, 160, 168, 176, 184, 192, 200, 512, 520, 528, 536,
];

for (const table of TABLES) {
  test(`${table.name}: a hostile header with a valid checksum is harmless`, async (context) => {
    const bench = setUp(context, table);
    const rightRows = table.keys.length;
    for (const [fields, size] of [[U32_FIELDS, 4] as const, [U64_FIELDS, 8] as const]) {
      for (const at of fields) {
        for (const value of HOSTILE) {
          if (size === 4 && value > 0xffff_ffffn) continue;
          const answer = await loadDamaged(bench, withField(bench.bytes, at, value, size));
          if (answer !== undefined) assert.ok(answer.hits <= rightRows, `field ${at} = ${value}`);
        }
      }
    }
  });
}

test('a segment without an empty last slot is refused', async (context) => {
  const { store, folder, manifest, bytes } = setUp(context, TABLES[0]!);
  // Another emptyKey makes every slot look taken.
  const hostile = withField(bytes, 104, 12_345n, 8);
  assert.equal(decodeHeader(hostile.subarray(0, HEADER_BYTES), 'hostile').emptyKey, 12_345n);
  const path = join(folder, 'hostile.cube');
  writeFileSync(path, hostile);
  await assert.rejects(store.load({ manifest, shardIndex: 0, layerPath: () => path }), {
    code: 'CORRUPT',
    message: /last slot is not empty/,
  });
  assert.equal(store.getMemoryUsage().usedBytes, 0);
});

test('formats of the future are refused by name', (context) => {
  const { bytes } = setUp(context, TABLES[0]!);
  const decode = (at: number, value: bigint) => (): unknown =>
    decodeHeader(withField(bytes, at, value, 4).subarray(0, HEADER_BYTES), 'x.cube');
  const future = (message: RegExp): object => ({ code: 'UNSUPPORTED', message });
  assert.throws(decode(8, 2n), future(/x\.cube: format version 2/));
  assert.throws(decode(144, 2n), future(/hash mix 2/));
});

test('reading rows and the deep check find damage too', (context) => {
  const folder = temporaryFolder(context);
  const table = TABLES[0]!;
  const { path } = writeTable(folder, table);
  const bytes = readFileSync(path);
  bytes[HEADER_BYTES + 9]! ^= 4;
  writeFileSync(path, bytes);
  assert.throws(() => [...readLayerRows(path)], { code: 'CORRUPT', message: /checksum/ });
  assert.throws(() => verifyLayerFile(path, { deep: false }), { code: 'CORRUPT' });
  writeFileSync(path, bytes.subarray(0, 5000));
  assert.throws(() => [...readLayerRows(path)], { code: 'CORRUPT', message: /5000 bytes/ });
  const absent = createLayerPath(folder)('inline', 'absent');
  assert.throws(() => [...readLayerRows(absent)], { code: 'NOT_FOUND' });
});
