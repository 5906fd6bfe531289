/**
 * A packed lookup in slices: one that is too large to be answered at once, waits for a disk, or has values whose sizes
 * must be known first. Between two slices others are answered.
 */
import { CubeError } from '../lib/core/errors.ts';
import type { FoundValues } from '../lib/store/found-values.ts';
import { LookupBatch } from '../lib/store/lookup-batch.ts';
import {
  bitmapBytes,
  groupBytesOf,
  KEY_BYTES,
  setGroupHits,
  VALUE_LENGTH_BYTES,
  writeResponseGroup,
} from '../proto/lookup.ts';
import type { OutputBuffer } from '../proto/output-buffer.ts';
import type { HeldTable, HeldVersion } from './held-version.ts';
import type { HeldVersions } from './held-versions.ts';
import { misrouted } from './misrouted.ts';
import type { Steps } from './steps.ts';

/** About a millisecond of work. A multiple of 64, so that bitmaps of slices are whole words. */
const SLICE_KEYS = 16_384;
const TAG_ROWS = 0x1a;

/** Where an answer goes: `begin`, then head and rows into `output`. */
export interface LookupTarget {
  readonly output: OutputBuffer;
  begin(attachmentBytes: number): void;
}

export interface LookupJobOptions {
  readonly held: HeldVersions;
  readonly version: HeldVersion;
  readonly tables: readonly HeldTable[];
  readonly counts: readonly number[];
  /** The groups' keys; they stay as they are until the job is done. */
  readonly keys: Uint8Array;
  readonly keysAt: number;
  readonly asF32: boolean;
  readonly responseBytes: number;
  /** The rows are a field of the message, not its attachment. */
  readonly rowsInside: boolean;
}

/** A group and what is known of its answer. */
interface Group {
  readonly table: HeldTable;
  readonly count: number;
  readonly keysAt: number;
  /** Of slices, when the table has values. */
  readonly values: FoundValues[];
  rowsBytes: number;
  hits: number;
  hitsAt: number;
}

export class LookupJob {
  readonly #options: LookupJobOptions;
  readonly #groups: readonly Group[];

  constructor(options: LookupJobOptions) {
    const { tables, counts, asF32 } = options;
    this.#options = options;
    let keysAt = options.keysAt;
    this.#groups = tables.map((table, g): Group => {
      const count = counts[g]!;
      const at = keysAt;
      keysAt += count * KEY_BYTES;
      const rowsBytes = count * table.answeredRowBytes(asF32);
      return { table, count, keysAt: at, values: [], rowsBytes, hits: 0, hitsAt: 0 };
    });
  }

  *steps(target: LookupTarget): Steps {
    for (const group of this.#groups) {
      if (group.table.resident.dtype === 'bytes') yield* this.#findValues(group);
    }
    let total = 0;
    for (const { count, rowsBytes } of this.#groups) total += groupBytesOf(count, rowsBytes);
    target.begin(total);
    const { output } = target;
    this.#writeHead(output, total);
    let at = output.reserve(total);
    for (const group of this.#groups) {
      const end = at + groupBytesOf(group.count, group.rowsBytes);
      const rowsAt = at + bitmapBytes(group.count);
      output.bytes.fill(0, at + Math.ceil(group.count / 8), rowsAt);
      output.bytes.fill(0, rowsAt + group.rowsBytes, end);
      if (group.table.resident.dtype === 'bytes') yield* this.#copyValues(group, output, at);
      else yield* this.#lookUp(group, output, at);
      setGroupHits(output, group.hitsAt, group.hits);
      const { traffic } = group.table;
      traffic.keys += group.count;
      traffic.hits += group.hits;
      traffic.bytes += group.rowsBytes;
      at = end;
    }
  }

  *#findValues(group: Group): Steps {
    const { resident } = group.table;
    const { keys, responseBytes } = this.#options;
    group.rowsBytes = group.count * VALUE_LENGTH_BYTES;
    for (let done = 0; done < group.count; done += SLICE_KEYS) {
      const count = Math.min(SLICE_KEYS, group.count - done);
      const values = resident.findValues(keys, group.keysAt + done * KEY_BYTES, count);
      if (values.hits < 0) throw this.#misrouted(group, done - 1 - values.hits);
      group.values.push(values);
      group.hits += values.hits;
      group.rowsBytes += values.bytes;
      if (group.rowsBytes > responseBytes) {
        throw new CubeError(
          'TOO_LARGE',
          `table ${resident.name}: the values of these ${group.count} keys have more than ${responseBytes} bytes; split the lookup`,
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
        `${total} bytes of rows: a lookup has at most ${responseBytes}; split it`,
      );
    }
    output.append(version.versionField);
    for (const group of this.#groups) {
      const { table, count, rowsBytes } = group;
      const rowBytes = table.answeredRowBytes(asF32);
      const dtype = table.answeredDtype(asF32);
      group.hitsAt = writeResponseGroup(output, dtype, rowBytes, count, rowsBytes);
    }
    if (!rowsInside) return;
    output.appendByte(TAG_ROWS);
    output.appendVarint(total);
  }

  *#lookUp(group: Group, { bytes }: OutputBuffer, at: number): Steps {
    const { resident } = group.table;
    const { keys, asF32 } = this.#options;
    const rowBytes = group.table.answeredRowBytes(asF32);
    const rowsAt = at + bitmapBytes(group.count);
    const batch = new LookupBatch({ keys, rows: bytes, found: bytes, asF32 });
    for (let done = 0; done < group.count; done += SLICE_KEYS) {
      batch.count = Math.min(SLICE_KEYS, group.count - done);
      batch.keysAt = group.keysAt + done * KEY_BYTES;
      batch.rowsAt = rowsAt + done * rowBytes;
      batch.foundAt = at + done / 8;
      const hits = resident.onDisk ? yield resident.lookupLater(batch) : resident.lookup(batch);
      if (hits < 0) throw this.#misrouted(group, done - 1 - hits);
      group.hits += hits;
      if (!resident.onDisk) yield undefined;
    }
  }

  *#copyValues(group: Group, { bytes }: OutputBuffer, at: number): Steps {
    const { resident } = group.table;
    let lengthsAt = at + bitmapBytes(group.count);
    let valuesAt = lengthsAt + group.count * VALUE_LENGTH_BYTES;
    let bits = at;
    for (const values of group.values) {
      const { found, lengths } = values;
      bytes.set(found, bits);
      bytes.set(new Uint8Array(lengths.buffer), lengthsAt);
      if (resident.onDisk) yield resident.copyValuesLater(values, bytes, valuesAt).then(() => 0);
      else resident.copyValues(values, bytes, valuesAt);
      bits += found.length;
      lengthsAt += lengths.byteLength;
      valuesAt += values.bytes;
      if (!resident.onDisk) yield undefined;
    }
  }

  #misrouted(group: Group, index: number): CubeError {
    const { held, keys } = this.#options;
    return misrouted(held, keys, group.keysAt, index, group.table.resident.name);
  }
}
