/** Compressed SequenceFiles as Hadoop writes them, and the LZ4 codecs of Parquet. */
import assert from 'node:assert/strict';
import { writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import fc from 'fast-check';
import { parquetWriteBuffer } from 'hyparquet-writer';
import { findDecompressor } from '../../../../tools/cube-builder/sources/hadoop-codecs.ts';
import {
  CODECS,
  type Compress,
  encodeHadoopBlocks,
  encodeHadoopRecords,
  encodeLz4Block,
  frame,
} from './support/hadoop-writers.ts';
import {
  createTestFolder,
  encodeFloats,
  formatRows,
  readOutcome,
  TABLES,
} from './support/writers.ts';

const folder = createTestFolder();

function write(name: string, bytes: Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, bytes);
  return path;
}

const readSequence = (bytes: Uint8Array) =>
  readOutcome({ paths: [write('p.seq', bytes)], format: 'seqfile' });

for (const codec of Object.keys(CODECS)) {
  test(`SequenceFiles with ${codec} read back equal, by record and by block`, async () => {
    await fc.assert(
      fc.asyncProperty(TABLES, fc.integer({ min: 1, max: 30 }), async (rows, perBlock) => {
        const records = rows.map(({ key, row }) => [key, encodeFloats(row)] as const);
        const expected = formatRows(rows);
        assert.deepEqual(await readSequence(encodeHadoopRecords(records, codec)), expected);
        assert.deepEqual(
          await readSequence(encodeHadoopBlocks(records, codec, perBlock)),
          expected,
        );
      }),
      { numRuns: 15 },
    );
  });
}

const RECORDS = Array.from(
  { length: 40 },
  (_, i) => [BigInt(i), encodeFloats(Float32Array.of(i, 0.5))] as const,
);

test('BytesWritable records without compression read back equal', async () => {
  const got = await readSequence(encodeHadoopRecords(RECORDS));
  assert.equal(got.length, RECORDS.length);
  assert.equal(got[3], '3: 3 0.5');
});

test('a damaged or cut compressed SequenceFile is an error or has right records only', async () => {
  const files = ['Lz4Codec', 'SnappyCodec', 'DefaultCodec'].flatMap((codec) => [
    encodeHadoopRecords(RECORDS.slice(0, 6), codec),
    encodeHadoopBlocks(RECORDS, codec, 16),
  ]);
  for (const whole of files) {
    for (let length = 0; length < whole.length; length += 7) {
      const got = await readSequence(whole.subarray(0, length));
      if (typeof got === 'string') assert.match(got, /^(CORRUPT|UNSUPPORTED|INVALID_ARGUMENT)/);
      else
        assert.ok(
          got.every((row, i) => row === `${i}: ${i} 0.5`),
          `${length} bytes`,
        );
    }
    for (let at = 0; at < whole.length; at += 5) {
      const bytes = Buffer.from(whole);
      bytes[at]! ^= 1 << (at % 8);
      // Neither format has checksums, so a value may change; it must not hang or crash.
      const got = await readSequence(bytes);
      if (typeof got === 'string') {
        assert.match(got, /^(CORRUPT|UNSUPPORTED|INVALID_ARGUMENT|TOO_LARGE)/);
      }
    }
  }
});

test('zstd and LZ4 data of the original tools decompress; results have a limit', () => {
  const text = 'hypercube '.repeat(20);
  const zstd = Buffer.from('28b52ffd20c88d000050687970657263756265200100bb520509', 'hex');
  // The block of a frame of lz4, in Hadoop's framing.
  const lz4 = Buffer.from('000000c800000014af687970657263756265200a00a6506375626520', 'hex');
  for (const [codec, bytes] of [
    ['ZStandardCodec', zstd],
    ['Lz4Codec', lz4],
  ] as const) {
    const decompress = findDecompressor(`org.apache.hadoop.io.compress.${codec}`);
    assert.equal(Buffer.from(decompress!(bytes, 200)).toString(), text);
    assert.throws(() => decompress!(bytes, 199), /limit is 199/);
  }
  assert.equal(findDecompressor('org.apache.hadoop.io.compress.BZip2Codec'), undefined);
});

/** The same codec name has two encodings: Hadoop's framing and a plain block. */
const PARQUET_CODECS: readonly (readonly ['LZ4' | 'LZ4_RAW', Compress])[] = [
  ['LZ4_RAW', encodeLz4Block],
  ['LZ4', frame(encodeLz4Block)],
  ['LZ4', encodeLz4Block],
];

for (const [i, [codec, compress]] of PARQUET_CODECS.entries()) {
  test(`Parquet with ${codec} reads back equal (encoding ${i})`, async () => {
    await fc.assert(
      fc.asyncProperty(TABLES, async (rows) => {
        const keys = BigInt64Array.from(rows.map(({ key }) => BigInt.asIntN(64, key)));
        const data = rows.map(({ row }) => new Uint8Array(encodeFloats(row)));
        const buffer = parquetWriteBuffer({
          columnData: [
            { name: 'key', data: keys, type: 'INT64', nullable: false },
            { name: 'bytes', data, type: 'BYTE_ARRAY' },
          ],
          codec,
          compressors: { [codec]: compress },
        });
        const path = write('p.parquet', new Uint8Array(buffer));
        assert.deepEqual(await readOutcome({ paths: [path] }), formatRows(rows));
      }),
      { numRuns: 20 },
    );
  });
}
