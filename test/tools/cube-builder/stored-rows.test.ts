/** Rows that come from a version: in another dtype, compared with files, by table; and what may not be mixed with them. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { type TestContext, test } from 'node:test';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { xxh64 } from '../../../lib/core/hash.ts';
import { openRepository } from '../../../lib/repository/repository.ts';
import type { BuildOptions } from '../../../tools/cube-builder/build-options.ts';
import type { BuildReport } from '../../../tools/cube-builder/report.ts';
import { temporaryFolder } from '../../repository/fixtures.ts';
import { buildHere, tableRows } from './tables.ts';

class Place {
  readonly folder: string;
  readonly repository: string;

  constructor(t: TestContext) {
    this.folder = temporaryFolder(t);
    this.repository = join(this.folder, 'r');
  }

  text(name: string, text: string): string {
    const path = join(this.folder, name);
    writeFileSync(path, text);
    return path;
  }

  base(version: string, options: BuildOptions): Promise<BuildReport> {
    return this.build(version, { shardNum: 2, ...options });
  }

  delta(version: string, dependVersion: string, options: BuildOptions): Promise<BuildReport> {
    return this.build(version, { jobMode: 'delta', dependVersion, ...options });
  }

  build(curVersion: string, options: BuildOptions): Promise<BuildReport> {
    return buildHere({ outputPath: this.repository, bundle: 'b', curVersion, ...options });
  }

  rows(version: string, table = 't'): Promise<Map<bigint, number[]>> {
    return tableRows(this.repository, version, table);
  }
}

/** Values that every dtype holds exactly. */
const ROWS = '1,0.5,0.25,1,2\n2,3,-4,5,6\n3,0,0,0,0\n';
/** As wide as one of f16 when stored as i8, and as one of f32 when there is one number. */
const WIDTHS = { four: ROWS, one: '1,0.5\n2,3\n3,0\n' };

