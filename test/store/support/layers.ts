/** Temporary folders, random tables, manifests, and expected lookups for tests of the store. */
import assert from 'node:assert/strict';
import { mkdtempSync, rmSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import type { TestContext } from 'node:test';
import { computeShard, setKey } from '../../../lib/core/keys.ts';
import type { Manifest, TableRef } from '../../../lib/core/manifest.ts';
import { type WrittenLayer, writeLayer } from '../../../lib/store/layer-file.ts';
import { LookupBatch } from '../../../lib/store/lookup-batch.ts';
import type { ResidentStore } from '../../../lib/store/resident-store.ts';
import type { ResidentTable } from '../../../lib/store/resident-table.ts';

export function temporaryFolder(context: TestContext): string {
  const folder = mkdtempSync(join(tmpdir(), 'hypercube-store-'));
  context.after(() => rmSync(folder, { recursive: true, force: true }));
  return folder;
}

export interface TestTable {
  readonly name: string;
  readonly dim: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  readonly keys: readonly bigint[];
}

/** The row of a key: different for every key, version and element, and never zero. */
export function createRow(key: bigint, dim: number, salt = 0): Float32Array {
  const base = Number(key % 1_000_003n) + salt * 0.25 + 1;
  return Float32Array.from({ length: dim }, (_, i) => base + i * 1_000_003);
}

export function packKeys(keys: readonly bigint[]): Uint32Array {
  const packed = new Uint32Array(2 * keys.length);
  keys.forEach((key, i) => {
    setKey(packed, i, key);
  });
  return packed;
}

export function createLayerPath(folder: string): (table: string, contentId: string) => string {
  return (table, contentId) => join(folder, table, `${contentId}.cube`);
}

export function writeTable(
  folder: string,
  table: TestTable,
  options: { salt?: number; segmentBytesMax?: number; parentContentId?: string } = {},
): WrittenLayer {
  const rows = new Float32Array(table.keys.length * table.dim);
  table.keys.forEach((key, i) => {
    rows.set(createRow(key, table.dim, options.salt), i * table.dim);
  });
  return writeLayer(
    {
      table: table.name,
      dtype: 'f32',
      dim: table.dim,
      shardIndex: table.shardIndex,
      shardNum: table.shardNum,
      keys: packKeys(table.keys),
      rows: new Uint8Array(rows.buffer),
      ...(options.parentContentId && { parentContentId: options.parentContentId }),
    },
    (contentId) => createLayerPath(folder)(table.name, contentId),
    options.segmentBytesMax,
  );
}

/** The manifest entry of a table with one written shard; other shards name an absent layer. */
export function tableRef(
  table: TestTable,
  layer: WrittenLayer,
  defaultRow: number[] = [],
): TableRef {
  const { contentId, bytes, sha256, rows } = layer;
  const written = { contentId, kind: 'base', bytes, sha256, rows } as const;
  const absent = { ...written, contentId: 'f'.repeat(32) };
  return {
    name: table.name,
    dim: table.dim,
    dtype: 'f32',
    rows,
    defaultRow,
    shardNum: table.shardNum,
    shards: Array.from({ length: table.shardNum }, (_, shard) =>
      shard === table.shardIndex ? [written] : [absent],
    ),
  };
}

export function createManifest(version: string, tables: readonly TableRef[]): Manifest {
  const hash = { scheme: 'raw', seed: 0n, modulo: 0n } as const;
  return { bundle: 'test', version, files: [], hash, slots: [], tables };
}

/** A table of a version of bundle `test` that the store has loaded. */
export function getLoadedTable(store: ResidentStore, version: string, name: string): ResidentTable {
  const table = store.version('test', version)?.table(name);
  assert.ok(table !== undefined, `version ${version} has no loaded table ${name}`);
  return table;
}

export interface LookupResult {
  readonly hits: number;
  readonly rows: Float32Array;
  readonly found: readonly boolean[];
}

/** A lookup through arrays that start at odd places, as network buffers do. */
export function lookup(table: ResidentTable, keys: readonly bigint[], offset = 0): LookupResult {
  const count = keys.length;
  const packed = new Uint8Array(8 * count + offset);
  packed.set(new Uint8Array(packKeys(keys).buffer), offset);
  const rows = new Uint8Array(count * table.rowBytes + 2 * offset).fill(0xee);
  const found = new Uint8Array(Math.ceil(count / 8) + 2 * offset).fill(0xee);
  const hits = table.lookup(
    new LookupBatch({
      keys: packed,
      keysAt: offset,
      count,
      rows,
      rowsAt: offset,
      found,
      foundAt: offset,
    }),
  );
  const untouched = [...rows.subarray(0, offset), ...rows.subarray(rows.length - offset)];
  untouched.push(...found.subarray(0, offset), ...found.subarray(found.length - offset));
  if (offset > 0 && untouched.some((byte) => byte !== 0xee)) {
    throw new Error('the lookup wrote outside its range');
  }
  return {
    hits,
    rows: new Float32Array(rows.slice(offset, rows.length - offset).buffer),
    found: keys.map((_, i) => ((found[offset + (i >> 3)]! >> (i & 7)) & 1) === 1),
  };
}

/** What a lookup must answer, from a Map. */
export function expectedLookup(
  table: TestTable,
  defaultRow: readonly number[],
  keys: readonly bigint[],
  salt = 0,
): LookupResult | { stranger: number } {
  const known = new Set(table.keys);
  const rows = new Float32Array(keys.length * table.dim);
  const found = keys.map((key) => known.has(key));
  const packed = packKeys(keys);
  for (const [i, key] of keys.entries()) {
    const shard = computeShard(packed[2 * i]!, packed[2 * i + 1]!, table.shardNum);
    if (!found[i] && shard !== table.shardIndex) return { stranger: i };
    rows.set(found[i] ? createRow(key, table.dim, salt) : defaultRow, i * table.dim);
  }
  return { hits: found.filter(Boolean).length, rows, found };
}
