/** Inputs from versions (conversion, comparison, selection), signed keys, and the report. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { xxh64 } from '../../../lib/core/hash.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import type { BuildOptions } from '../../../tools/cube-builder/build-options.ts';
import type { BuildReport } from '../../../tools/cube-builder/report.ts';
import { temporaryFolder } from '../../repository/support/fixtures.ts';
import { buildInProcess, readTableRows } from './support/tables.ts';

class Workspace {
  readonly folder: string;
  readonly repository: string;

  constructor(t: TestContext) {
    this.folder = temporaryFolder(t);
    this.repository = join(this.folder, 'r');
  }

  writeText(name: string, text: string): string {
    const path = join(this.folder, name);
    writeFileSync(path, text);
    return path;
  }

  buildBase(version: string, options: BuildOptions): Promise<BuildReport> {
    return this.build(version, { shardNum: 2, ...options });
  }

  buildDelta(version: string, dependVersion: string, options: BuildOptions): Promise<BuildReport> {
    return this.build(version, { jobMode: 'delta', dependVersion, ...options });
  }

  build(curVersion: string, options: BuildOptions): Promise<BuildReport> {
    return buildInProcess({ outputPath: this.repository, bundle: 'b', curVersion, ...options });
  }

  readRows(version: string, table = 't'): Promise<Map<bigint, number[]>> {
    return readTableRows(this.repository, version, table);
  }
}

/** Values that are exact in every dtype. */
const ROWS = '1,0.5,0.25,1,2\n2,3,-4,5,6\n3,0,0,0,0\n';
/** Tables whose stored rows have the same size in several dtypes. */
const WIDTHS = { four: ROWS, one: '1,0.5\n2,3\n3,0\n' };

test('rows of a version keep their dtype or are converted to the requested one', async (t) => {
  const workspace = new Workspace(t);
  for (const [name, text] of Object.entries(WIDTHS)) {
    const input = workspace.writeText(`${name}.csv`, text);
    await workspace.buildBase(`${name}-f16`, { input: [input], table: 't', dtype: 'f16' });
    const expected = await workspace.readRows(`${name}-f16`);
    assert.equal(expected.size, 3);
    const stored = [`version:${name}-f16`];
    for (const dtype of [undefined, 'f32', 'bf16', 'i8', 'f16'] as const) {
      const version = `${name}-as-${dtype}`;
      await workspace.buildBase(version, { input: stored, ...(dtype && { dtype }) });
      const { tables } = await openRepository(workspace.repository).readManifest('b', version);
      assert.equal(tables[0]?.dtype, dtype ?? 'f16');
      const rows = await workspace.readRows(version);
      assert.deepEqual([...rows.keys()].sort(), [...expected.keys()].sort());
      for (const [key, row] of expected) {
        row.forEach((value, i) => {
          const off = Math.abs((rows.get(key)?.[i] ?? Number.NaN) - value);
          assert.ok(off <= (dtype === 'i8' ? 0.03 : 0), `${version}, key ${key}: ${rows.get(key)}`);
        });
      }
    }
  }
});

for (const dtype of ['f32', 'f16', 'i8'] as const) {
  test(`a diff of a version (${dtype}) and a file compares stored rows`, async (t) => {
    const workspace = new Workspace(t);
    const before = workspace.writeText('before.csv', '1,0.1,0.2\n2,0.3,0.4\n3,0.5,0.6\n');
    const after = workspace.writeText('after.csv', '1,0.1,0.2\n2,0.3,0.5\n4,0.7,0.8\n');
    await workspace.buildBase('1', { input: [before], table: 't', dtype });
    await workspace.buildBase('fresh', { input: [after], table: 't', dtype });
    const there = await workspace.buildDelta('2', '1', { diff: ['version:1', after], table: 't' });
    const [changes] = there.perTable;
    assert.deepEqual([changes?.rows, changes?.deleted, changes?.dropped], [2, 1, 1]);
    assert.deepEqual(
      new Map([...(await workspace.readRows('2'))].sort()),
      new Map([...(await workspace.readRows('fresh'))].sort()),
    );
    const back = await workspace.buildDelta('3', '2', { diff: [after, 'version:1'], table: 't' });
    assert.deepEqual([back.perTable[0]?.rows, back.perTable[0]?.deleted], [2, 1]);
    const same = await workspace.buildDelta('4', '1', { diff: ['version:1', before], table: 't' });
    const [equal] = same.perTable;
    assert.deepEqual([equal?.rows, equal?.deleted, equal?.dropped], [0, 0, 3]);
  });
}

