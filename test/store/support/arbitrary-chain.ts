/**
 * Random chains of layers of every kind, written to a folder, with a Map of the expected results.
 */
import fc from 'fast-check';
import { computeShard } from '../../../lib/core/keys.ts';
import type { LayerRef, Manifest } from '../../../lib/core/manifest.ts';
import { decodeRows, encodeRows } from '../../../lib/core/row-codec.ts';
import { writeLayer } from '../../../lib/store/layer-file.ts';
import { LookupBatch } from '../../../lib/store/lookup-batch.ts';
import type { ResidentTable } from '../../../lib/store/resident-table.ts';
import {
  type AnyLayer,
  type AnyTable,
  arbitraryKey,
  arbitraryLayer,
  arbitraryTable,
  createLayerInput,
  moveKeyToShard,
  storedBytes,
} from './arbitrary-layer.ts';
import { createLayerPath, createManifest, packKeys } from './layers.ts';

export interface AnyChain {
  readonly table: AnyTable;
  /** A base, then deltas. */
  readonly layers: readonly AnyLayer[];
  readonly defaultRow: readonly number[];
  readonly probes: readonly bigint[];
}

/** Deltas that change the base: every nth key of the base is written again or deleted. */
function overlapping(layer: AnyLayer, base: AnyLayer, every: number): AnyLayer {
  const again = base.keys.filter((_, i) => i % every === 1);
  const keys = new Set([...layer.keys, ...again]);
  const gone = base.keys.filter((key, i) => i % every === 0 && !keys.has(key));
  const deleted = new Set([...layer.deleted.filter((key) => !keys.has(key)), ...gone]);
  return { ...layer, keys: [...keys], deleted: [...deleted] };
}

export function arbitraryChain(deltasMax: number): fc.Arbitrary<AnyChain> {
  return arbitraryTable.chain((table) =>
    fc
      .record({
        base: arbitraryLayer(table, false),
        deltas: fc.array(
          fc.record({ layer: arbitraryLayer(table, true), every: fc.integer({ min: 2, max: 9 }) }),
          { maxLength: deltasMax },
        ),
        withDefault: fc.boolean(),
        probes: fc.array(arbitraryKey, { maxLength: 100 }),
      })
      .map(({ base, deltas, withDefault, probes }) => {
        const layers = [base, ...deltas.map((d) => overlapping(d.layer, base, d.every))];
        const known = layers.flatMap(({ keys, deleted }) => [...keys, ...deleted]);
        return {
          table,
          layers,
          defaultRow: withDefault ? Array.from({ length: table.dim }, (_, i) => i / 3 - 0.5) : [],
          probes: [...probes.map((key) => moveKeyToShard(key, table)), ...known],
        };
      }),
  );
}

/** Key → stored bytes, after the layers were applied to a Map in order. */
export function toExpectedRows({ table, layers }: AnyChain): Map<bigint, Uint8Array> {
  const map = new Map<bigint, Uint8Array>();
  for (const { keys, deleted, salt } of layers) {
    for (const key of deleted) map.delete(key);
    for (const key of keys) map.set(key, storedBytes(table, key, salt));
  }
  return map;
}

/** Writes the layers and returns the manifest of a version with the one table `t`. */
export function writeChain(folder: string, chain: AnyChain, version = '1'): Manifest {
  const { table, layers, defaultRow } = chain;
  const refs: LayerRef[] = [];
  for (const layer of layers) {
    const input = createLayerInput(table, layer, refs.at(-1)?.contentId);
    const path = (contentId: string): string => createLayerPath(folder)('t', contentId);
    const { contentId, bytes, sha256, rows } = writeLayer(input, path, layer.segmentBytesMax);
    const kind = refs.length === 0 ? 'base' : 'delta';
    refs.push({ contentId, kind, bytes, sha256, rows });
  }
  const { dtype, dim, shardNum, shardIndex } = table;
  const absent = { ...refs[0]!, contentId: 'f'.repeat(32) };
  const shards = Array.from({ length: shardNum }, (_, i) => (i === shardIndex ? refs : [absent]));
  const rows = toExpectedRows(chain).size;
  return createManifest(version, [{ name: 't', dim, dtype, rows, defaultRow, shardNum, shards }]);
}

