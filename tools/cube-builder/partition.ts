/**
 * Reads the inputs of a table once and partitions the rows by shard and key range: in memory if
 * they fit, else in files. A complete partition on disk is recorded in a state file, so that a
 * restarted build does not read its inputs again.
 */

import { join } from 'node:path';
import { requireDefined } from '../../lib/core/errors.ts';
import { JsonReader } from '../../lib/core/json.ts';
import { SHA256_PATTERN } from '../../lib/core/names.ts';
import {
  fileExists,
  getFileBytes,
  makeFolder,
  readText,
  removePath,
  replaceFile,
} from '../../lib/platform/files.ts';
import type { Progress } from '../../lib/platform/progress.ts';
import { ContentDigest } from './content-digest.ts';
import { chooseRangeBits, RecordStore } from './record-store.ts';
import { OLD_INPUT_FLAG, RECORD_HEAD_WORDS, type RecordRun } from './records.ts';
import type { InputBatch, TableInput } from './table-input.ts';

/** Assumed size of inputs of unknown size, as a multiple of the memory budget. */
const UNKNOWN_BYTES_FACTOR = 64;
const STATE_FILE = 'partition.json';

export interface PartitionRequest {
  readonly inputs: readonly TableInput[];
  /** The old rows of a diff; else empty. */
  readonly oldInputs: readonly TableInput[];
  readonly shardNum: number;
  /** The shards to keep, ascending. */
  readonly shards: readonly number[];
  readonly folder: string;
  readonly budgetBytes: number;
  /** Maximum bytes of records of one range, so that a thread can load it. */
  readonly rangeBytes: number;
  /** Maximum bytes of records of one shard that can be built in memory. */
  readonly shardBytesMax: number;
}

export interface Partition {
  /** Digest of all rows read. */
  readonly inputsDigest: string;
  readonly rangeBits: number;
  /** Number of records read for all shards. */
  readonly rows: number;
  readonly spilled: boolean;
  readonly shards: ReadonlyMap<number, readonly RecordRun[]>;
}

/** @throws CubeError INTERNAL if the partition does not have this shard */
export function getShardRuns({ shards }: Partition, shard: number): readonly RecordRun[] {
  return requireDefined(shards.get(shard), `records of shard ${shard}`);
}

function estimateBytes(inputs: readonly TableInput[], budgetBytes: number): number {
  let bytes = 0;
  for (const { rows, rowWords, bytes: size } of inputs) {
    if (rows !== undefined && rowWords > 0) bytes += rows * 4 * (RECORD_HEAD_WORDS + rowWords);
    else bytes += size === undefined ? UNKNOWN_BYTES_FACTOR * budgetBytes : 4 * size;
  }
  return bytes;
}

export async function partitionTable(
  request: PartitionRequest,
  progress: Progress,
): Promise<Partition> {
  const earlier = loadPartition(request);
  if (earlier !== undefined) return earlier;
  const { inputs, oldInputs, shardNum, shards, folder, budgetBytes, rangeBytes } = request;
  removePath(folder);
  makeFolder(folder);
  const total = estimateBytes([...oldInputs, ...inputs], budgetBytes);
  const expected = (total * shards.length) / shardNum;
  const fits = expected < 0.95 * budgetBytes && expected / shards.length < request.shardBytesMax;
  const rangeBits = fits ? 0 : chooseRangeBits(shards.length, expected, rangeBytes);
  // Files need only a write buffer, and the engine frees buffers late.
  const storeBytes = fits ? budgetBytes : budgetBytes / 2;
  const store = new RecordStore({ shardNum, shards, rangeBits, budgetBytes: storeBytes, folder });
  const digest = new ContentDigest();
  let rows = 0;
  for (const [tableInputs, flags] of [
    [oldInputs, OLD_INPUT_FLAG],
    [inputs, 0],
  ] as const) {
    for (const input of tableInputs) {
      for await (const batch of input.batches()) {
        digest.add(batch);
        addBatch(store, batch, input.rowWords, flags);
        rows += batch.keys.length / 2;
        progress.update(rows);
      }
    }
  }
  const tooLarge = store.computeLargestShardBytes() > request.shardBytesMax;
  const spilled = store.hasSpilled || tooLarge;
  const runs = store.finish(spilled ? 'in files' : 'in memory');
  const byShard = new Map(shards.map((shard, slot) => [shard, runs[slot]!]));
  const done = { inputsDigest: digest.digest(), rangeBits, rows, spilled, shards: byShard };
  if (spilled) savePartition(folder, done);
  return done;
}

function addBatch(store: RecordStore, batch: InputBatch, rowWords: number, flags: number): void {
  const { keys, rows, values, ends, deletedKeys } = batch;
  if (values !== undefined && ends !== undefined) store.addValues(keys, values, ends, flags);
  else if (rows !== undefined) store.addRows(keys, rows, rowWords, flags);
  if (deletedKeys !== undefined) store.addDeleted(deletedKeys, flags);
}

/** Deletes the record files of a shard whose layer is written. */
export function removeRecordFiles(runs: readonly RecordRun[]): void {
  for (const { path } of runs) if (path !== undefined) removePath(path);
}

function savePartition(folder: string, done: Partition): void {
  const shards = [...done.shards].map(([shard, runs]) => ({
    shard,
    ranges: runs.map(({ count, words }) => [count, words]),
  }));
  const { inputsDigest, rangeBits, rows } = done;
  replaceFile(
    join(folder, STATE_FILE),
    JSON.stringify({ inputs: inputsDigest, rangeBits, rows, shards }),
  );
}

/** Returns the partition of an earlier run if it is complete and has all requested shards. */
function loadPartition({ folder, shards: requested }: PartitionRequest): Partition | undefined {
  const path = join(folder, STATE_FILE);
  if (!fileExists(path)) return undefined;
  const json = JsonReader.parse(readText(path), path);
  const shards = new Map<number, RecordRun[]>();
  for (const item of json.field('shards').items()) {
    const shard = item.field('shard').integer(0);
    if (!requested.includes(shard)) continue;
    const runs = item
      .field('ranges')
      .items()
      .map((range, i): RecordRun => {
        const [count = 0, words = 0] = range
          .items({ min: 2, max: 2 })
          .map((number) => number.integer(0));
        const file = join(folder, `${shard}.${i}.records`);
        return words === 0 ? { count, words, pieces: [] } : { count, words, path: file };
      });
    const isComplete = runs.every(
      ({ path: file, words }) =>
        file === undefined || (fileExists(file) && getFileBytes(file) === 4 * words),
    );
    if (!isComplete) return undefined;
    shards.set(shard, runs);
  }
  if (shards.size < requested.length) return undefined;
  return {
    inputsDigest: json.field('inputs').string(SHA256_PATTERN),
    rangeBits: json.field('rangeBits').integer(0, 32),
    rows: json.field('rows').integer(0),
    spilled: true,
    shards,
  };
}
