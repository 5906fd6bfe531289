/**
 * From the records of one shard to its layer: in memory when that fits, else by way of a sorted run on disk. The bytes of
 * the layer are the same.
 */
import { join } from 'node:path';
import type { LayerInput } from '../../lib/core/layer-input.ts';
import type { LayerSubject } from '../../lib/core/layer-sections.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import {
  addErrors,
  encodeRows,
  NO_ERRORS,
  type RowDtype,
  type RowErrors,
  rowBytesOf,
} from '../../lib/core/row-codec.ts';
import { fileExists, removePath } from '../../lib/platform/files.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import type { WrittenLayer } from '../../lib/store/section-writer.ts';
import { type DtypeErrors, sampleDtypes } from './dtype-samples.ts';
import { type LoadOptions, loadRange, loadRun } from './range-loader.ts';
import type { RecordRun } from './records.ts';
import {
  keysOf,
  type Resolved,
  type ResolveMode,
  resolveRecords,
  rowsOf,
  valuesOf,
} from './resolve.ts';
import { Scratch } from './scratch.ts';
import { type RunPart, RunWriter, type SortedRun } from './sorted-run.ts';
import { writeStreamedLayer } from './streamed-layer.ts';

/** What a thread needs to build one shard: plain data. */
export interface ShardTask {
  readonly subject: LayerSubject;
  readonly mode: ResolveMode;
  /** A key that comes twice is an error. */
  readonly distinct: boolean;
  readonly layout: 'indexed' | undefined;
  readonly search: QuantizationSearch;
  /** The records' rows are f32 still, or stored already. */
  readonly rowsAre: 'f32' | 'stored';
  readonly ranges: readonly RecordRun[];
  /** There are 2^rangeBits of them. */
  readonly rangeBits: number;
  /** Where the layer goes, under its content id. */
  readonly layersFolder: string;
  /** For what does not fit in memory; removed at the end. */
  readonly workFolder: string;
  readonly budgetBytes: number;
  /** Smaller segments than the format allows, for tests. */
  readonly segmentBytesMax?: number;
}

export interface BuiltShard {
  /** Undefined for a delta that changes nothing. */
  readonly layer: WrittenLayer | undefined;
  /** The layer was there before. */
  readonly shared: boolean;
  /** Records read; those beyond rows and deleted keys were replaced by later ones, or change nothing. */
  readonly records: number;
  readonly errors: RowErrors;
  /** Of f32 rows: what each dtype makes of some of them. */
  readonly samples: DtypeErrors | undefined;
}

/** Bytes that building in memory takes, per byte of records. */
export const MEMORY_FACTOR = 4;

/** Bytes of memory with which a shard is built without going by way of the disk. */
export function memoryFor(ranges: readonly RecordRun[]): number {
  return MEMORY_FACTOR * 4 * ranges.reduce((sum, { words }) => sum + words, 0);
}

/** @throws CubeError naming a key that comes twice, or a row that the dtype cannot hold */
export function buildShard(task: ShardTask): BuiltShard {
  const inMemory = memoryFor(task.ranges) <= task.budgetBytes;
  return inMemory ? buildInMemory(task) : buildByRun(task);
}

interface Encoded {
  readonly part: RunPart;
  readonly errors: RowErrors;
}

/** None of rows that a layer stored before: what they were once is not known. */
function samplesOf(
  { rowsAre, search, subject: { dtype, dim } }: ShardTask,
  words: Uint32Array,
  { upserts }: Resolved,
): DtypeErrors | undefined {
  if (dtype === 'bytes' || (rowsAre === 'stored' && dtype !== 'f32')) return undefined;
  return sampleDtypes(words, upserts, dim, search);
}

function encode(
  task: ShardTask,
  words: Uint32Array,
  resolved: Resolved,
  scratch: Scratch,
): Encoded {
  const { dtype, dim } = task.subject;
  const { upserts } = resolved;
  const keys = keysOf(words, upserts, scratch.words('keys', 2 * upserts.length));
  if (dtype === 'bytes') {
    return { part: { keys, ...valuesOf(words, upserts) }, errors: NO_ERRORS };
  }
  const stored = task.rowsAre === 'stored';
  const rowWords = stored ? rowBytesOf(dtype, dim) / 4 : dim;
  const rows = rowsOf(words, upserts, rowWords, scratch.words('rows', upserts.length * rowWords));
  if (stored) {
    // What f32 rows lost on the way to them was not measured here; f32 loses nothing.
    const errors =
      dtype === 'f32' ? { ...NO_ERRORS, elements: (keys.length / 2) * dim } : NO_ERRORS;
    const bytes = new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
    return { part: { keys, rows: bytes }, errors };
  }
  const floats = new Float32Array(rows.buffer, rows.byteOffset, rows.length);
  const encoded = encodeRows(dtype, floats, dim, { search: task.search, keys });
  return { part: { keys, rows: encoded.rows }, errors: encoded.errors };
}

