/** Writers of the input formats with the bytes of the original tools, and readers for tests. */
import { mkdirSync, mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after } from 'node:test';
import fc from 'fast-check';
import { CubeError } from '../../../../../lib/core/errors.ts';
import { keyToBigint } from '../../../../../lib/core/keys.ts';
import { encodeNpyHeader } from '../../../../../lib/core/npy.ts';
import { openSources } from '../../../../../tools/cube-builder/sources/open-sources.ts';
import type { InputSpec, RowSource } from '../../../../../tools/cube-builder/sources/row-source.ts';

export interface TestRow {
  readonly key: bigint;
  readonly row: Float32Array;
}

/** Creates a folder that is removed after the test file. */
export function createTestFolder(): string {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-sources-'));
  after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

/** Tables with any 64-bit keys and rows of one width. */
export const TABLES: fc.Arbitrary<TestRow[]> = fc.integer({ min: 1, max: 12 }).chain((dim) =>
  fc.array(
    fc.record({
      key: fc.oneof(
        fc.bigInt({ min: 0n, max: 2n ** 64n - 1n }),
        fc.constantFrom(0n, 1n, 2n ** 32n, 2n ** 53n, 2n ** 63n, 2n ** 64n - 1n),
      ),
      row: fc.float32Array({ minLength: dim, maxLength: dim }),
    }),
    { minLength: 1, maxLength: 40 },
  ),
);

/** Formats rows as `key: numbers`, in order, to compare tables. */
export function formatRows(rows: readonly TestRow[]): string[] {
  return rows.map(({ key, row }) => `${key}: ${[...row].map((x) => (x === 0 ? 0 : x)).join(' ')}`);
}

export async function readRows(source: RowSource): Promise<TestRow[]> {
  const rows: TestRow[] = [];
  for await (const batch of source.batches()) {
    if (!('rows' in batch)) throw new Error('values, not rows');
    for (let i = 0; i < batch.count; i++) {
      const row = batch.rows.slice(i * source.dim, (i + 1) * source.dim);
      rows.push({ key: keyToBigint(batch.keys, i), row });
    }
  }
  return rows;
}

export async function readValues(source: RowSource): Promise<[bigint, Uint8Array][]> {
  const values: [bigint, Uint8Array][] = [];
  for await (const batch of source.batches()) {
    if (!('values' in batch)) throw new Error('rows, not values');
    for (let i = 0; i < batch.count; i++) {
      const start = i === 0 ? 0 : batch.ends[i - 1];
      values.push([keyToBigint(batch.keys, i), batch.values.slice(start, batch.ends[i])]);
    }
  }
  return values;
}

export async function openOne(spec: InputSpec): Promise<RowSource> {
  const sources = await openSources(spec);
  if (sources.length !== 1) throw new Error(`${sources.length} sources`);
  return sources[0] as RowSource;
}

/** Returns the rows of the input, or code and message of the CubeError. */
export async function readOutcome(spec: InputSpec): Promise<string[] | string> {
  try {
    const source = await openOne(spec);
    if (source.dim > 0) return formatRows(await readRows(source));
    return (await readValues(source)).map(([key, value]) => `${key}: ${hex(value)}`);
  } catch (error) {
    if (!(error instanceof CubeError) || error.code === 'INTERNAL') throw error;
    return `${error.code} ${error.message}`;
  }
}

function hex(bytes: Uint8Array): string {
  return Buffer.from(bytes).toString('hex');
}

export const SYNC: Buffer = Buffer.from('a1b2c3d4e5f60718293a4b5c6d7e8f90', 'hex');

export function encodeFloats(row: Float32Array): Buffer {
  const bytes = Buffer.alloc(4 * row.length);
  row.forEach((x, i) => {
    bytes.writeFloatLE(x, 4 * i);
  });
  return bytes;
}

/** As Cube's tools write it: a sync marker after every `syncBytes` of records. */
export function encodeSequenceFile(
  records: readonly [bigint, Uint8Array][],
  syncBytes: number = 2000,
): Buffer {
  const className = Buffer.from('"org.apache.hadoop.io.BytesWritable', 'latin1');
  const parts = [Buffer.from('SEQ\x06', 'latin1'), className, className, Buffer.alloc(6), SYNC];
  let since = 0;
  for (const [key, value] of records) {
    if (since >= syncBytes) {
      parts.push(Buffer.from('ffffffff', 'hex'), SYNC);
      since = 0;
    }
    const head = Buffer.alloc(16);
    head.writeUInt32BE(8 + value.length, 0);
    head.writeUInt32BE(8, 4);
    head.writeBigUInt64LE(key, 8);
    parts.push(head, Buffer.from(value));
    since += 8 + value.length;
  }
  return Buffer.concat(parts);
}

/** The files of a dict directory; the builds share one numbering. */
export function createDictFiles(
  builds: readonly (readonly [bigint, Uint8Array][])[],
  dataBytesMax: number = 2 ** 30,
): Map<string, Buffer> {
  const files = new Map<string, Buffer>();
  const data: Buffer[] = [];
  const indexes = builds.map((records) => {
    let parts: Buffer[] = [];
    let bytes = 0;
    const first = data.length;
    const index = records.map(([key, value]) => {
      const record = Buffer.alloc(4 + value.length);
      record.writeUInt32LE(4 + value.length);
      record.set(value, 4);
      if (bytes + record.length > dataBytesMax) {
        data.push(Buffer.concat(parts));
        parts = [];
        bytes = 0;
      }
      const entry = Buffer.alloc(16);
      entry.writeBigUInt64LE(key, 0);
      entry.writeBigUInt64LE((BigInt(data.length) << 32n) | BigInt(bytes), 8);
      parts.push(record);
      bytes += record.length;
      return entry;
    });
    if (parts.length > 0 || data.length === first) data.push(Buffer.concat(parts));
    return Buffer.concat(index);
  });
  const total = indexes.reduce((sum, index) => sum + index.length / 16, 0);
  files.set(
    'index.n',
    encodeIndexList(
      total,
      indexes.map((index) => index.length),
    ),
  );
  files.set('data.n', encodeDataList(data.map((file) => file.length)));
  indexes.forEach((index, i) => {
    files.set(`index.${i}`, index);
  });
  data.forEach((file, j) => {
    files.set(`data.${j}`, file);
  });
  return files;
}

export function encodeIndexList(total: number, lengths: readonly number[]): Buffer {
  const list = Buffer.alloc(12 + 8 * lengths.length);
  list.writeUInt32LE(total, 4);
  list.writeUInt32LE(lengths.length, 8);
  lengths.forEach((length, i) => {
    list.writeBigUInt64LE(BigInt(length), 12 + 8 * i);
  });
  return list;
}

export function encodeDataList(lengths: readonly number[]): Buffer {
  const list = Buffer.alloc(4 + 4 * lengths.length);
  list.writeUInt32LE(lengths.length, 0);
  lengths.forEach((length, j) => {
    list.writeUInt32LE(length, 4 + 4 * j);
  });
  return list;
}

export function writeFolder(folder: string, files: ReadonlyMap<string, Uint8Array>): string {
  rmSync(folder, { recursive: true, force: true });
  mkdirSync(folder, { recursive: true });
  for (const [name, bytes] of files) writeFileSync(join(folder, name), bytes);
  return folder;
}

export function encodeNpy(
  dtype: 'f2' | 'f4' | 'f8' | 'i8' | 'u8',
  shape: readonly number[],
  data: Uint8Array,
): Buffer {
  return Buffer.concat([encodeNpyHeader(dtype, shape), data]);
}

export function encodeKeys(keys: readonly bigint[]): Buffer {
  return Buffer.from(BigUint64Array.from(keys).buffer);
}

export function encodeRows(rows: readonly TestRow[]): Buffer {
  return Buffer.concat(rows.map(({ row }) => encodeFloats(row)));
}