test('tables of a version are selected by name and compared by name', async (t) => {
  const workspace = new Workspace(t);
  const [one, two] = [join(workspace.folder, 'a.csv'), join(workspace.folder, 'u.csv')];
  workspace.writeText('a.csv', ROWS);
  workspace.writeText('u.csv', '7,1,1,1,1\n');
  await workspace.buildBase('1', { input: [one] });
  await workspace.buildBase('2', { input: [one, two] });
  await workspace.buildBase('u', { input: ['version:2'], table: 'u' });
  assert.equal((await workspace.readRows('u', 'a')).size, 0);
  assert.deepEqual([...(await workspace.readRows('u', 'u'))], [[7n, [1, 1, 1, 1]]]);
  await assert.rejects(workspace.buildBase('x', { input: ['version:2'], table: 'v' }), {
    message: /version 2 of b has no table v \(it has: a, u\)/,
  });
  await assert.rejects(workspace.buildDelta('x', '2', { diff: ['version:1', 'version:2'] }), {
    message: /table u is in the new input only/,
  });
  await assert.rejects(workspace.buildDelta('x', '2', { diff: ['version:2', 'version:1'] }), {
    message: /table u is in the old input only/,
  });
  await workspace.buildDelta('3', '2', { diff: ['version:2', 'version:1'], table: 'a' });
  const deletes = workspace.writeText('deleted.txt', '1\n');
  await assert.rejects(workspace.buildDelta('x', '2', { input: [one, two], deletes: [deletes] }), {
    message: /deleted\.txt applies to one table, but the input has several \(a, u\)/,
  });
});

test('with --sign-key, deletes are features and the parent must use the same hash', async (t) => {
  const workspace = new Workspace(t);
  const input = workspace.writeText('t.csv', 'abc,0.5\n123,3\nxyz,4\n');
  const more = workspace.writeText('more.csv', 'new,1\n');
  const deletes = workspace.writeText('deleted.txt', '123\nabc\n');
  const signed = { table: 't', signKey: 14 };
  await workspace.buildBase('1', { input: [input], ...signed });
  await workspace.buildDelta('2', '1', { input: [more], deletes: [deletes], ...signed });
  const hashFeature = (feature: string): bigint => xxh64(Buffer.from(`14${feature}`));
  assert.deepEqual(
    new Map([...(await workspace.readRows('2'))].sort()),
    new Map(
      [
        [hashFeature('xyz'), [4]],
        [hashFeature('new'), [1]],
      ].sort() as [bigint, number[]][],
    ),
  );
  await workspace.buildBase('raw', {
    input: [workspace.writeText('raw.csv', '1,0.5\n')],
    table: 't',
  });
  await assert.rejects(workspace.buildDelta('x', 'raw', { input: [more], ...signed }), {
    message: /--sign-key hashes features differently from parent version raw \(raw\)/,
  });
  await workspace.buildDelta('3', '1', { input: [more], table: 'u', signKey: 15 });
  const { slots } = await openRepository(workspace.repository).readManifest('b', '3');
  assert.deepEqual(
    slots.map(({ index }) => index),
    [14, 15],
  );
});