/**
 * Stored bytes per key, or undefined when it is missing; or the index of a missing key of another
 * shard.
 */
export type Answer = (string | undefined)[] | { stranger: number };

const hex = (bytes: Uint8Array): string => Buffer.from(bytes).toString('hex');

/** Expected result of a lookup; missing keys of tables with rows are `default: …`. */
export function computeExpected(chain: AnyChain, keys: readonly bigint[], asF32: boolean): Answer {
  const { table, defaultRow } = chain;
  const { dtype, dim, shardIndex, shardNum } = table;
  const map = toExpectedRows(chain);
  const answered = (stored: Uint8Array): Uint8Array =>
    asF32 && dtype !== 'bytes' ? new Uint8Array(decodeRows(dtype, stored, dim, 1).buffer) : stored;
  const row = new Float32Array(dim);
  row.set(defaultRow);
  let missing: string | undefined;
  if (dtype !== 'bytes') {
    const bytes = asF32 ? new Uint8Array(row.buffer) : encodeRows(dtype, row, dim).rows;
    missing = `default: ${hex(bytes)}`;
  }
  const packed = packKeys(keys);
  const answers: (string | undefined)[] = [];
  for (const [i, key] of keys.entries()) {
    const stored = map.get(key);
    if (
      stored === undefined &&
      computeShard(packed[2 * i]!, packed[2 * i + 1]!, shardNum) !== shardIndex
    ) {
      return { stranger: i };
    }
    answers.push(stored === undefined ? missing : hex(answered(stored)));
  }
  return answers;
}

function keyBytes(keys: readonly bigint[], offset: number): Uint8Array {
  const packed = new Uint8Array(8 * keys.length + offset);
  packed.set(new Uint8Array(packKeys(keys).buffer), offset);
  return packed;
}

/** Looks keys up through unaligned arrays, with the method that the table needs. */
export async function lookUpChain(
  table: ResidentTable,
  keys: readonly bigint[],
  asF32: boolean,
  offset = 0,
): Promise<Answer> {
  if (table.dtype === 'bytes') return askValues(table, keys, offset);
  const count = keys.length;
  const rowBytes = asF32 ? 4 * table.dim : table.rowBytes;
  const rows = new Uint8Array(count * rowBytes + 2 * offset).fill(0xee);
  const found = new Uint8Array(Math.ceil(count / 8) + 2 * offset).fill(0xee);
  const packed = keyBytes(keys, offset);
  const batch = new LookupBatch({
    keys: packed,
    keysAt: offset,
    count,
    asF32,
    rows,
    rowsAt: offset,
    found,
    foundAt: offset,
  });
  const hits = table.onDisk ? await table.lookupAsync(batch) : table.lookup(batch);
  for (const array of [rows, found]) {
    const outside = [...array.subarray(0, offset), ...array.subarray(array.length - offset)];
    if (offset > 0 && outside.some((byte) => byte !== 0xee)) {
      throw new Error('the lookup wrote outside its range');
    }
  }
  if (hits < 0) return { stranger: -1 - hits };
  let seen = 0;
  const answers = keys.map((_, i) => {
    const at = offset + i * rowBytes;
    const bytes = hex(rows.subarray(at, at + rowBytes));
    if (((found[offset + (i >> 3)]! >> (i & 7)) & 1) === 0) return `default: ${bytes}`;
    seen++;
    return bytes;
  });
  if (seen !== hits) throw new Error(`${hits} hits, but ${seen} keys are marked as found`);
  return answers;
}

async function askValues(
  table: ResidentTable,
  keys: readonly bigint[],
  offset: number,
): Promise<Answer> {
  const values = table.findValues(keyBytes(keys, offset), offset, keys.length);
  if (values.hits < 0) return { stranger: -1 - values.hits };
  const target = new Uint8Array(values.bytes + offset);
  if (table.onDisk) await table.copyValuesAsync(values, target, offset);
  else table.copyValues(values, target, offset);
  let at = offset;
  return keys.map((_, i) => {
    const bytes = target.subarray(at, at + values.lengths[i]!);
    at += values.lengths[i]!;
    return ((values.found[i >> 3]! >> (i & 7)) & 1) === 1 ? hex(bytes) : undefined;
  });
}
