import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { type ColumnSource, parquetWriteBuffer } from 'hyparquet-writer';
import type { InputSpec } from '../../../../tools/cube-builder/sources/row-source.ts';
import {
  createTestFolder,
  encodeFloats,
  formatRows,
  openOne,
  readOutcome,
  readValues,
  TABLES,
} from './support/writers.ts';

const folder = createTestFolder();
type WriteOptions = Omit<Parameters<typeof parquetWriteBuffer>[0], 'columnData'>;

function file(name: string, columnData: ColumnSource[], options: WriteOptions = {}): string {
  return write(name, new Uint8Array(parquetWriteBuffer({ columnData, ...options })));
}

function write(name: string, bytes: Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, bytes);
  return path;
}

const read = (path: string, spec: Partial<InputSpec> = {}) =>
  readOutcome({ paths: [path], ...spec });

/** A column of lists, as Spark and Arrow write them. */
const LIST_SCHEMA = [
  { name: 'root', num_children: 2 },
  { name: 'key', type: 'INT64', repetition_type: 'REQUIRED' },
  { name: 'row', repetition_type: 'OPTIONAL', num_children: 1, converted_type: 'LIST' },
  { name: 'list', repetition_type: 'REPEATED', num_children: 1 },
  { name: 'element', type: 'FLOAT', repetition_type: 'OPTIONAL' },
] as const;

test('any table reads back equal from lists, columns and binary values', async () => {
  const codecs = fc.constantFrom('UNCOMPRESSED', 'SNAPPY', 'GZIP');
  await fc.assert(
    fc.asyncProperty(TABLES, fc.integer({ min: 1, max: 20 }), codecs, async (rows, size, codec) => {
      const options: WriteOptions = {
        rowGroupSize: size,
        codec,
        compressors: { GZIP: (bytes) => gzipSync(bytes) },
      };
      const keys = BigInt64Array.from(rows.map(({ key }) => BigInt.asIntN(64, key)));
      const key: ColumnSource = { name: 'key', data: keys, type: 'INT64', nullable: false };
      const dim = rows[0]!.row.length;
      const columns = Array.from({ length: dim }, (_, j): ColumnSource => {
        const data = Float32Array.from(rows, ({ row }) => row[j]!);
        return { name: `v${j}`, data, type: 'FLOAT', nullable: j % 2 === 0 };
      });
      const expected = formatRows(rows);
      assert.deepEqual(await read(file('wide.parquet', [key, ...columns], options)), expected);
      const lists: ColumnSource = { name: 'row', data: rows.map(({ row }) => [...row]) };
      const schema = LIST_SCHEMA.map((element) => ({ ...element }));
      const plain = { name: 'key', data: keys };
      const list = file('list.parquet', [plain, lists], { ...options, schema });
      assert.deepEqual(await read(list), expected);
      const data = rows.map(({ row }) => new Uint8Array(encodeFloats(row)));
      const binary: ColumnSource = { name: 'bytes', data, type: 'BYTE_ARRAY' };
      assert.deepEqual(await read(file('bin.parquet', [key, binary], options)), expected);
    }),
    { numRuns: 30 },
  );
});

test('key types, selected columns and values of any length are supported', async () => {
  const value: ColumnSource = { name: 'v', data: [1, 2], type: 'DOUBLE' };
  const key = (data: ColumnSource['data'], type: ColumnSource['type']): ColumnSource[] => [
    { name: 'id', data, ...(type === undefined ? {} : { type }) },
    value,
  ];
  assert.deepEqual(await read(file('k.parquet', key([3, 4], 'INT32'))), ['3: 1', '4: 2']);
  const strings = key(['18446744073709551615', '7'], 'STRING');
  assert.deepEqual(await read(file('k.parquet', strings)), ['18446744073709551615: 1', '7: 2']);
  assert.match(
    String(await read(file('k.parquet', key([3, -4], 'INT32')))),
    /row 1: -4 is not a key/,
  );
  assert.match(String(await read(file('k.parquet', key(['x', 'y'], 'STRING')))), /x is not a key/);
  const more = [...key([3, 4], 'INT32'), { name: 'note', data: ['a', 'b'] }];
  assert.match(String(await read(file('m.parquet', more))), /column note \(.*\) cannot be a row/);
  assert.deepEqual(await read(file('m.parquet', more), { valueColumns: ['v'] }), ['3: 1', '4: 2']);
  assert.deepEqual(await read(file('m.parquet', more), { valueColumns: ['v', 'id'] }), [
    '3: 1 3',
    '4: 2 4',
  ]);
  const bytes = [new Uint8Array(0), Uint8Array.of(1, 2, 3)];
  const binary = [
    ...key([3, 4], 'INT32').slice(0, 1),
    { name: 'b', data: bytes, type: 'BYTE_ARRAY' as const },
  ];
  const source = await openOne({ paths: [file('b.parquet', binary)], valueFormat: 'bytes' });
  assert.equal(source.rows, 2);
  assert.deepEqual(
    (await readValues(source)).map(([k, v]) => [k, [...v]]),
    [
      [3n, []],
      [4n, [1, 2, 3]],
    ],
  );
});

test('nulls and lists of different lengths are refused with their row', async () => {
  const key: ColumnSource = { name: 'key', data: [1, 2], type: 'INT32' };
  const nulls: ColumnSource = { name: 'v', data: [1, null], type: 'FLOAT' };
  assert.match(String(await read(file('n.parquet', [key, nulls]))), /row group 0: row 1: null/);
  const schema = LIST_SCHEMA.map((element) => ({ ...element }));
  const keys: ColumnSource = { name: 'key', data: BigInt64Array.of(1n, 2n) };
  const lists = (data: unknown[]) => file('n.parquet', [keys, { name: 'row', data }], { schema });
  assert.match(String(await read(lists([[1, 2], [1]]))), /row 1: a row of 1 numbers; expected 2/);
  assert.match(String(await read(lists([[1, 2], null]))), /row 1: the list is null/);
  assert.match(
    String(
      await read(
        lists([
          [1, 2],
          [1, null],
        ]),
      ),
    ),
    /row 1: null in the row/,
  );
});

test('flipped bits and truncations give all rows or an error with the file', async () => {
  const schema = LIST_SCHEMA.map((element) => ({ ...element }));
  const keys: ColumnSource = { name: 'key', data: BigInt64Array.of(1n, 2n, 3n) };
  const data = [
    [1, 2],
    [3, 4],
    [1, 2],
  ];
  const options = { schema, codec: 'SNAPPY', rowGroupSize: 2, statistics: false } as const;
  const whole = new Uint8Array(
    parquetWriteBuffer({ columnData: [keys, { name: 'row', data }], ...options }),
  );
  for (let at = 0; at < whole.length; at++) {
    for (const bit of [1 << (at % 8)]) {
      const flipped = whole.slice();
      flipped[at]! ^= bit;
      const got = await read(write('f.parquet', flipped), { format: 'parquet' });
      if (typeof got !== 'string') assert.equal(got.length, 3, `byte ${at}`);
    }
    const got = await read(write('f.parquet', whole.subarray(0, at)), { format: 'parquet' });
    assert.match(String(got), /^CORRUPT .*f.parquet/, `cut at ${at}`);
  }
});