test('text keys have the same hashes in every format', async (t) => {
  const workspace = new Workspace(t);
  const features = ['abc', '123', 'é "q", x', ' '];
  const rows = features.map((_, i) => [i, i / 2]);
  const column = { name: 'key', data: features, type: 'STRING' as const };
  const columns = [0, 1].map((j) => ({ name: `c${j}`, data: rows.map((row) => row[j] as number) }));
  const parquet = parquetWriteBuffer({
    columnData: [column, ...columns.map((c) => ({ ...c, type: 'FLOAT' as const }))],
  });
  const inputs = {
    csv: features.map((f, i) => `"${f.replaceAll('"', '""')}",${rows[i]?.join()}`).join('\n'),
    jsonl: features.map((key, i) => JSON.stringify({ key, row: rows[i] })).join('\n'),
    parquet: new Uint8Array(parquet),
  };
  const expected = new Map(
    features.map((feature, i) => [xxh64(Buffer.from(`3${feature}`)), rows[i]]),
  );
  for (const [format, bytes] of Object.entries(inputs)) {
    const path = join(workspace.folder, `t.${format}`);
    writeFileSync(path, bytes);
    await workspace.buildBase(format, { input: [path], table: 't', signKey: 3 });
    assert.deepEqual(
      new Map([...(await workspace.readRows(format))].sort()),
      new Map([...expected].sort()),
    );
    const { shards } = (await openRepository(workspace.repository).readManifest('b', format))
      .tables[0]!;
    const csv = (await openRepository(workspace.repository).readManifest('b', 'csv')).tables[0]!;
    assert.deepEqual(shards, csv.shards);
  }
});

test('the report shows size and errors of each dtype', async (t) => {
  const workspace = new Workspace(t);
  const text = Array.from({ length: 500 }, (_, i) => `${i * i},${i / 7},${-i / 3},0.1`).join('\n');
  const input = [workspace.writeText('t.csv', text)];
  const { perTable } = await workspace.buildBase('1', { input, dtype: 'f16' });
  const [table] = perTable;
  const [f32, f16, bf16, i8] = table?.dtypes ?? [];
  assert.deepEqual(
    [f32, f16, bf16, i8].map((one) => [one?.dtype, one?.rowBytes]),
    [
      ['f32', 6000],
      ['f16', 4000],
      ['bf16', 4000],
      ['i8', 4000],
    ],
  );
  assert.deepEqual([f32?.meanError, f32?.maxError], [0, 0]);
  // The sample contains all rows, so it equals the measured errors of the chosen dtype.
  assert.deepEqual([f16?.meanError, f16?.maxError], [table?.meanError, table?.maxError]);
  assert.ok((f16?.maxError ?? 0) > 0 && (f16?.meanError ?? 0) < (bf16?.meanError ?? 0));
  const large = [workspace.writeText('t.csv', '1,1e6\n2,1\n')];
  const [report] = (await workspace.buildBase('2', { input: large })).perTable;
  const errors = report?.dtypes.map(({ maxError }) => maxError);
  assert.deepEqual([errors?.[0], errors?.[1], errors?.[3]], [0, undefined, undefined]);
  const [stored] = (await workspace.buildBase('3', { input: ['version:1'] })).perTable;
  assert.deepEqual(stored?.dtypes, []);
});

test('unused options and default rows out of range are refused', async (t) => {
  const workspace = new Workspace(t);
  const csv = workspace.writeText('t.csv', ROWS);
  const cases: [BuildOptions, RegExp][] = [
    [{ arrays: ['x'] }, /--arrays applies to npz, safetensors, but .*t\.csv is csv/],
    [{ i8Search: 'greedy' }, /--i8-search requires dtype i8, but the dtype is f32/],
    [{ defaultRow: [1e39] }, /--default-row: an element is out of the range of f32/],
    [{ defaultRow: [1e5], dtype: 'f16' }, /--default-row: .* which dtype f16 would make infinite/],
    [{ defaultRow: [1e5], dtype: 'i8' }, /--default-row: .* which dtype i8 cannot hold/],
  ];
  for (const [options, message] of cases) {
    await assert.rejects(workspace.buildBase('1', { input: [csv], ...options }), { message });
  }
});
