/**
 * Writes one shard of a version as a dictionary directory of Cube's C++ server, base and deltas
 * merged. Rows that the server would silently lose are refused before anything is written.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { LayerRef, Manifest, TableRef } from '../../lib/core/manifest.ts';
import { computeRowBytes, decodeRows } from '../../lib/core/row-codec.ts';
import { CubeDictWriter } from '../../lib/store/cube-dict-writer.ts';
import type { RowBatch } from '../../lib/store/layer-file.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import { KeySet } from './key-set.ts';
import { SeekSample } from './seek-sample.ts';

/** The C++ server returns longer values as missing (its `_max_val_size`). */
const VALUE_BYTES_MAX = 1024;

/** A C++ server has one table. @throws CubeError INVALID_ARGUMENT, TOO_LARGE, UNSUPPORTED */
export function selectExportedTable(manifest: Manifest, name: string | undefined): TableRef {
  const { tables, version } = manifest;
  const known = tables.map((table) => table.name).join(', ');
  const table =
    tables.find((candidate) => candidate.name === name) ??
    (name === undefined && tables.length === 1 ? tables[0] : undefined);
  if (table === undefined) {
    const text = `version ${version} has tables ${known}; choose the one to deploy with --table`;
    throw new CubeError('INVALID_ARGUMENT', text);
  }
  if (table.dtype !== 'bytes' && 4 * table.dim > VALUE_BYTES_MAX)
    throwValueTooLong(4 * table.dim, table.name);
  for (const [shard, layers] of table.shards.entries()) {
    if (layers.some(({ rows }) => rows > 0)) continue;
    throw new CubeError(
      'UNSUPPORTED',
      `shard ${shard} of ${version} has no rows; whether a C++ server loaded it cannot be verified`,
    );
  }
  return table;
}

function throwValueTooLong(bytes: number, what: string): never {
  throw new CubeError(
    'TOO_LARGE',
    `${what} has values of ${bytes} bytes; the C++ server returns values over ` +
      `${VALUE_BYTES_MAX} bytes as missing`,
  );
}

/**
 * @param paths the files of the shard's layers, base first
 * @param folder must not exist; complete when this returns
 * @returns keys to look up, with the values that the server must return
 */
export function exportShard(
  table: TableRef,
  shard: number,
  paths: readonly string[],
  folder: string,
  sampleSize: number,
): SeekSample {
  const writer = new CubeDictWriter(folder);
  const sample = new SeekSample(sampleSize);
  try {
    mergeNewestFirst(table, table.shards[shard]!, paths, { writer, sample });
    if (writer.entries === 0) {
      throw new CubeError('UNSUPPORTED', `shard ${shard}: its deltas delete all of its rows`);
    }
    writer.finish();
    return sample;
  } catch (error) {
    writer.abort();
    throw error;
  }
}

interface ExportTargets {
  readonly writer: CubeDictWriter;
  readonly sample: SeekSample;
}

/** Newer layers first: the first value of a key is written, later ones are skipped. */
function mergeNewestFirst(
  table: TableRef,
  layers: readonly LayerRef[],
  paths: readonly string[],
  { writer, sample }: ExportTargets,
): void {
  const seen = new KeySet();
  for (let depth = layers.length - 1; depth >= 0; depth--) {
    const path = paths[depth]!;
    // The keys of the base, the last layer, are distinct and need not be remembered.
    const remembers = depth > 0;
    sample.beginLayer(layers[depth]!.rows, depth === layers.length - 1);
    for (const batch of readLayerRows(path)) {
      const values = new BatchValues(table, batch);
      for (let i = 0; i < batch.count; i++) {
        const low = batch.keys[2 * i]!;
        const high = batch.keys[2 * i + 1]!;
        if (remembers ? !seen.add(low, high) : seen.has(low, high)) continue;
        const value = values.valueAt(i);
        writer.add(low, high, value);
        sample.offerPresent(low, high, value);
      }
    }
    if (!remembers) continue;
    for (const keys of readDeletedKeys(path)) {
      for (let i = 0; i < keys.length; i += 2) {
        if (seen.add(keys[i]!, keys[i + 1]!)) sample.offerAbsent(keys[i]!, keys[i + 1]!);
      }
    }
  }
}

/** The values of a batch in Cube's format: bytes unchanged, rows as f32. */
class BatchValues {
  readonly #batch: RowBatch;
  readonly #bytes: Uint8Array;
  readonly #rowBytes: number;
  readonly #table: TableRef;

  constructor(table: TableRef, batch: RowBatch) {
    const { dtype, dim } = table;
    this.#table = table;
    this.#batch = batch;
    this.#rowBytes = 4 * dim;
    const isStored =
      dtype === 'bytes' || (dtype === 'f32' && computeRowBytes(dtype, dim) === 4 * dim);
    this.#bytes = isStored
      ? batch.rows
      : new Uint8Array(decodeRows(dtype, batch.rows, dim, batch.count).buffer);
  }

  valueAt(i: number): Uint8Array {
    const { ends, keys } = this.#batch;
    if (ends === undefined)
      return this.#bytes.subarray(i * this.#rowBytes, (i + 1) * this.#rowBytes);
    const value = this.#bytes.subarray(i === 0 ? 0 : ends[i - 1]!, ends[i]!);
    if (value.length > VALUE_BYTES_MAX) {
      throwValueTooLong(value.length, `table ${this.#table.name}, key ${keyToBigint(keys, i)}`);
    }
    return value;
  }
}
