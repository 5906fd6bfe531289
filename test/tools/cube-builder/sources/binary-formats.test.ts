import assert from 'node:assert/strict';
import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdirSync, truncateSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { gzipSync } from 'node:zlib';
import fc from 'fast-check';
import { openSources } from '../../../../tools/cube-builder/sources/open-sources.ts';
import {
  createDictFiles,
  createTestFolder,
  encodeFloats,
  encodeKeys,
  encodeNpy,
  encodeRows,
  encodeSequenceFile,
  formatRows,
  openOne,
  readOutcome,
  readRows,
  readValues,
  SYNC,
  TABLES,
  type TestRow,
  writeFolder,
} from './support/writers.ts';

const folder = createTestFolder();
const records = (rows: readonly TestRow[]): [bigint, Uint8Array][] =>
  rows.map(({ key, row }) => [key, encodeFloats(row)]);

function file(name: string, bytes: Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, bytes);
  return path;
}

test('any table reads back equal from SequenceFile, Cube dict, .npy and gzip', async () => {
  await fc.assert(
    fc.asyncProperty(TABLES, fc.nat(60), async (rows, size) => {
      const expected = formatRows(rows);
      const dim = rows[0]!.row.length;
      const seq = encodeSequenceFile(records(rows), size);
      const array = encodeNpy('f4', [rows.length, dim], encodeRows(rows));
      const dict = writeFolder(join(folder, 'dict'), createDictFiles([records(rows)], 60 + size));
      const paths = [file('p.seq', seq), file('p.seq.gz', gzipSync(seq)), dict];
      for (const path of paths)
        assert.deepEqual(await readOutcome({ paths: [path] }), expected, path);
      file('k.keys.npy', encodeNpy('u8', [rows.length], encodeKeys(rows.map(({ key }) => key))));
      for (const path of [file('k.npy', array), file('k.npy.gz', gzipSync(array))]) {
        const keys = join(folder, 'k.keys.npy');
        assert.deepEqual(await readOutcome({ paths: [path, keys] }), expected, path);
      }
    }),
    { numRuns: 40 },
  );
});

test('a SequenceFile that ends inside a record is refused with the position', async () => {
  const rows = Array.from({ length: 5 }, (_, i) => ({
    key: BigInt(i),
    row: Float32Array.of(i, -i, 0.5),
  }));
  const whole = encodeSequenceFile(records(rows), 50);
  const expected = formatRows(rows);
  const ends = new Set<number>();
  for (let length = 0; length < whole.length; length++) {
    const got = await readOutcome({
      paths: [file('cut.seq', whole.subarray(0, length))],
      format: 'seqfile',
    });
    if (typeof got === 'string') {
      assert.match(got, /^(CORRUPT .*cut.seq: (byte|record)|INVALID_ARGUMENT .*no row)/);
    } else {
      assert.deepEqual(got, expected.slice(0, got.length));
      ends.add(length);
    }
  }
  // After each record but the last, and after the sync marker that follows the third.
  assert.equal(ends.size, 4 + 1);
});

test('a flipped bit in a SequenceFile changes a value or is an error', async () => {
  const rows = Array.from({ length: 4 }, (_, i) => ({ key: 7n, row: Float32Array.of(i, 1) }));
  const whole = encodeSequenceFile(records(rows), 20);
  const heads = [whole.indexOf(SYNC) + 16];
  for (let at = 0; at < whole.length; at++) {
    const bytes = Buffer.from(whole);
    bytes[at]! ^= 1 << (at % 8);
    const got = await readOutcome({ paths: [file('flip.seq', bytes)], format: 'seqfile' });
    if (typeof got !== 'string') assert.equal(got.length, 4, `byte ${at}`);
    if (at < heads[0]! - 16) assert.equal(typeof got, 'string', `byte ${at} of the header`);
  }
});

