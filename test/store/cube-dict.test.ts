import assert from 'node:assert/strict';
import { mkdtempSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import { type CubeDict, readCubeDict } from '../../lib/store/cube-dict.ts';
import { type Entry, floats, writeCubeDict } from './support/cube-dicts.ts';

const root = mkdtempSync(join(tmpdir(), 'hypercube-dict-'));
after(() => rmSync(root, { recursive: true }));
let folders = 0;

function write(parts: readonly (readonly Entry[])[]): string {
  const folder = join(root, String(folders++));
  writeCubeDict(folder, parts);
  return folder;
}

function asMap({ keys, values, ends }: CubeDict): Map<bigint, string> {
  return new Map(
    Array.from(ends, (end, i): [bigint, string] => {
      const value = values.subarray(ends[i - 1] ?? 0, end);
      return [keyToBigint(keys, i), Buffer.from(value).toString('hex')];
    }),
  );
}

test('a dictionary and its patches read as a map to which the entries were put in order', () => {
  const entry = fc.tuple(
    fc.oneof(fc.bigInt({ min: 0n, max: 9n }), fc.bigInt({ min: 0n, max: 2n ** 64n - 1n })),
    fc.uint8Array({ maxLength: 20 }),
  );
  const parts = fc.array(fc.array(entry, { maxLength: 12 }), { maxLength: 4 });
  fc.assert(
    fc.property(parts, (written) => {
      const dict = readCubeDict(write(written));
      const expected = new Map(
        written.flat().map(([key, value]) => [key, Buffer.from(value).toString('hex')]),
      );
      assert.deepEqual(asMap(dict), expected);
      const lengths = new Set([...expected.values()].map((value) => value.length / 2));
      assert.equal(dict.valueBytes, lengths.size === 1 ? [...lengths][0] : undefined);
      assert.equal(dict.indexFiles.length, written.length);
    }),
    { numRuns: 60 },
  );
});

test('the example of Cube: bytes of its builder for keys 0, 1, 2 with ten floats', () => {
  const value = floats(...Array.from({ length: 10 }, (_, i) => i));
  const folder = write([[0n, 1n, 2n].map((key): Entry => [key, value])]);
  assert.equal(readFileSync(join(folder, 'data.n')).toString('hex'), '0100000084000000');
  assert.equal(
    readFileSync(join(folder, 'index.n')).toString('hex'),
    '0000000003000000010000003000000000000000',
  );
  assert.equal(
    readFileSync(join(folder, 'index.0')).toString('hex').slice(32, 64),
    '01000000000000002c00000000000000',
  );
  assert.equal(readCubeDict(folder).valueBytes, 40);
});

test('what is missing, cut, or does not fit together is an error, never a missing key', () => {
  const entries: Entry[] = [1n, 2n, 3n].map((key) => [key, floats(Number(key), 0)]);
  const damage: [string, (bytes: Buffer) => Buffer | undefined, RegExp][] = [
    ['index.n', () => undefined, /no such file/],
    ['data.n', () => undefined, /no such file/],
    ['index.1', () => undefined, /index\.1: no such file/],
    ['data.1', () => undefined, /data\.1: no such file/],
    ['index.0', (bytes) => bytes.subarray(16), /has 32 bytes, 48 are listed/],
    ['data.0', (bytes) => bytes.subarray(1), /are listed/],
    ['data.0', (bytes) => Buffer.concat([bytes, bytes]), /are listed/],
    ['index.n', (bytes) => bytes.subarray(0, 11), /too few/],
    ['index.n', (bytes) => Buffer.concat([bytes, Buffer.alloc(8)]), /should list 2 files/],
    ['index.n', (bytes) => withByte(bytes, 0, 1), /index type 1/],
    ['index.n', (bytes) => withByte(bytes, 4, 9), /for 9 entries/],
    ['index.n', (bytes) => withByte(bytes, 11, 0xff), /should list/],
    ['data.n', (bytes) => withByte(bytes, 3, 0xff), /should list/],
    ['data.0', (bytes) => withByte(bytes, 0, 200), /record at byte 0 does not end/],
    ['data.0', (bytes) => withByte(bytes, 0, 3), /record at byte 0 does not end/],
    ['data.0', (bytes) => withByte(bytes, 0, 24), /names byte 12, where no record starts/],
    ['index.0', (bytes) => withByte(bytes, 8, 1), /names byte 1, where no record starts/],
    ['index.0', (bytes) => withByte(bytes, 11, 0x80), /where no record starts/],
    ['index.0', (bytes) => withByte(bytes, 12, 2), /names data\.2, of 2 files/],
  ];
  for (const [name, change, message] of damage) {
    const folder = write([entries, entries.slice(2)]);
    const path = join(folder, name);
    const bytes = change(readFileSync(path));
    if (bytes === undefined) renameSync(path, `${path}.gone`);
    else writeFileSync(path, bytes);
    const reading = (): CubeDict => readCubeDict(folder);
    assert.throws(reading, (error: CubeError) => {
      assert.ok(error instanceof CubeError, `${name}: ${error}`);
      assert.match(error.message, message, name);
      return true;
    });
  }
});

function withByte(bytes: Buffer, at: number, value: number): Buffer {
  const changed = Buffer.from(bytes);
  changed[at] = value;
  return changed;
}

test('an index of more entries than are read at once is refused before it is read', () => {
  const folder = write([]);
  const list = new DataView(new ArrayBuffer(20));
  list.setUint32(4, 2 ** 28 + 1, true);
  list.setUint32(8, 1, true);
  list.setBigUint64(12, 16n * (2n ** 28n + 1n), true);
  writeFileSync(join(folder, 'index.n'), new Uint8Array(list.buffer));
  assert.throws(() => readCubeDict(folder), { code: 'TOO_LARGE' });
});
