/** One shard from records to its layer: whatever the memory, the bytes are those of the rows that are meant. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import type { LayerInput } from '../../../lib/core/layer-input.ts';
import { encodeRows, type RowDtype } from '../../../lib/core/row-codec.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';
import { RecordStore } from '../../../tools/cube-builder/record-store.ts';
import { OLD_SIDE, type RecordRun } from '../../../tools/cube-builder/records.ts';
import type { ResolveMode } from '../../../tools/cube-builder/resolve.ts';
import {
  type BuiltShard,
  buildShard,
  type ShardTask,
} from '../../../tools/cube-builder/shard-build.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { packKeys } from '../../store/layers.ts';

/** What happens to one key, in input order. */
interface Deed {
  readonly key: bigint;
  readonly old: boolean;
  /** Undefined: it is deleted. */
  readonly value: number | undefined;
}

interface Scene {
  readonly deeds: readonly Deed[];
  readonly shardNum: number;
  readonly dtype: RowDtype | 'bytes';
  readonly dim: number;
  readonly mode: ResolveMode;
  readonly indexed: boolean;
  readonly segmentBytesMax: number;
  readonly rangeBits: number;
  readonly storeBytes: number;
}

const KEYS = fc.oneof(
  fc.bigInt({ min: 0n, max: 40n }),
  fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
  fc.bigInt({ min: 2n ** 64n - 40n, max: 2n ** 64n - 1n }),
);

const SCENES: fc.Arbitrary<Scene> = fc.record({
  deeds: fc.array(
    fc.record({
      key: KEYS,
      old: fc.boolean(),
      value: fc.option(fc.integer({ min: 0, max: 5 }), { nil: undefined, freq: 4 }),
    }),
    { maxLength: 300 },
  ),
  shardNum: fc.integer({ min: 1, max: 3 }),
  dtype: fc.constantFrom('f32', 'f16', 'bf16', 'i8', 'bytes'),
  dim: fc.constantFrom(1, 3, 10, 40),
  mode: fc.constantFrom('base', 'delta', 'diff'),
  indexed: fc.boolean(),
  segmentBytesMax: fc.constantFrom(1024, 8192, 2 ** 31),
  rangeBits: fc.integer({ min: 0, max: 3 }),
  storeBytes: fc.constantFrom(1, 1 << 20),
});

const PARENT = '0123456789abcdef0123456789abcdef';

function rowOf({ key, value = 0 }: Deed, dim: number): Float32Array {
  return Float32Array.from({ length: dim }, (_, i) => Number(key % 1009n) + value / 8 + i);
}

function bytesOfDeed({ key, value = 0 }: Deed): Uint8Array {
  return Uint8Array.from({ length: Number(key % 37n) + value }, (_, i) => i + value);
}

/** All shards' records, as the deeds come. */
function store(scene: Scene, folder: string): RecordRun[][] {
  const { shardNum, rangeBits, storeBytes, dtype, dim } = scene;
  const shards = Array.from({ length: shardNum }, (_, i) => i);
  const records = new RecordStore({ shardNum, shards, rangeBits, budgetBytes: storeBytes, folder });
  for (const deed of scene.deeds) {
    const keys = packKeys([deed.key]);
    const flags = deed.old && scene.mode === 'diff' ? OLD_SIDE : 0;
    if (deed.value === undefined) records.addDeleted(keys, flags);
    else if (dtype === 'bytes') {
      const value = bytesOfDeed(deed);
      records.addValues(keys, value, Uint32Array.of(value.length), flags);
    } else records.addRows(keys, new Uint32Array(rowOf(deed, dim).buffer), dim, flags);
  }
  return records.finish(records.spilled ? 'in files' : 'in memory');
}

/** The oracle: a Map or two. */
function meant({ deeds, mode, dtype, dim }: Scene): { rows: Deed[]; deleted: bigint[] } {
  const sides = [new Map<bigint, Deed>(), new Map<bigint, Deed>()];
  for (const deed of deeds) sides[mode === 'diff' && deed.old ? 0 : 1]?.set(deed.key, deed);
  const [before, after] = sides as [Map<bigint, Deed>, Map<bigint, Deed>];
  const content = (deed: Deed | undefined): string | undefined => {
    if (deed?.value === undefined) return undefined;
    return String(dtype === 'bytes' ? bytesOfDeed(deed) : rowOf(deed, dim));
  };
  const rows: Deed[] = [];
  const deleted: bigint[] = [];
  for (const key of new Set(deeds.map((deed) => deed.key))) {
    const [one, other] = [content(before.get(key)), content(after.get(key))];
    if (mode === 'diff' && one === other) continue;
    if (other !== undefined) rows.push(after.get(key) as Deed);
    else if (mode === 'delta' || (mode === 'diff' && one !== undefined)) deleted.push(key);
  }
  return { rows, deleted };
}