test('damage at which Cube would silently stop reading is refused', async () => {
  const seq = (bytes: Uint8Array) =>
    readOutcome({ paths: [file('bad.seq', bytes)], format: 'seqfile' });
  const whole = encodeSequenceFile([[1n, Buffer.alloc(8)]]);
  const patched = (at: number, ...bytes: number[]): Buffer => {
    const copy = Buffer.from(whole);
    copy.set(bytes, at);
    return copy;
  };
  const first = whole.indexOf(SYNC) + 16;
  assert.match(await text(seq(patched(0, 0))), /no "SEQ"/);
  assert.match(await text(seq(patched(3, 5))), /UNSUPPORTED .*version 5/);
  assert.match(await text(seq(patched(10, 120))), /UNSUPPORTED .*key class/);
  assert.match(
    await text(seq(patched(first - 22, 0, 1))),
    /CORRUPT .*compressed blocks without a codec/,
  );
  assert.match(await text(seq(patched(first + 7, 9))), /key has 9 bytes/);
  assert.match(await text(seq(patched(first, 0x7f))), /byte 96: a record of \d+ bytes/);
  const codec = Buffer.concat([
    patched(first - 22, 1).subarray(0, first - 20),
    Buffer.from('\x03abc'),
  ]);
  assert.match(await text(seq(codec)), /UNSUPPORTED .*compression "abc".* write .* DefaultCodec/);
  const two = encodeSequenceFile([
    [1n, Buffer.alloc(8)],
    [2n, Buffer.alloc(12)],
  ]);
  assert.match(await text(seq(two)), /record at byte 120: a row of 3 numbers; expected 2/);
  assert.match(
    await text(seq(encodeSequenceFile([[1n, Buffer.alloc(7)]]))),
    /7 bytes is not a row of f32/,
  );
});

async function text(got: Promise<string[] | string>): Promise<string> {
  return String(await got);
}

test('value formats: f16, bf16, cube-i8 and bytes of any length', async () => {
  const half = Buffer.from('003c00c000000100ff7b007c00fe', 'hex');
  const path = file('h.seq', encodeSequenceFile([[3n, half]]));
  const f16 = await readRows(await openOne({ paths: [path], valueFormat: 'f16' }));
  const expected = [1, -2, 0, 2 ** -24, 65504, Number.POSITIVE_INFINITY, Number.NaN];
  assert.deepEqual([...f16[0]!.row], expected);
  const bf16 = await readRows(await openOne({ paths: [path], valueFormat: 'bf16' }));
  assert.equal(bf16[0]!.row[1], -2);
  const quantised = Buffer.concat([
    encodeFloats(Float32Array.of(-1, 1)),
    Buffer.from([0, 128, 255]),
  ]);
  const i8Path = file('q.seq', encodeSequenceFile([[3n, quantised]]));
  const i8 = await readRows(await openOne({ paths: [i8Path], valueFormat: 'cube-i8' }));
  assert.deepEqual([...i8[0]!.row], [-1, 0, -1 + 255 / 128]);
  const values: [bigint, Uint8Array][] = [
    [1n, Buffer.from('')],
    [2n ** 64n - 1n, Buffer.from('abc')],
    [1n, Buffer.alloc(3000, 7)],
  ];
  const dict = writeFolder(join(folder, 'values'), createDictFiles([values]));
  const seq = file('values.seq', encodeSequenceFile(values));
  for (const input of [dict, seq]) {
    const source = await openOne({ paths: [input], valueFormat: 'bytes' });
    assert.equal(source.dim, 0);
    const read = await readValues(source);
    assert.deepEqual(
      read.map(([key, value]) => [key, Buffer.from(value)]),
      values.map(([key, value]) => [key, Buffer.from(value)]),
    );
  }
});

test('a Cube dict is read in order, and a delta without its base only as a delta', async () => {
  const row = (x: number): Uint8Array => encodeFloats(Float32Array.of(x));
  const base: [bigint, Uint8Array][] = [
    [1n, row(1)],
    [2n, row(2)],
    [1n, row(3)],
  ];
  const delta: [bigint, Uint8Array][] = [
    [2n, row(4)],
    [9n, row(5)],
  ];
  const files = createDictFiles([base, delta], 16);
  const whole = writeFolder(join(folder, 'chain'), files);
  assert.deepEqual(await readOutcome({ paths: [whole] }), ['1: 1', '2: 2', '1: 3', '2: 4', '9: 5']);
  assert.equal((await openOne({ paths: [whole] })).rows, 5);
  for (const name of ['index.0', 'data.0', 'data.1']) files.delete(name);
  const alone = writeFolder(join(folder, 'alone'), files);
  assert.match(
    await text(readOutcome({ paths: [alone] })),
    /index.0: the file is missing.*the files of the base are needed/,
  );
  assert.deepEqual(await readOutcome({ paths: [alone], delta: true }), ['2: 4', '9: 5']);
});