test('rows of a version keep their dtype, or are converted to the one asked for', async (t) => {
  const place = new Place(t);
  for (const [name, text] of Object.entries(WIDTHS)) {
    const input = place.text(`${name}.csv`, text);
    await place.base(`${name}-f16`, { input: [input], table: 't', dtype: 'f16' });
    const expected = await place.rows(`${name}-f16`);
    assert.equal(expected.size, 3);
    const stored = [`version:${name}-f16`];
    for (const dtype of [undefined, 'f32', 'bf16', 'i8', 'f16'] as const) {
      const version = `${name}-as-${dtype}`;
      await place.base(version, { input: stored, ...(dtype && { dtype }) });
      const { tables } = await openRepository(place.repository).manifest('b', version);
      assert.equal(tables[0]?.dtype, dtype ?? 'f16');
      const rows = await place.rows(version);
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
  test(`a version (${dtype}) and a file are compared as they are stored: only what differs is in the delta`, async (t) => {
    const place = new Place(t);
    const before = place.text('before.csv', '1,0.1,0.2\n2,0.3,0.4\n3,0.5,0.6\n');
    const after = place.text('after.csv', '1,0.1,0.2\n2,0.3,0.5\n4,0.7,0.8\n');
    await place.base('1', { input: [before], table: 't', dtype });
    await place.base('fresh', { input: [after], table: 't', dtype });
    const there = await place.delta('2', '1', { diff: ['version:1', after], table: 't' });
    assert.deepEqual([there.perTable[0]?.rows, there.perTable[0]?.deleted], [2, 1]);
    assert.deepEqual(
      new Map([...(await place.rows('2'))].sort()),
      new Map([...(await place.rows('fresh'))].sort()),
    );
    const back = await place.delta('3', '2', { diff: [after, 'version:1'], table: 't' });
    assert.deepEqual([back.perTable[0]?.rows, back.perTable[0]?.deleted], [2, 1]);
    const same = await place.delta('4', '1', { diff: ['version:1', before], table: 't' });
    assert.deepEqual([same.perTable[0]?.rows, same.perTable[0]?.deleted], [0, 0]);
  });
}

test('tables of a version are taken by name, and compared with those of the same name alone', async (t) => {
  const place = new Place(t);
  const [one, two] = [join(place.folder, 'a.csv'), join(place.folder, 'u.csv')];
  place.text('a.csv', ROWS);
  place.text('u.csv', '7,1,1,1,1\n');
  await place.base('1', { input: [one] });
  await place.base('2', { input: [one, two] });
  await place.base('u', { input: ['version:2'], table: 'u' });
  assert.equal((await place.rows('u', 'a')).size, 0);
  assert.deepEqual([...(await place.rows('u', 'u'))], [[7n, [1, 1, 1, 1]]]);
  await assert.rejects(place.base('x', { input: ['version:2'], table: 'v' }), {
    message: /version 2 of b has no table v \(it has: a, u\)/,
  });
  await assert.rejects(place.delta('x', '2', { diff: ['version:1', 'version:2'] }), {
    message: /table u is on the new side only/,
  });
  await assert.rejects(place.delta('x', '2', { diff: ['version:2', 'version:1'] }), {
    message: /table u is on the old side only/,
  });
  await place.delta('3', '2', { diff: ['version:2', 'version:1'], table: 'a' });
  const gone = place.text('gone.txt', '1\n');
  await assert.rejects(place.delta('x', '2', { input: [one, two], deletes: [gone] }), {
    message: /gone\.txt is for one table, and the input has several \(a, u\)/,
  });
});

test('with --sign-key, deletes are features too, and the parent hashes as they do', async (t) => {
  const place = new Place(t);
  const input = place.text('t.csv', 'abc,0.5\n123,3\nxyz,4\n');
  const more = place.text('more.csv', 'new,1\n');
  const gone = place.text('gone.txt', '123\nabc\n');
  const signed = { table: 't', signKey: 14 };
  await place.base('1', { input: [input], ...signed });
  await place.delta('2', '1', { input: [more], deletes: [gone], ...signed });
  const keyOf = (feature: string): bigint => xxh64(Buffer.from(`14${feature}`));
  assert.deepEqual(
    new Map([...(await place.rows('2'))].sort()),
    new Map(
      [
        [keyOf('xyz'), [4]],
        [keyOf('new'), [1]],
      ].sort() as [bigint, number[]][],
    ),
  );
  await place.base('raw', { input: [place.text('raw.csv', '1,0.5\n')], table: 't' });
  await assert.rejects(place.delta('x', 'raw', { input: [more], ...signed }), {
    message: /--sign-key hashes features otherwise than version raw, whose keys are raw/,
  });
  await place.delta('3', '1', { input: [more], table: 'u', signKey: 15 });
  const { slots } = await openRepository(place.repository).manifest('b', '3');
  assert.deepEqual(
    slots.map(({ index }) => index),
    [14, 15],
  );
});

test('text keys are signed alike from every format that has them', async (t) => {
  const place = new Place(t);
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
    const path = join(place.folder, `t.${format}`);
    writeFileSync(path, bytes);
    await place.base(format, { input: [path], table: 't', signKey: 3 });
    assert.deepEqual(
      new Map([...(await place.rows(format))].sort()),
      new Map([...expected].sort()),
    );
    const { shards } = (await openRepository(place.repository).manifest('b', format)).tables[0]!;
    const csv = (await openRepository(place.repository).manifest('b', 'csv')).tables[0]!;
    assert.deepEqual(shards, csv.shards);
  }
});

test('the report shows size and errors of every dtype side by side', async (t) => {
  const place = new Place(t);
  const text = Array.from({ length: 500 }, (_, i) => `${i * i},${i / 7},${-i / 3},0.1`).join('\n');
  const input = [place.text('t.csv', text)];
  const { perTable } = await place.base('1', { input, dtype: 'f16' });
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
  // As many rows as the sample has: the dtype that was chosen is measured alike.
  assert.deepEqual([f16?.meanError, f16?.maxError], [table?.meanError, table?.maxError]);
  assert.ok((f16?.maxError ?? 0) > 0 && (f16?.meanError ?? 0) < (bf16?.meanError ?? 0));
  const large = [place.text('t.csv', '1,1e6\n2,1\n')];
  const [report] = (await place.base('2', { input: large })).perTable;
  const errors = report?.dtypes.map(({ maxError }) => maxError);
  assert.deepEqual([errors?.[0], errors?.[1], errors?.[3]], [0, undefined, undefined]);
  const [stored] = (await place.base('3', { input: ['version:1'] })).perTable;
  assert.deepEqual(stored?.dtypes, []);
});

test('an option that nothing takes is refused, and a default row that the dtype cannot hold', async (t) => {
  const place = new Place(t);
  const csv = place.text('t.csv', ROWS);
  const cases: [BuildOptions, RegExp][] = [
    [{ arrays: ['x'] }, /--arrays is for npz, safetensors; .*t\.csv is csv/],
    [{ i8Search: 'greedy' }, /--i8-search is of dtype i8, and this table's is f32/],
    [{ defaultRow: [1e39] }, /--default-row: an element is beyond what an f32 holds/],
    [{ defaultRow: [1e5], dtype: 'f16' }, /--default-row: .* which dtype f16 would make infinite/],
    [{ defaultRow: [1e5], dtype: 'i8' }, /--default-row: .* which dtype i8 cannot hold/],
  ];
  for (const [options, message] of cases) {
    await assert.rejects(place.base('1', { input: [csv], ...options }), { message });
  }
});
