/**
 * Builds the layer of one shard from its records: in memory if they fit, else through a sorted
 * run on disk. Both give the same bytes.
 */
import { join } from 'node:path';
import type { LayerInput } from '../../lib/core/layer-input.ts';
import type { LayerIdentity } from '../../lib/core/layer-sections.ts';
import type { QuantizationSearch } from '../../lib/core/quantized-rows.ts';
import {
  computeRowBytes,
  encodeRows,
  mergeRowErrors,
  NO_ROW_ERRORS,
  type RowDtype,
  type RowErrors,
} from '../../lib/core/row-codec.ts';
import { faultPoint } from '../../lib/platform/fault-point.ts';
import { fileExists, removePath } from '../../lib/platform/files.ts';
import { writeLayer } from '../../lib/store/layer-file.ts';
import type { WrittenLayer } from '../../lib/store/section-writer.ts';
import { type DtypeErrors, sampleDtypes } from './dtype-samples.ts';
import { loadRange, loadRun, type RangeLoadOptions } from './range-loader.ts';
import {
  readKeys,
  readRows,
  readValues,
  type SelectedRecords,
  type SelectionMode,
  selectRecords,
} from './record-selection.ts';
import { type RecordRun, ReusableArrays } from './records.ts';
import { type RunPart, RunWriter, type SortedRun } from './sorted-run.ts';
import { writeStreamedLayer } from './streamed-layer.ts';

/** The task to build one shard. Plain data, so it can be sent to a worker thread. */
export interface ShardTask {
  readonly identity: LayerIdentity;
  readonly mode: SelectionMode;
  /** Fail on duplicate keys instead of keeping the last row. */
  readonly rejectDuplicates: boolean;
  readonly layout: 'indexed' | undefined;
  readonly search: QuantizationSearch;
  /** Whether the rows in the records are f32, or already encoded in the table's dtype. */
  readonly rowEncoding: 'f32' | 'stored';
  readonly ranges: readonly RecordRun[];
  /** There are 2^rangeBits ranges. */
  readonly rangeBits: number;
  /** Folder of the layer; its file name is the content id. */
  readonly layersFolder: string;
  /** Folder for temporary files; removed at the end. */
  readonly workFolder: string;
  readonly budgetBytes: number;
  /** Maximum segment size; tests use less than the format allows. */
  readonly segmentBytesMax?: number;
}

export interface BuiltShard {
  /** Undefined if a delta changes nothing. */
  readonly layer: WrittenLayer | undefined;
  /** The layer already existed. */
  readonly shared: boolean;
  /** Records read, including records that were replaced or change nothing. */
  readonly records: number;
  /** Those of the old input of a diff that were only compared, and deleted nothing. */
  readonly compared: number;
  readonly errors: RowErrors;
  /** Errors that each dtype would cause in a sample of the f32 rows. */
  readonly samples: DtypeErrors | undefined;
}

/** Memory that building in memory needs, as a multiple of the bytes of records. */
export const MEMORY_FACTOR = 4;

/** Computes the memory in bytes that building a shard in memory needs. */
export function computeMemoryBytes(ranges: readonly RecordRun[]): number {
  return MEMORY_FACTOR * 4 * ranges.reduce((sum, { words }) => sum + words, 0);
}

/** @throws CubeError for a duplicate key, or a row with an element out of the dtype's range */
export function buildShard(task: ShardTask): BuiltShard {
  const inMemory = computeMemoryBytes(task.ranges) <= task.budgetBytes;
  return inMemory ? buildInMemory(task) : buildFromRun(task);
}

interface EncodedRecords {
  readonly part: RunPart;
  readonly errors: RowErrors;
}

/** Stored rows are not sampled, because their original values are unknown. */
function sampleRecords(
  { rowEncoding, search, identity: { dtype, dim } }: ShardTask,
  words: Uint32Array,
  { upserts }: SelectedRecords,
): DtypeErrors | undefined {
  if (dtype === 'bytes' || (rowEncoding === 'stored' && dtype !== 'f32')) return undefined;
  return sampleDtypes(words, upserts, dim, search);
}

function encodeRecords(
  task: ShardTask,
  words: Uint32Array,
  selected: SelectedRecords,
  arrays: ReusableArrays,
): EncodedRecords {
  const { dtype, dim } = task.identity;
  const { upserts } = selected;
  const keys = readKeys(words, upserts, arrays.get('keys', 2 * upserts.length));
  if (dtype === 'bytes') {
    return { part: { keys, ...readValues(words, upserts) }, errors: NO_ROW_ERRORS };
  }
  const stored = task.rowEncoding === 'stored';
  const rowWords = stored ? computeRowBytes(dtype, dim) / 4 : dim;
  const rows = readRows(words, upserts, rowWords, arrays.get('rows', upserts.length * rowWords));
  if (stored) {
    // The original values of stored rows are unknown, so only f32, which is exact, has errors (0).
    const errors =
      dtype === 'f32' ? { ...NO_ROW_ERRORS, elements: (keys.length / 2) * dim } : NO_ROW_ERRORS;
    const bytes = new Uint8Array(rows.buffer, rows.byteOffset, rows.byteLength);
    return { part: { keys, rows: bytes }, errors };
  }
  const floats = new Float32Array(rows.buffer, rows.byteOffset, rows.length);
  const encoded = encodeRows(dtype, floats, dim, { search: task.search, keys });
  return { part: { keys, rows: encoded.rows }, errors: encoded.errors };
}

