/** Builds a shard from records; its layer must have the expected bytes for any memory budget. */
import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import fc from 'fast-check';
import type { LayerInput } from '../../../lib/core/layer-input.ts';
import { encodeRows, type RowDtype } from '../../../lib/core/row-codec.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';
import type { SelectionMode } from '../../../tools/cube-builder/record-selection.ts';
import { RecordStore } from '../../../tools/cube-builder/record-store.ts';
import { OLD_INPUT_FLAG, type RecordRun } from '../../../tools/cube-builder/records.ts';
import {
  type BuiltShard,
  buildShard,
  type ShardTask,
} from '../../../tools/cube-builder/shard-build.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { packKeys } from '../../store/support/layers.ts';

/** An upsert or deletion of a key. */
interface KeyEdit {
  readonly key: bigint;
  readonly isOld: boolean;
  /** Undefined for a deletion. */
  readonly value: number | undefined;
}

interface Scenario {
  readonly edits: readonly KeyEdit[];
  readonly shardNum: number;
  readonly dtype: RowDtype | 'bytes';
  readonly dim: number;
  readonly mode: SelectionMode;
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

const SCENARIOS: fc.Arbitrary<Scenario> = fc.record({
  edits: fc.array(
    fc.record({
      key: KEYS,
      isOld: fc.boolean(),
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

function createRow({ key, value = 0 }: KeyEdit, dim: number): Float32Array {
  return Float32Array.from({ length: dim }, (_, i) => Number(key % 1009n) + value / 8 + i);
}

function createValue({ key, value = 0 }: KeyEdit): Uint8Array {
  return Uint8Array.from({ length: Number(key % 37n) + value }, (_, i) => i + value);
}

/** Stores the records of all shards in the order of the edits. */
function storeRecords(scene: Scenario, folder: string): RecordRun[][] {
  const { shardNum, rangeBits, storeBytes, dtype, dim } = scene;
  const shards = Array.from({ length: shardNum }, (_, i) => i);
  const records = new RecordStore({ shardNum, shards, rangeBits, budgetBytes: storeBytes, folder });
  for (const edit of scene.edits) {
    const keys = packKeys([edit.key]);
    const flags = edit.isOld && scene.mode === 'diff' ? OLD_INPUT_FLAG : 0;
    if (edit.value === undefined) records.addDeleted(keys, flags);
    else if (dtype === 'bytes') {
      const value = createValue(edit);
      records.addValues(keys, value, Uint32Array.of(value.length), flags);
    } else records.addRows(keys, new Uint32Array(createRow(edit, dim).buffer), dim, flags);
  }
  return records.finish(records.hasSpilled ? 'in files' : 'in memory');
}

/** The expected content, computed with maps. */
function selectExpected({ edits, mode, dtype, dim }: Scenario): {
  rows: KeyEdit[];
  deleted: bigint[];
} {
  const inputs = [new Map<bigint, KeyEdit>(), new Map<bigint, KeyEdit>()];
  for (const edit of edits) inputs[mode === 'diff' && edit.isOld ? 0 : 1]?.set(edit.key, edit);
  const [before, after] = inputs as [Map<bigint, KeyEdit>, Map<bigint, KeyEdit>];
  const content = (edit: KeyEdit | undefined): string | undefined => {
    if (edit?.value === undefined) return undefined;
    return String(dtype === 'bytes' ? createValue(edit) : createRow(edit, dim));
  };
  const rows: KeyEdit[] = [];
  const deleted: bigint[] = [];
  for (const key of new Set(edits.map((edit) => edit.key))) {
    const [one, other] = [content(before.get(key)), content(after.get(key))];
    if (mode === 'diff' && one === other) continue;
    if (other !== undefined) rows.push(after.get(key) as KeyEdit);
    else if (mode === 'delta' || (mode === 'diff' && one !== undefined)) deleted.push(key);
  }
  return { rows, deleted };
}

function expectedLayer(scene: Scenario, shardIndex: number): LayerInput {
  const { dtype, dim, mode, shardNum, indexed } = scene;
  const isInShard = (key: bigint): boolean => key % BigInt(shardNum) === BigInt(shardIndex);
  const all = selectExpected(scene);
  const rows = all.rows.filter(({ key }) => isInShard(key));
  const keys = packKeys(rows.map(({ key }) => key));
  const deleted = packKeys(all.deleted.filter(isInShard));
  const common = {
    table: 't',
    shardIndex,
    shardNum,
    keys,
    ...(mode === 'base' ? {} : { deleted, parentContentId: PARENT }),
    ...(indexed ? { layout: 'indexed' as const } : {}),
  };
  if (dtype === 'bytes') {
    const values = rows.map(createValue);
    const ends = new Uint32Array(values.length);
    let end = 0;
    values.forEach((value, i) => {
      end += value.length;
      ends[i] = end;
    });
    return { ...common, dtype, values: new Uint8Array(Buffer.concat(values)), ends };
  }
  const floats = new Float32Array(rows.length * dim);
  rows.forEach((edit, i) => {
    floats.set(createRow(edit, dim), i * dim);
  });
  return { ...common, dtype, dim, rows: encodeRows(dtype, floats, dim).rows };
}

function build(t: TestContext, scene: Scenario, budgetBytes: number): BuiltShard[] {
  const folder = temporaryFolder(t);
  return storeRecords(scene, join(folder, 'records')).map((ranges, shardIndex) => {
    const { dtype, dim, shardNum, mode, indexed, rangeBits, segmentBytesMax } = scene;
    const parentContentId = mode === 'base' ? '' : PARENT;
    const width = dtype === 'bytes' ? 0 : dim;
    const task: ShardTask = {
      identity: { table: 't', dtype, dim: width, shardIndex, shardNum, parentContentId },
      mode,
      rejectDuplicates: false,
      search: 'range',
      rowEncoding: 'f32',
      ranges,
      rangeBits,
      layout: indexed ? 'indexed' : undefined,
      layersFolder: join(folder, 'layers'),
      workFolder: join(folder, 'work', String(shardIndex)),
      budgetBytes,
      segmentBytesMax,
    };
    return buildShard(task);
  });
}

function checkScenario(t: TestContext, scene: Scenario): void {
  const folder = temporaryFolder(t);
  for (const budgetBytes of [1, 20_000, 1 << 28]) {
    build(t, scene, budgetBytes).forEach(({ layer }, shardIndex) => {
      const input = expectedLayer(scene, shardIndex);
      const isEmpty = input.keys.length + (input.deleted?.length ?? 0) === 0;
      if (scene.mode !== 'base' && isEmpty) {
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

test('a shard has the same bytes with any memory budget', (t) => {
  fc.assert(
    fc.property(SCENARIOS, (scene) => checkScenario(t, scene)),
    { numRuns: 60 },
  );
});

test('the last of thousands of rows with the same key wins with any memory budget', (t) => {
  const edits = Array.from({ length: 20_000 }, (_, i) => ({ key: 7n, isOld: false, value: i % 6 }));
  const others = Array.from({ length: 500 }, (_, i) => ({
    key: BigInt(i),
    isOld: false,
    value: 1,
  }));
  checkScenario(t, {
    edits: [...others, ...edits],
    shardNum: 1,
    dtype: 'f32',
    dim: 3,
    mode: 'base',
    indexed: false,
    segmentBytesMax: 2 ** 31,
    rangeBits: 0,
    storeBytes: 1,
  });
});
