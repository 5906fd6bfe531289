import assert from 'node:assert/strict';
import { readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { crc32, deflateRawSync } from 'node:zlib';
import fc from 'fast-check';
import { openSources } from '../../../../tools/cube-builder/sources/open-sources.ts';
import {
  createTestFolder,
  encodeKeys,
  encodeNpy,
  encodeRows,
  formatRows,
  openOne,
  readOutcome,
  readRows,
  TABLES,
} from './support/writers.ts';

const folder = createTestFolder();
/** Made by make.py in the same folder, which is not compiled. */
const fixtures = fileURLToPath(
  new URL('../../../../../test/tools/cube-builder/sources/fixtures/', import.meta.url),
);

function file(name: string, bytes: Uint8Array): string {
  const path = join(folder, name);
  writeFileSync(path, bytes);
  return path;
}

const fixture = (name: string) => readOutcome({ paths: [join(fixtures, name)] });
const text = async (got: Promise<string[] | string>): Promise<string> => String(await got);

interface Entry {
  readonly name: string;
  readonly data: Uint8Array;
  readonly packed: boolean;
}

/** A ZIP archive of stored and deflated entries. */
function zip(entries: readonly Entry[]): Buffer {
  const locals: Buffer[] = [];
  const directory: Buffer[] = [];
  let at = 0;
  for (const { name, data, packed } of entries) {
    const body = packed ? deflateRawSync(data) : Buffer.from(data);
    const head = Buffer.alloc(26);
    head.writeUInt16LE(20, 0);
    head.writeUInt16LE(packed ? 8 : 0, 4);
    head.writeUInt32LE(crc32(data), 10);
    head.writeUInt32LE(body.length, 14);
    head.writeUInt32LE(data.length, 18);
    head.writeUInt16LE(name.length, 22);
    const local = Buffer.concat([Buffer.from('PK\x03\x04'), head, Buffer.from(name), body]);
    const tail = Buffer.alloc(14);
    tail.writeUInt32LE(at, 10);
    const central = [Buffer.from('PK\x01\x02\x14\x00'), head, tail, Buffer.from(name)];
    directory.push(Buffer.concat(central));
    locals.push(local);
    at += local.length;
  }
  const end = Buffer.alloc(22);
  end.write('PK\x05\x06', 'latin1');
  end.writeUInt16LE(entries.length, 8);
  end.writeUInt16LE(entries.length, 10);
  end.writeUInt32LE(Buffer.concat(directory).length, 12);
  end.writeUInt32LE(at, 16);
  return Buffer.concat([...locals, ...directory, end]);
}

/** A safetensors file with the tensors in order. */
function safetensors(tensors: readonly [string, string, number[], Uint8Array][]): Buffer {
  let at = 0;
  const header: Record<string, unknown> = { __metadata__: { format: 'pt' } };
  for (const [name, dtype, shape, data] of tensors) {
    header[name] = { dtype, shape, data_offsets: [at, at + data.length] };
    at += data.length;
  }
  const json = Buffer.from(JSON.stringify(header));
  const length = Buffer.alloc(8);
  length.writeBigUInt64LE(BigInt(json.length));
  return Buffer.concat([length, json, ...tensors.map(([, , , data]) => data)]);
}

const KEYED = ['0: 0.5 -1', '5: NaN Infinity', `${2n ** 53n + 1n}: 3 4`];

test('files written by NumPy and zstd read back equal', async () => {
  const last = `${2n ** 64n - 1n}: ${Math.fround(1e-3)} 65504`;
  assert.deepEqual(await fixture('keyed.npz'), [...KEYED, last]);
  assert.deepEqual(await fixture('packed.npz'), [...KEYED, last]);
  const numbered = ['0: 0.5 -1', '1: NaN Infinity', '2: 3 4'];
  assert.deepEqual(await fixture('f8.npy'), [...numbered, `3: ${Math.fround(1e-3)} 65504`]);
  assert.deepEqual(await fixture('f8.npy.zst'), [...numbered, `3: ${Math.fround(1e-3)} 65504`]);
  assert.deepEqual((await fixture('f2.npy')).slice(0, 3), numbered);
  assert.match(await text(fixture('fortran.npy')), /UNSUPPORTED .*Fortran order/);
  assert.match(await text(fixture('big-endian.npy')), /UNSUPPORTED .*">f4" \(big-endian\)/);
  assert.deepEqual(await fixture('rows.csv.zst'), [...KEYED, last]);
  assert.deepEqual(await fixture('frames.csv.zst'), [...KEYED, last, '6: 7 8']);
  const [users, items] = await openSources({ paths: [join(fixtures, 'tables.npz')] });
  assert.deepEqual([users?.name, items?.name], ['users', 'items']);
  assert.deepEqual(formatRows(await readRows(users!)), [...KEYED, last]);
  assert.deepEqual(formatRows(await readRows(items!)), numbered.slice(0, 2));
});

test('any table reads back equal from .npz and safetensors', async () => {
  await fc.assert(
    fc.asyncProperty(TABLES, fc.boolean(), async (rows, packed) => {
      const shape = [rows.length, rows[0]!.row.length];
      const keys = encodeKeys(rows.map(({ key }) => key));
      const archive = zip([
        { name: 'keys.npy', data: encodeNpy('u8', [rows.length], keys), packed: !packed },
        { name: 'rows.npy', data: encodeNpy('f4', shape, encodeRows(rows)), packed },
      ]);
      assert.deepEqual(await readOutcome({ paths: [file('t.npz', archive)] }), formatRows(rows));
      const tensors = safetensors([
        ['weight', 'F32', shape, encodeRows(rows)],
        ['weight.keys', 'I64', [rows.length], keys],
      ]);
      assert.deepEqual(
        await readOutcome({ paths: [file('t.safetensors', tensors)] }),
        formatRows(rows),
      );
      assert.equal((await openOne({ paths: [join(folder, 't.safetensors')] })).name, 't');
    }),
    { numRuns: 30 },
  );
});

test('safetensors: types, several tables and selected tensors', async () => {
  const halves = Buffer.from('003c00c0', 'hex');
  const tensors = safetensors([
    ['a.weight', 'BF16', [2, 1], Buffer.from('803f00c0', 'hex')],
    ['b', 'F16', [1, 2], halves],
    ['c', 'F64', [1], Buffer.from(Float64Array.of(0.5).buffer)],
    ['ids', 'I32', [1], Buffer.alloc(4)],
  ]);
  const path = file('m.safetensors', tensors);
  assert.match(
    await text(readOutcome({ paths: [path] })),
    /ids is I32; supported types are F16, BF16/,
  );
  const sources = await openSources({ paths: [path], arrays: ['c', 'a.weight', 'b'] });
  const read = sources.map(async (source) => [source.name, formatRows(await readRows(source))]);
  assert.deepEqual(await Promise.all(read), [
    ['a.weight', ['0: 1', '1: -2']],
    ['b', ['0: 1 -2']],
    ['c', ['0: 0.5']],
  ]);
  await assert.rejects(openSources({ paths: [path], arrays: ['d'] }), /no array d; the arrays are/);
});

test('safetensors: a damaged header is refused', async () => {
  const whole = safetensors([['w', 'F32', [2, 1], Buffer.alloc(8)]]);
  const json = (from: string, to: string): Buffer => {
    const changed = Buffer.from(whole.toString('latin1').replace(from, to), 'latin1');
    changed.writeBigUInt64LE(whole.readBigUInt64LE() + BigInt(to.length - from.length));
    return changed;
  };
  const cases: [Buffer, RegExp][] = [
    [json('[0,8]', '[0,4]'), /the tensors have 4 bytes, but 8 follow/],
    [json('[0,8]', '[4,8]'), /begins at byte 4 of the data; expected 0/],
    [json('[0,8]', '[8,0]'), /offsets \[8, 0\]/],
    [json('[0,8]', '[0,1e99]'), /data_offsets\[1\]/],
    [json('[2,1]', '[3,1]'), /shape \(3, 1\) of F32 does not match 8 bytes/],
    [json('[2,1]', '[-2,1]'), /shape/],
    [json('"shape"', '"shale"'), /shape/],
    [json('{', '['), /not JSON/],
    [Buffer.concat([whole, Buffer.alloc(1)]), /8 bytes, but 9 follow/],
  ];
  for (const [bytes, pattern] of cases) {
    const got = readOutcome({ paths: [file('d.safetensors', bytes)], format: 'safetensors' });
    assert.match(await text(got), pattern);
  }
});

test('damaged .npz archives give the right rows or an error with the file', async () => {
  const stored = encodeNpy('f4', [2, 2], Buffer.from(Float32Array.of(1, 2, 3, 4).buffer));
  const archives = {
    'x.npz': zip([
      { name: 'rows.npy', data: stored, packed: true },
      { name: 'keys.npy', data: encodeNpy('u8', [2], encodeKeys([7n, 9n])), packed: false },
    ]),
    'numpy.npz': readFileSync(join(fixtures, 'keyed.npz')),
  };
  for (const [name, whole] of Object.entries(archives)) {
    const format = 'npz';
    const right = await readOutcome({ paths: [file(name, whole)], format });
    assert.notEqual(typeof right, 'string');
    for (let at = 0; at < whole.length; at += name === 'x.npz' ? 1 : 7) {
      const flipped = Buffer.from(whole);
      flipped[at]! ^= 1 << (at % 8);
      const got = await readOutcome({ paths: [file(name, flipped)], format });
      if (typeof got !== 'string') assert.deepEqual(got, right, `${name} byte ${at}`);
      else assert.match(got, new RegExp(`^[A-Z_]+ .*${name}`));
      const cut = await readOutcome({ paths: [file(name, whole.subarray(0, at))], format });
      assert.match(String(cut), /^(CORRUPT|INVALID_ARGUMENT) .*npz/, `${name} cut at ${at}`);
    }
  }
});

test('damaged safetensors files give all rows or an error with the file', async () => {
  const data = Buffer.from(Float32Array.of(1, 2).buffer);
  const whole = safetensors([
    ['w', 'F32', [2, 1], data],
    ['w.keys', 'U64', [2], encodeKeys([7n, 9n])],
  ]);
  for (let at = 0; at < whole.length; at++) {
    const flipped = Buffer.from(whole);
    flipped[at]! ^= 1 << (at % 8);
    const got = await readOutcome({
      paths: [file('f.safetensors', flipped)],
      format: 'safetensors',
    });
    if (typeof got === 'string') assert.match(got, /f.safetensors|one name|sources/);
    const cut = { paths: [file('f.safetensors', whole.subarray(0, at))] };
    assert.match(await text(readOutcome({ ...cut, format: 'safetensors' })), /f.safetensors/);
  }
});

test('zstd: every truncation is an error', async () => {
  const whole = readFileSync(join(fixtures, 'f8.npy.zst'));
  for (let length = 4; length < whole.length; length++) {
    const got = await text(
      readOutcome({ paths: [file('z.npy.zst', whole.subarray(0, length))], format: 'npy' }),
    );
    assert.match(got, /^CORRUPT .*z.npy.zst/, `at ${length}`);
    const flipped = Buffer.from(whole);
    flipped[length]! ^= 1 << (length % 8);
    await readOutcome({ paths: [file('z.npy.zst', flipped)], format: 'npy' });
  }
});
