/**
 * A packed lookup in slices, for lookups that are large, read from disk, or have values whose sizes
 * must be known first. Other requests are answered between slices.
 */
import { CubeError } from '../lib/core/errors.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import type { FoundValues } from '../lib/store/row-locations.ts';
import {
  beginResponseRows,
  bitmapBytes,
  groupResponseBytes,
  KEY_BYTES,
  setGroupHits,
  VALUE_LENGTH_BYTES,
  writeResponseGroup,
} from '../proto/lookup.ts';
import type { OutputBuffer } from '../proto/output-buffer.ts';
import type { LoadedTable, LoadedVersion } from './loaded-version.ts';
import type { LoadedVersions } from './loaded-versions.ts';
import { createWrongShardError } from './loaded-versions.ts';
import type { SlicedTask } from './sliced-task.ts';

/** About a millisecond of work. A multiple of 64, so that the bitmaps of slices are whole words. */
const SLICE_KEYS = 16_384;

/** Receives a response: `begin`, then head and rows to `output`. */
export interface LookupOutput {
  readonly output: OutputBuffer;
  begin(attachmentBytes: number): void;
}

export interface LookupJobOptions {
  readonly loadedVersions: LoadedVersions;
  readonly version: LoadedVersion;
  readonly tables: readonly LoadedTable[];
  readonly counts: readonly number[];
  /** Keys of all groups; must not change until the job is done. */
  readonly keys: Uint8Array;
  readonly keysAt: number;
  readonly asF32: boolean;
  readonly responseBytes: number;
  /** Rows are a field of the message instead of its attachment. */
  readonly rowsInside: boolean;
}

/** A group and its progress. */
interface LookupGroupState {
  readonly table: LoadedTable;
  readonly count: number;
  readonly keysAt: number;
  /** Found values by slice, for tables of dtype bytes. */
  readonly values: FoundValues[];
  rowsBytes: number;
  hits: number;
  hitsAt: number;
}

export class LookupJob {
  readonly #options: LookupJobOptions;
  readonly #groups: readonly LookupGroupState[];

  constructor(options: LookupJobOptions) {
    const { tables, counts, asF32 } = options;
    this.#options = options;
    let keysAt = options.keysAt;
    this.#groups = tables.map((table, g): LookupGroupState => {
      const count = counts[g]!;
      const at = keysAt;
      keysAt += count * KEY_BYTES;
      const rowsBytes = count * table.getResponseRowBytes(asF32);
      return { table, count, keysAt: at, values: [], rowsBytes, hits: 0, hitsAt: 0 };
    });
  }

  *run(target: LookupOutput): SlicedTask {
    for (const group of this.#groups) {
      if (group.table.resident.dtype === 'bytes') yield* this.#findValues(group);
    }
    let total = 0;
    for (const { count, rowsBytes } of this.#groups) total += groupResponseBytes(count, rowsBytes);
    target.begin(total);
    const { output } = target;
    this.#writeHead(output, total);
    let at = output.reserve(total);
    for (const group of this.#groups) {
      const end = at + groupResponseBytes(group.count, group.rowsBytes);
      const rowsAt = at + bitmapBytes(group.count);
      output.bytes.fill(0, at + Math.ceil(group.count / 8), rowsAt);
      output.bytes.fill(0, rowsAt + group.rowsBytes, end);
      if (group.table.resident.dtype === 'bytes') yield* this.#copyValues(group, output, at);
      else yield* this.#lookUp(group, output, at);
      setGroupHits(output, group.hitsAt, group.hits);
      const { counters } = group.table;
      counters.keys += group.count;
      counters.hits += group.hits;
      counters.bytes += group.rowsBytes;
      at = end;
    }
  }

  *#findValues(group: LookupGroupState): SlicedTask {
    const { resident } = group.table;
    const { keys, responseBytes } = this.#options;
    group.rowsBytes = group.count * VALUE_LENGTH_BYTES;
    for (let done = 0; done < group.count; done += SLICE_KEYS) {
      const count = Math.min(SLICE_KEYS, group.count - done);
      const values = resident.findValues(keys, group.keysAt + done * KEY_BYTES, count);
      if (values.hits < 0) throw this.#createWrongShardError(group, done - 1 - values.hits);
      group.values.push(values);
      group.hits += values.hits;
      group.rowsBytes += values.bytes;
      if (group.rowsBytes > responseBytes) {
        throw new CubeError(
          'TOO_LARGE',
          `table ${resident.name}: the values of these ${group.count} keys exceed the limit of ` +
            `${responseBytes} bytes; split the lookup`,
        );
      }
      yield undefined;
    }
  }

  #writeHead(output: OutputBuffer, total: number): void {
    const { version, asF32, rowsInside, responseBytes } = this.#options;
    if (total > responseBytes) {
      throw new CubeError(
        'TOO_LARGE',
        `${total} bytes of rows exceed the limit of ${responseBytes}; split the lookup`,
      );
    }
    output.append(version.versionField);
    for (const group of this.#groups) {
      const { table, count, rowsBytes } = group;
      const rowBytes = table.getResponseRowBytes(asF32);
      const dtype = table.getResponseDtype(asF32);
      group.hitsAt = writeResponseGroup(output, dtype, rowBytes, count, rowsBytes);
    }
    if (!rowsInside) return;
    beginResponseRows(output, total);
  }

  *#lookUp(group: LookupGroupState, { bytes }: OutputBuffer, at: number): SlicedTask {
    const { resident } = group.table;
    const { keys, asF32 } = this.#options;
    const rowBytes = group.table.getResponseRowBytes(asF32);
    const rowsAt = at + bitmapBytes(group.count);
    const batch = new LookupBatch({ keys, rows: bytes, found: bytes, asF32 });
    for (let done = 0; done < group.count; done += SLICE_KEYS) {
      batch.count = Math.min(SLICE_KEYS, group.count - done);
      batch.keysAt = group.keysAt + done * KEY_BYTES;
      batch.rowsAt = rowsAt + done * rowBytes;
      batch.foundAt = at + done / 8;
      const hits = resident.onDisk ? yield resident.lookupAsync(batch) : resident.lookup(batch);
      if (hits < 0) throw this.#createWrongShardError(group, done - 1 - hits);
      group.hits += hits;
      if (!resident.onDisk) yield undefined;
    }
  }

  *#copyValues(group: LookupGroupState, { bytes }: OutputBuffer, at: number): SlicedTask {
    const { resident } = group.table;
    let lengthsAt = at + bitmapBytes(group.count);
    let valuesAt = lengthsAt + group.count * VALUE_LENGTH_BYTES;
    let bits = at;
    for (const values of group.values) {
      const { found, lengths } = values;
      bytes.set(found, bits);
      bytes.set(new Uint8Array(lengths.buffer), lengthsAt);
      if (resident.onDisk) yield resident.copyValuesAsync(values, bytes, valuesAt).then(() => 0);
      else resident.copyValues(values, bytes, valuesAt);
      bits += found.length;
      lengthsAt += lengths.byteLength;
      valuesAt += values.bytes;
      if (!resident.onDisk) yield undefined;
    }
  }

  #createWrongShardError(group: LookupGroupState, index: number): CubeError {
    const { loadedVersions, keys } = this.#options;
    return createWrongShardError(
      loadedVersions,
      keys,
      group.keysAt,
      index,
      group.table.resident.name,
    );
  }
}