function countOf(ranges: readonly RecordRun[]): number {
  return ranges.reduce((sum, { count }) => sum + count, 0);
}

/** Ranges have no key in common, so their order does not matter: last wins within each. */
function buildInMemory(task: ShardTask): BuiltShard {
  const pieces = task.ranges.flatMap((run) =>
    run.path === undefined ? run.pieces! : [loadRun(run, new Scratch())],
  );
  const total = task.ranges.reduce((sum, { words }) => sum + words, 0);
  const scratch = new Scratch();
  const words = loadRun({ count: 0, words: total, pieces }, scratch);
  const records = countOf(task.ranges);
  const { mode, distinct } = task;
  const resolved = resolveRecords(
    words,
    records,
    { mode, distinct, sorted: false, knownBits: 0 },
    scratch,
  );
  const { part, errors } = encode(task, words, resolved, scratch);
  const deleted = keysOf(words, resolved.deleted, new Uint32Array(2 * resolved.deleted.length));
  if (isEmptyDelta(task, part.keys.length, deleted.length)) {
    return { layer: undefined, shared: false, records, errors, samples: undefined };
  }
  const samples = samplesOf(task, words, resolved);
  const target = new LayerTarget(task);
  const layer = writeLayer(inputOf(task, part, deleted), target.path, task.segmentBytesMax);
  return { layer, shared: target.wasThere, records, errors, samples };
}

function inputOf(task: ShardTask, part: RunPart, deleted: Uint32Array): LayerInput {
  const { table, dtype, dim, shardIndex, shardNum, parentContentId } = task.subject;
  const common = {
    ...{ table, shardIndex, shardNum, keys: part.keys },
    ...(parentContentId === '' ? {} : { parentContentId, deleted }),
    ...(task.layout === undefined ? {} : { layout: task.layout }),
  };
  if ('rows' in part) return { ...common, dtype: dtype as RowDtype, dim, rows: part.rows };
  return { ...common, dtype: 'bytes', values: part.values, ends: part.ends };
}

function isEmptyDelta({ subject }: ShardTask, rows: number, deleted: number): boolean {
  return subject.parentContentId !== '' && rows === 0 && deleted === 0;
}

function buildByRun(task: ShardTask): BuiltShard {
  const { subject, budgetBytes, layout, workFolder } = task;
  const { run, errors, samples } = sortToRun(task, join(workFolder, 'run'));
  const records = countOf(task.ranges);
  if (isEmptyDelta(task, run.count, run.deletedCount)) {
    removePath(workFolder);
    return { layer: undefined, shared: false, records, errors, samples };
  }
  const target = new LayerTarget(task);
  const segments =
    task.segmentBytesMax === undefined ? {} : { segmentBytesMax: task.segmentBytesMax };
  const options = { budgetBytes, layout, target: target.path, ...segments };
  const layer = writeStreamedLayer(subject, run, options);
  removePath(workFolder);
  return { layer, shared: target.wasThere, records, errors, samples };
}

/** Of this thread, for all shards that go by way of the disk. */
const scratch = new Scratch();

/** One range after the other, each in memory. */
function sortToRun(
  task: ShardTask,
  folder: string,
): { run: SortedRun; errors: RowErrors; samples: DtypeErrors | undefined } {
  const { subject, mode, distinct, budgetBytes, rangeBits } = task;
  const writer = new RunWriter(folder, rowBytesOf(subject.dtype, subject.dim));
  const wordsMax = Math.max(1024, Math.floor(budgetBytes / MEMORY_FACTOR / 4));
  const options: LoadOptions = {
    wordsMax,
    folder: join(task.workFolder, 'split'),
    distinct,
    scratch,
  };
  let errors = NO_ERRORS;
  let samples: DtypeErrors | undefined;
  try {
    for (const range of task.ranges) {
      for (const { words, count, knownBits } of loadRange(range, rangeBits, options)) {
        const resolved = resolveRecords(
          words,
          count,
          { mode, distinct, sorted: true, knownBits },
          scratch,
        );
        const encoded = encode(task, words, resolved, scratch);
        errors = addErrors(errors, encoded.errors);
        samples ??= samplesOf(task, words, resolved);
        const { deleted } = resolved;
        const keys = scratch.words('deleted', 2 * deleted.length);
        writer.write(encoded.part, keysOf(words, deleted, keys));
      }
    }
    return { run: writer.finish(), errors, samples };
  } catch (error) {
    writer.close();
    throw error;
  }
}

/** The place of a layer, and whether it was there before: asked for last when the name is known. */
class LayerTarget {
  wasThere = false;
  readonly #folder: string;

  constructor({ layersFolder }: ShardTask) {
    this.#folder = layersFolder;
  }

  path = (contentId: string): string => {
    const path = join(this.#folder, `${contentId}.cube`);
    this.wasThere = fileExists(path);
    return path;
  };
}
