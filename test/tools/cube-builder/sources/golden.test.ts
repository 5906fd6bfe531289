import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { createGoldenCubeFiles, GOLDEN_ROWS, GOLDEN_SEQUENCE_ROWS } from './support/golden.ts';
import {
  createDictFiles,
  encodeDataList,
  encodeIndexList,
  formatRows,
  openOne,
  readRows,
} from './support/writers.ts';

const folder = join(import.meta.dirname, '../../../../../data/golden');

test('golden files of Cube’s formats stay readable and match the test writers', async () => {
  const files = createGoldenCubeFiles();
  assert.equal(files.size, 1 + 4 + 4);
  for (const [path, bytes] of files) {
    assert.deepEqual(readFileSync(join(folder, path)), Buffer.from(bytes), path);
  }
  const expected = formatRows(GOLDEN_ROWS.map(([key, row]) => ({ key, row })));
  const seq = await openOne({ paths: [join(folder, 'cube.seq')] });
  assert.deepEqual(formatRows(await readRows(seq)), expected.slice(0, GOLDEN_SEQUENCE_ROWS));
  const dict = await openOne({ paths: [join(folder, 'cube-dict')] });
  assert.equal(dict.rows, 8);
  assert.deepEqual(formatRows(await readRows(dict)), expected);
});

test('lists and records have the same bytes as those of Cube’s builder', () => {
  // A million keys with 40 bytes each, built by the original.
  assert.equal(encodeDataList([44_000_000]).toString('hex'), '0100000000639f02');
  assert.equal(
    encodeIndexList(1_000_000, [16_000_000]).toString('hex'),
    '0000000040420f00010000000024f40000000000',
  );
  const records = [0n, 1n, 2n].map((key): [bigint, Uint8Array] => [key, Buffer.alloc(40)]);
  const index = createDictFiles([records]).get('index.0') as Buffer;
  const pairs = [0, 1, 2].map((i) => [
    index.readBigUInt64LE(16 * i),
    index.readBigUInt64LE(16 * i + 8),
  ]);
  assert.deepEqual(pairs, [
    [0n, 0n],
    [1n, 0x2cn],
    [2n, 0x58n],
  ]);
});