test('a Cube dict with inconsistent files is refused', async () => {
  const rows = records([1, 2, 3].map((i) => ({ key: BigInt(i), row: Float32Array.of(i, i) })));
  const files = createDictFiles([rows], 24);
  for (const [name, bytes] of files) {
    for (let at = 0; at < bytes.length; at++) {
      const flipped = Buffer.from(bytes);
      flipped[at]! ^= 0x10;
      const got = await readOutcome({
        paths: [writeFolder(join(folder, 'd'), new Map([...files, [name, flipped]]))],
      });
      if (name.endsWith('.n')) assert.equal(typeof got, 'string', `${name} byte ${at}`);
      if (typeof got !== 'string') assert.equal(got.length, 3);
      const cut = new Map([...files, [name, bytes.subarray(0, at)]]);
      const short = await text(readOutcome({ paths: [writeFolder(join(folder, 'd'), cut)] }));
      assert.match(short, /^CORRUPT .*(index|data)\./, `${name} cut at ${at}`);
    }
    const missing = new Map(files);
    missing.delete(name);
    if (name === 'index.n') continue;
    const got = await text(readOutcome({ paths: [writeFolder(join(folder, 'd'), missing)] }));
    assert.match(got, /data\.|index\./, name);
  }
});

test('.npy files are read with all types and refused with wrong shapes', async () => {
  const f8 = Buffer.from(Float64Array.of(1.5, -0.1, Number.NaN, 3).buffer);
  assert.deepEqual(await readOutcome({ paths: [file('a.npy', encodeNpy('f8', [2, 2], f8))] }), [
    `0: 1.5 ${Math.fround(-0.1)}`,
    '1: NaN 3',
  ]);
  const f2 = Buffer.from('003c00c0', 'hex');
  assert.deepEqual(await readOutcome({ paths: [file('a.npy', encodeNpy('f2', [2], f2))] }), [
    '0: 1',
    '1: -2',
  ]);
  const cube = encodeNpy('f4', [1, 1, 1], Buffer.alloc(4));
  assert.match(
    await text(readOutcome({ paths: [file('a.npy', cube)] })),
    /f4 of shape \(1, 1, 1\) is not a table/,
  );
  const keys = encodeNpy('i8', [2], Buffer.alloc(16));
  assert.match(
    await text(readOutcome({ paths: [file('a.npy', keys)] })),
    /i8 of shape \(2\) is not a table/,
  );
  file('a.keys.npy', keys);
  const one = file('a.npy', encodeNpy('f4', [1, 1], Buffer.alloc(4)));
  const got = await text(readOutcome({ paths: [one, join(folder, 'a.keys.npy')] }));
  assert.match(got, /keys of shape \(2\) for 1 rows/);
});

test('a failed reader ends even if the writer keeps the pipe open', async () => {
  const sources = new URL(
    '../../../../tools/cube-builder/sources/open-sources.js',
    import.meta.url,
  );
  const script = `import { openSources } from '${sources}';
    try {
      const [source] = await openSources({ paths: ['-'], format: 'csv' });
      for await (const batch of source.batches());
    } catch (error) {
      console.error(error.message);
      process.exitCode = 1;
    }`;
  for (const lines of ['1,2\n3,4\n5,z\n', '1,z\n']) {
    const child = spawn(process.execPath, ['--input-type=module', '-e', script]);
    child.stdin.write(lines);
    const errors: Buffer[] = [];
    child.stderr.on('data', (chunk: Buffer) => errors.push(chunk));
    const [code] = await once(child, 'exit');
    child.stdin.destroy();
    assert.equal(code, 1);
    assert.match(Buffer.concat(errors).toString(), /standard input: record \d at byte \d+/);
  }
});

test('memory does not grow with the file', async () => {
  const rows = 25_000_000;
  const path = file('large.npy', encodeNpy('f4', [rows, 10], Buffer.alloc(0)));
  truncateSync(path, 128 + rows * 40);
  // What other tests of this process have left is garbage.
  setFlagsFromString('--expose-gc');
  (runInNewContext('gc') as () => void)();
  let read = 0;
  let largest = 0;
  for await (const batch of (await openOne({ paths: [path] })).batches()) {
    assert.ok(batch.count <= 65_536);
    read += batch.count;
    largest = Math.max(largest, process.memoryUsage().arrayBuffers);
  }
  assert.equal(read, rows);
  assert.ok(largest < 300e6, `${largest} bytes of buffers for a file of a gigabyte`);
});