function countRecords(ranges: readonly RecordRun[]): number {
  return ranges.reduce((sum, { count }) => sum + count, 0);
}

/** Ranges have no key in common, so their order does not matter. */
function buildInMemory(task: ShardTask): BuiltShard {
  const pieces = task.ranges.flatMap((run) =>
    run.path === undefined ? (run.pieces ?? []) : [loadRun(run, new ReusableArrays())],
  );
  const total = task.ranges.reduce((sum, { words }) => sum + words, 0);
  const arrays = new ReusableArrays();
  const words = loadRun({ count: 0, words: total, pieces }, arrays);
  const records = countRecords(task.ranges);
  const { mode, rejectDuplicates } = task;
  const selected = selectRecords(
    words,
    records,
    { mode, rejectDuplicates, sorted: false, knownBits: 0 },
    arrays,
  );
  const { compared } = selected;
  const { part, errors } = encodeRecords(task, words, selected, arrays);
  const deleted = readKeys(words, selected.deleted, new Uint32Array(2 * selected.deleted.length));
  if (isEmptyDelta(task, part.keys.length, deleted.length)) {
    return { layer: undefined, shared: false, records, compared, errors, samples: undefined };
  }
  const samples = sampleRecords(task, words, selected);
  const target = new LayerTarget(task);
  const layer = writeLayer(
    createLayerInput(task, part, deleted),
    target.getPath,
    task.segmentBytesMax,
  );
  return { layer, shared: target.existed, records, compared, errors, samples };
}

function createLayerInput(task: ShardTask, part: RunPart, deleted: Uint32Array): LayerInput {
  const { table, dtype, dim, shardIndex, shardNum, parentContentId } = task.identity;
  const common = {
    table,
    shardIndex,
    shardNum,
    keys: part.keys,
    ...(parentContentId === '' ? {} : { parentContentId, deleted }),
    ...(task.layout === undefined ? {} : { layout: task.layout }),
  };
  if ('rows' in part) return { ...common, dtype: dtype as RowDtype, dim, rows: part.rows };
  return { ...common, dtype: 'bytes', values: part.values, ends: part.ends };
}

function isEmptyDelta({ identity }: ShardTask, rows: number, deleted: number): boolean {
  return identity.parentContentId !== '' && rows === 0 && deleted === 0;
}

function buildFromRun(task: ShardTask): BuiltShard {
  const { identity, budgetBytes, layout, workFolder } = task;
  const { run, compared, errors, samples } = sortToRun(task, join(workFolder, 'run'));
  const records = countRecords(task.ranges);
  if (isEmptyDelta(task, run.count, run.deletedCount)) {
    removePath(workFolder);
    return { layer: undefined, shared: false, records, compared, errors, samples };
  }
  const target = new LayerTarget(task);
  const segments =
    task.segmentBytesMax === undefined ? {} : { segmentBytesMax: task.segmentBytesMax };
  const options = { budgetBytes, layout, getLayerPath: target.getPath, ...segments };
  const layer = writeStreamedLayer(identity, run, options);
  removePath(workFolder);
  return { layer, shared: target.existed, records, compared, errors, samples };
}

/** Arrays of this thread, reused for all shards that are built through a sorted run. */
const threadArrays = new ReusableArrays();

/** Sorts one range after another in memory and appends it to the run. */
function sortToRun(
  task: ShardTask,
  folder: string,
): { run: SortedRun; compared: number; errors: RowErrors; samples: DtypeErrors | undefined } {
  const { identity, mode, rejectDuplicates, budgetBytes, rangeBits } = task;
  const writer = new RunWriter(folder, computeRowBytes(identity.dtype, identity.dim));
  const wordsMax = Math.max(1024, Math.floor(budgetBytes / MEMORY_FACTOR / 4));
  const options: RangeLoadOptions = {
    wordsMax,
    folder: join(task.workFolder, 'split'),
    rejectDuplicates,
    arrays: threadArrays,
  };
  let compared = 0;
  let errors = NO_ROW_ERRORS;
  let samples: DtypeErrors | undefined;
  try {
    for (const range of task.ranges) {
      for (const { words, count, knownBits } of loadRange(range, rangeBits, options)) {
        const selected = selectRecords(
          words,
          count,
          { mode, rejectDuplicates, sorted: true, knownBits },
          threadArrays,
        );
        compared += selected.compared;
        const encoded = encodeRecords(task, words, selected, threadArrays);
        errors = mergeRowErrors(errors, encoded.errors);
        samples ??= sampleRecords(task, words, selected);
        const { deleted } = selected;
        const keys = threadArrays.get('deleted', 2 * deleted.length);
        writer.write(encoded.part, readKeys(words, deleted, keys));
        faultPoint('build.sorted');
      }
    }
    return { run: writer.finish(), compared, errors, samples };
  } catch (error) {
    writer.close();
    throw error;
  }
}

/** The path of a layer and whether it existed, as of the last call of getPath. */
class LayerTarget {
  existed = false;
  readonly #folder: string;

  constructor({ layersFolder }: ShardTask) {
    this.#folder = layersFolder;
  }

  getPath = (contentId: string): string => {
    const path = join(this.#folder, `${contentId}.cube`);
    this.existed = fileExists(path);
    return path;
  };
}
