/** Layers of every kind, layout and dtype for property tests, with their content as a Map. */
import fc from 'fast-check';
import { keyToBigint } from '../../../lib/core/keys.ts';
import type { LayerInput } from '../../../lib/core/layer-input.ts';
import type { TableDtype } from '../../../lib/core/manifest.ts';
import { encodeRows } from '../../../lib/core/row-codec.ts';
import { readDeletedKeys, readLayerRows } from '../../../lib/store/layer-file.ts';
import { packKeys } from './layers.ts';

const U64: bigint = 2n ** 64n;
const DTYPES: readonly TableDtype[] = ['f32', 'f16', 'bf16', 'i8', 'bytes'];

/** Ordinary keys and edge cases: ends of the range, neighbours, keys one bit apart. */
export const arbitraryKey: fc.Arbitrary<bigint> = fc.oneof(
  fc.bigInt({ min: 0n, max: U64 - 1n }),
  fc.bigInt({ min: 0n, max: 300n }),
  fc.bigInt({ min: U64 - 300n, max: U64 - 1n }),
  fc.integer({ min: 0, max: 63 }).map((bit) => 1n << BigInt(bit)),
);

/** Shard and row shape shared by the layers of a chain. */
export interface AnyTable {
  readonly dtype: TableDtype;
  readonly dim: number;
  readonly shardIndex: number;
  readonly shardNum: number;
}

export interface AnyLayer {
  readonly keys: readonly bigint[];
  readonly deleted: readonly bigint[];
  readonly indexed: boolean;
  readonly segmentBytesMax: number | undefined;
  /** Makes the rows of this layer differ from those of others. */
  readonly salt: number;
}

export const arbitraryTable: fc.Arbitrary<AnyTable> = fc
  .record({
    dtype: fc.constantFrom(...DTYPES),
    dim: fc.oneof(fc.integer({ min: 1, max: 40 }), fc.constantFrom(2, 4, 5, 6, 8, 10, 16, 32)),
    shardNum: fc.constantFrom(1, 2, 3, 1000),
    shard: fc.nat(),
  })
  .map(({ dtype, dim, shardNum, shard }) => ({
    dtype,
    shardNum,
    shardIndex: shard % shardNum,
    dim: dtype === 'bytes' ? 0 : dim,
  }));

export function moveKeyToShard(key: bigint, { shardIndex, shardNum }: AnyTable): bigint {
  const moved = key - (key % BigInt(shardNum)) + BigInt(shardIndex);
  return moved < U64 ? moved : BigInt(shardIndex);
}

const someKeys: fc.Arbitrary<bigint[]> = fc.oneof(
  fc.array(arbitraryKey, { maxLength: 150 }),
  fc
    .record({
      first: arbitraryKey,
      step: fc.bigInt({ min: 1n, max: 9n }),
      count: fc.nat({ max: 150 }),
    })
    .map(({ first, step, count }) =>
      Array.from({ length: count }, (_, i) => first + BigInt(i) * step).filter((k) => k < U64),
    ),
);

/** @param table all keys belong to its shard. A base deletes nothing. */
export function arbitraryLayer(table: AnyTable, isDelta: boolean): fc.Arbitrary<AnyLayer> {
  return fc
    .record({
      keys: someKeys,
      deleted: fc.array(arbitraryKey, { maxLength: isDelta ? 60 : 0 }),
      indexed: fc.boolean(),
      segmentBytesMax: fc.constantFrom<(number | undefined)[]>(undefined, 2000, 700),
      salt: fc.nat({ max: 1000 }),
    })
    .map((layer) => {
      const keys = new Set(layer.keys.map((key) => moveKeyToShard(key, table)));
      const deleted = new Set(layer.deleted.map((key) => moveKeyToShard(key, table)));
      return {
        ...layer,
        keys: [...keys],
        deleted: [...deleted].filter((key) => !keys.has(key)),
        // A segment must have room for a few rows.
        segmentBytesMax: layer.segmentBytesMax && layer.segmentBytesMax + 8 * table.dim,
      };
    });
}

/** The elements of a key's row: exact in f16 and bf16, and different between keys and layers. */
function createElements(key: bigint, dim: number, salt: number): number[] {
  const seed = Number((key ^ (key >> 32n)) & 0xffff_ffffn) + salt * 7;
  return Array.from({ length: dim }, (_, i) => ((seed + i * 31) % 255) / 8 - 16);
}

/** The bytes stored for a key: an encoded row, or a value of some length (often 0). */
export function storedBytes({ dtype, dim }: AnyTable, key: bigint, salt: number): Uint8Array {
  if (dtype !== 'bytes') {
    return encodeRows(dtype, Float32Array.from(createElements(key, dim, salt)), dim).rows;
  }
  const length = Math.max(0, Number((key + BigInt(salt)) % 37n) - 8);
  return Uint8Array.from({ length }, (_, i) => Number(key % 251n) + salt + i);
}

function concatenate(parts: readonly Uint8Array[]): Uint8Array {
  const all = new Uint8Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

export function createLayerInput(
  table: AnyTable,
  layer: AnyLayer,
  parentContentId = '',
): LayerInput {
  const parts = layer.keys.map((key) => storedBytes(table, key, layer.salt));
  const common = {
    table: 't',
    shardIndex: table.shardIndex,
    shardNum: table.shardNum,
    parentContentId,
    keys: packKeys(layer.keys),
    deleted: packKeys(layer.deleted),
    ...(layer.indexed && { layout: 'indexed' as const }),
  };
  const { dtype, dim } = table;
  const bytes = concatenate(parts);
  if (dtype !== 'bytes') return { ...common, dtype, dim, rows: bytes };
  let end = 0;
  const ends = Uint32Array.from(parts, (part) => {
    end += part.length;
    return end;
  });
  return { ...common, dtype, values: bytes, ends };
}

/** Key → hex of its stored bytes, from the layer's input. */
export function formatExpectedRows(table: AnyTable, { keys, salt }: AnyLayer): Map<bigint, string> {
  const hex = (key: bigint): string => Buffer.from(storedBytes(table, key, salt)).toString('hex');
  return new Map(keys.map((key) => [key, hex(key)]));
}

/** Key → hex of its stored bytes, as read from the file. */
export function readAllRows(path: string): Map<bigint, string> {
  const read = new Map<bigint, string>();
  for (const { keys, rows, count, ends } of readLayerRows(path)) {
    const rowBytes = rows.length / count;
    for (let i = 0; i < count; i++) {
      const start = ends === undefined ? i * rowBytes : i === 0 ? 0 : ends[i - 1]!;
      const end = ends === undefined ? start + rowBytes : ends[i]!;
      read.set(keyToBigint(keys, i), Buffer.from(rows.subarray(start, end)).toString('hex'));
    }
  }
  return read;
}

export function readDeleted(path: string): Set<bigint> {
  const read = new Set<bigint>();
  for (const keys of readDeletedKeys(path)) {
    for (let i = 0; i < keys.length / 2; i++) read.add(keyToBigint(keys, i));
  }
  return read;
}