test('every truncation of compressed input is an error', async () => {
  const rows = Buffer.from(Float32Array.from({ length: 40 }, (_, i) => i).buffer);
  const packed = gzipSync(encodeNpy('f4', [20, 2], rows));
  for (let length = 2; length < packed.length; length++) {
    const got = await text(
      readOutcome({ paths: [file('cut.npy.gz', packed.subarray(0, length))], format: 'npy' }),
    );
    assert.match(got, /^CORRUPT .*cut.npy.gz/, `at ${length}`);
  }
  const trailing = Buffer.concat([packed, Buffer.from('garbage')]);
  assert.match(
    await text(readOutcome({ paths: [file('cut.npy.gz', trailing)] })),
    /damaged or truncated gzip data|the following bytes are not gzip data/,
  );
  const longer = gzipSync(encodeNpy('f4', [19, 2], rows));
  assert.match(
    await text(readOutcome({ paths: [file('l.npy.gz', longer)] })),
    /bytes after its end/,
  );
});

test('folders and globs group parts by table and skip marker files and tars', async () => {
  const root = join(folder, 'tree');
  const seq = (key: bigint): Buffer => encodeSequenceFile([[key, Buffer.alloc(4)]]);
  mkdirSync(join(root, 'users'), { recursive: true });
  writeFileSync(join(root, 'users', 'part-00001'), seq(2n));
  writeFileSync(join(root, 'users', 'part-00000'), seq(1n));
  writeFileSync(join(root, 'users', '_SUCCESS'), '');
  writeFileSync(join(root, 'users', '.part-00000.crc'), 'x');
  writeFileSync(join(root, 'items-part-0.seq'), seq(3n));
  writeFolder(join(root, 'ads_part0'), createDictFiles([[[4n, Buffer.alloc(4)]]]));
  writeFolder(join(root, 'ads_part1'), createDictFiles([[[5n, Buffer.alloc(4)]]]));
  writeFileSync(join(root, 'ads_part0.tar'), 'x');
  writeFileSync(join(root, 'ads_part0.tar.md5'), 'x');
  const readAll = async (...paths: string[]): Promise<Record<string, string[]>> => {
    const sources = await openSources({ paths });
    const entries = sources.map(async (s) => [s.name, formatRows(await readRows(s))] as const);
    return Object.fromEntries(await Promise.all(entries));
  };
  const all = { ads: ['4: 0', '5: 0'], items: ['3: 0'], users: ['1: 0', '2: 0'] };
  assert.deepEqual(await readAll(root), all);
  assert.deepEqual(await readAll(join(root, 'us*', 'part-0000[12]')), { users: ['2: 0'] });
  assert.deepEqual(await readAll(join(root, '**')), all);
  const together = await openOne({ paths: [root], table: 'all' });
  assert.equal((await readRows(together)).length, 5);
  await assert.rejects(openSources({ paths: [join(root, 'none*')] }), /no file matches/);
  await assert.rejects(openSources({ paths: [join(root, 'none')] }), /no such file/);
});

test('standard input is read once, in chunks of any size, compressed or not', async () => {
  const rows = [{ key: 5n, row: Float32Array.of(1, 2) }];
  for (const bytes of [
    encodeSequenceFile(records(rows)),
    gzipSync(encodeSequenceFile(records(rows))),
  ]) {
    const pieces = async function* (): AsyncGenerator<Uint8Array> {
      for (const byte of bytes) yield Uint8Array.of(byte);
    };
    const [source] = await openSources({ paths: ['-'], format: 'seqfile', table: 't' }, pieces());
    assert.deepEqual(formatRows(await readRows(source!)), formatRows(rows));
    await assert.rejects(readRows(source!), /cannot be read twice/);
  }
  await assert.rejects(openSources({ paths: ['-'] }), /needs --format/);
  await assert.rejects(
    openSources({ paths: ['-'], format: 'parquet' }),
    /parquet must be read from a file/,
  );
});
