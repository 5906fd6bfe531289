/**
 * Reads a table's inputs once and splits them by shard and key range, in memory where it all fits. What went to disk is
 * written down when it is whole, so that a build that was killed later does not read its inputs again.
 */
import { join } from 'node:path';
import { JsonReader } from '../../lib/core/json.ts';
import { SHA256_PATTERN } from '../../lib/core/names.ts';
import {
  fileBytes,
  fileExists,
  makeFolder,
  readText,
  removePath,
  replaceFile,
} from '../../lib/platform/files.ts';
import type { Progress } from '../../lib/platform/progress.ts';
import { ContentDigest } from './content-digest.ts';
import { RecordStore, rangeBitsFor } from './record-store.ts';
import { OLD_SIDE, RECORD_HEAD_WORDS, type RecordRun } from './records.ts';
import type { InputBatch, TableInput } from './table-input.ts';

/** Of an input that does not say how large it is: so many ranges do for a hundred times the memory. */
const UNKNOWN_BYTES_FACTOR = 64;
const STATE_FILE = 'partition.json';

export interface PartitionRequest {
  readonly inputs: readonly TableInput[];
  /** The old side of a comparison. */
  readonly oldInputs: readonly TableInput[];
  readonly shardNum: number;
  /** The shards to keep, ascending. */
  readonly shards: readonly number[];
  readonly folder: string;
  readonly budgetBytes: number;
  /** Bytes of records of one range that a thread can hold. */
  readonly rangeBytes: number;
  /** Bytes of records of one shard that can be built from memory. */
  readonly shardBytesMax: number;
}

export interface Partition {
  /** Digest of all that was read. */
  readonly inputs: string;
  readonly rangeBits: number;
  /** Records read, of all shards. */
  readonly rows: number;
  readonly spilled: boolean;
  readonly shards: ReadonlyMap<number, readonly RecordRun[]>;
}

function estimateBytes(inputs: readonly TableInput[], budgetBytes: number): number {
  let bytes = 0;
  for (const { rows, rowWords, bytes: size } of inputs) {
    if (rows !== undefined && rowWords > 0) bytes += rows * 4 * (RECORD_HEAD_WORDS + rowWords);
    else bytes += size === undefined ? UNKNOWN_BYTES_FACTOR * budgetBytes : 4 * size;
  }
  return bytes;
}

export async function partition(request: PartitionRequest, progress: Progress): Promise<Partition> {
  const kept = keptPartition(request);
  if (kept !== undefined) return kept;
  const { inputs, oldInputs, shardNum, shards, folder, budgetBytes, rangeBytes } = request;
  removePath(folder);
  makeFolder(folder);
  const total = estimateBytes([...oldInputs, ...inputs], budgetBytes);
  const expected = (total * shards.length) / shardNum;
  const fits = expected < 0.95 * budgetBytes && expected / shards.length < request.shardBytesMax;
  const rangeBits = fits ? 0 : rangeBitsFor(shards.length, expected, rangeBytes);
  // What goes by way of the disk needs a buffer only, and the engine frees it late.
  const held = fits ? budgetBytes : budgetBytes / 2;
  const store = new RecordStore({ shardNum, shards, rangeBits, budgetBytes: held, folder });
  const digest = new ContentDigest();
  let rows = 0;
  for (const [side, flags] of [
    [oldInputs, OLD_SIDE],
    [inputs, 0],
  ] as const) {
    for (const input of side) {
      for await (const batch of input.batches()) {
        digest.add(batch);
        addBatch(store, batch, input.rowWords, flags);
        rows += batch.keys.length / 2;
        progress.update(rows);
      }
    }
  }
  const tooLarge = store.shardBytes() > request.shardBytesMax;
  const spilled = store.spilled || tooLarge;
  const runs = store.finish(spilled ? 'in files' : 'in memory');
  const byShard = new Map(shards.map((shard, slot) => [shard, runs[slot]!]));
  const done = { inputs: digest.digest(), rangeBits, rows, spilled, shards: byShard };
  if (spilled) keepPartition(folder, done);
  return done;
}

function addBatch(store: RecordStore, batch: InputBatch, rowWords: number, flags: number): void {
  const { keys, rows, values, ends, deletedKeys } = batch;
  if (values !== undefined && ends !== undefined) store.addValues(keys, values, ends, flags);
  else if (rows !== undefined) store.addRows(keys, rows, rowWords, flags);
  if (deletedKeys !== undefined) store.addDeleted(deletedKeys, flags);
}

/** The records of a shard whose part is written are of no use. */
export function forgetShard(runs: readonly RecordRun[]): void {
  for (const { path } of runs) if (path !== undefined) removePath(path);
}

function keepPartition(folder: string, done: Partition): void {
  const shards = [...done.shards].map(([shard, runs]) => ({
    shard,
    ranges: runs.map(({ count, words }) => [count, words]),
  }));
  const { inputs, rangeBits, rows } = done;
  replaceFile(join(folder, STATE_FILE), JSON.stringify({ inputs, rangeBits, rows, shards }));
}

/** What an earlier run left, when it is whole and has every shard that is wanted. */
function keptPartition({ folder, shards: wanted }: PartitionRequest): Partition | undefined {
  const path = join(folder, STATE_FILE);
  if (!fileExists(path)) return undefined;
  const json = JsonReader.parse(readText(path), path);
  const shards = new Map<number, RecordRun[]>();
  for (const item of json.field('shards').items()) {
    const shard = item.field('shard').integer(0);
    if (!wanted.includes(shard)) continue;
    const runs = item
      .field('ranges')
      .items()
      .map((range, i): RecordRun => {
        const [count, words] = range.items({ min: 2, max: 2 }).map((number) => number.integer(0));
        const file = join(folder, `${shard}.${i}.records`);
        const run = { count: count!, words: words! };
        return words === 0 ? { ...run, pieces: [] } : { ...run, path: file };
      });
    const whole = runs.every(
      ({ path: file, words }) =>
        file === undefined || (fileExists(file) && fileBytes(file) === 4 * words),
    );
    if (!whole) return undefined;
    shards.set(shard, runs);
  }
  if (shards.size < wanted.length) return undefined;
  return {
    inputs: json.field('inputs').string(SHA256_PATTERN),
    rangeBits: json.field('rangeBits').integer(0, 32),
    rows: json.field('rows').integer(0),
    spilled: true,
    shards,
  };
}