function expectedLayer(scene: Scene, shardIndex: number): LayerInput {
  const { dtype, dim, mode, shardNum, indexed } = scene;
  const mine = (key: bigint): boolean => key % BigInt(shardNum) === BigInt(shardIndex);
  const all = meant(scene);
  const rows = all.rows.filter(({ key }) => mine(key));
  const keys = packKeys(rows.map(({ key }) => key));
  const deleted = packKeys(all.deleted.filter(mine));
  const common = {
    ...{ table: 't', shardIndex, shardNum, keys },
    ...(mode === 'base' ? {} : { deleted, parentContentId: PARENT }),
    ...(indexed ? { layout: 'indexed' as const } : {}),
  };
  if (dtype === 'bytes') {
    const values = rows.map(bytesOfDeed);
    const ends = new Uint32Array(values.length);
    let end = 0;
    values.forEach((value, i) => {
      end += value.length;
      ends[i] = end;
    });
    return { ...common, dtype, values: new Uint8Array(Buffer.concat(values)), ends };
  }
  const floats = new Float32Array(rows.length * dim);
  rows.forEach((deed, i) => {
    floats.set(rowOf(deed, dim), i * dim);
  });
  return { ...common, dtype, dim, rows: encodeRows(dtype, floats, dim).rows };
}

function build(t: TestContext, scene: Scene, budgetBytes: number): BuiltShard[] {
  const folder = temporaryFolder(t);
  return store(scene, join(folder, 'records')).map((ranges, shardIndex) => {
    const { dtype, dim, shardNum, mode, indexed, rangeBits, segmentBytesMax } = scene;
    const parentContentId = mode === 'base' ? '' : PARENT;
    const width = dtype === 'bytes' ? 0 : dim;
    const task: ShardTask = {
      subject: { table: 't', dtype, dim: width, shardIndex, shardNum, parentContentId },
      ...{ mode, distinct: false, search: 'range', rowsAre: 'f32', ranges, rangeBits },
      layout: indexed ? 'indexed' : undefined,
      layersFolder: join(folder, 'layers'),
      workFolder: join(folder, 'work', String(shardIndex)),
      ...{ budgetBytes, segmentBytesMax },
    };
    return buildShard(task);
  });
}

function checkScene(t: TestContext, scene: Scene): void {
  const folder = temporaryFolder(t);
  for (const budgetBytes of [1, 20_000, 1 << 28]) {
    build(t, scene, budgetBytes).forEach(({ layer }, shardIndex) => {
      const input = expectedLayer(scene, shardIndex);
      const nothing = input.keys.length + (input.deleted?.length ?? 0) === 0;
      if (scene.mode !== 'base' && nothing) {
        assert.equal(layer, undefined);
        return;
      }
      const target = (id: string): string => join(folder, `${shardIndex}-${id}.cube`);
      const expected = writeLayer(input, target, scene.segmentBytesMax);
      assert.ok(layer !== undefined);
      assert.deepEqual(readFileSync(layer.path), readFileSync(expected.path));
      assert.deepEqual({ ...layer, path: '' }, { ...expected, path: '' });
    });
  }
}

test('whatever fits in memory, the layer of a shard is byte for byte the one of its rows', (t) => {
  fc.assert(
    fc.property(SCENES, (scene) => checkScene(t, scene)),
    { numRuns: 60 },
  );
});

test('one key thousands of times: the last one is meant, in any memory', (t) => {
  const deeds = Array.from({ length: 20_000 }, (_, i) => ({ key: 7n, old: false, value: i % 6 }));
  const others = Array.from({ length: 500 }, (_, i) => ({ key: BigInt(i), old: false, value: 1 }));
  checkScene(t, {
    ...{ deeds: [...others, ...deeds], shardNum: 1, dtype: 'f32', dim: 3, mode: 'base' },
    ...{ indexed: false, segmentBytesMax: 2 ** 31, rangeBits: 0, storeBytes: 1 },
  });
});
