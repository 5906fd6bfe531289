/**
 * Compares two versions: keys added, removed and changed, by table and shard. It reads only the
 * layers that the versions do not share, batch by batch, and looks up each of their keys in the
 * files of the other version.
 */
import { requireDefined } from '../../lib/core/errors.ts';
import { keyToBigint } from '../../lib/core/keys.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { getFoundRow } from '../../lib/store/chain-search.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import { decodeElements, toHex } from './row-text.ts';
import { pickKeys, TableFiles } from './table-files.ts';

export type Change = 'added' | 'removed' | 'changed';

export interface ChangeCounts {
  added: number;
  removed: number;
  changed: number;
}

export interface ChangedKey {
  readonly change: Change;
  readonly key: bigint;
  readonly shard: number;
  readonly before: Uint8Array | undefined;
  readonly after: Uint8Array | undefined;
}

export interface TableDiff extends ChangeCounts {
  readonly table: string;
  /** Undefined when the earlier version has no such table. */
  readonly before: TableFiles | undefined;
  /** Undefined when the later version has no such table. */
  readonly after: TableFiles | undefined;
  /** Maximum over all elements of changed rows; undefined when rows have no comparable elements. */
  maxAbsDifference: number | undefined;
  /** By shard of the later version, or of the earlier one for a removed table. */
  readonly shards: ChangeCounts[];
  readonly examples: ChangedKey[];
}

export interface DiffOptions {
  readonly tables: readonly string[] | undefined;
  /** Maximum examples per table and kind of change. */
  readonly limit: number;
  /** Called with the bytes of each layer when it has been read. */
  readonly onBytes: (bytes: number) => void;
}

/** Limits of a batch: keys, and bytes of their rows. */
const BATCH_KEYS = 1 << 20;
const BATCH_BYTES = 64 << 20;

interface VersionFiles {
  readonly root: string;
  readonly manifest: Manifest;
}

/** Yields the differences of one table at a time; the tables' files are closed afterwards. */
export function* diffVersions(
  before: VersionFiles,
  after: VersionFiles,
  options: DiffOptions,
): Generator<TableDiff> {
  const names = [
    ...after.manifest.tables.map(({ name }) => name),
    ...before.manifest.tables.map(({ name }) => name),
  ];
  for (const name of new Set(names)) {
    if (options.tables !== undefined && !options.tables.includes(name)) continue;
    const comparison = new TableComparison(
      openTable(before, name),
      openTable(after, name),
      name,
      options,
    );
    try {
      yield comparison.run();
    } finally {
      comparison.close();
    }
  }
}

function openTable({ root, manifest }: VersionFiles, name: string): TableFiles | undefined {
  const exists = manifest.tables.some((table) => table.name === name);
  return exists ? TableFiles.forVersion(root, manifest, name) : undefined;
}

/** Computes the bytes of the layers that a diff reads. */
export function computeBytesToRead(before: Manifest, after: Manifest): number {
  const sizes = (manifest: Manifest): Map<string, number> =>
    new Map(
      manifest.tables.flatMap(({ name, shards }) =>
        shards.flat().map(({ contentId, bytes }) => [`${name}/${contentId}`, bytes] as const),
      ),
    );
  const [old, current] = [sizes(before), sizes(after)];
  let sum = 0;
  for (const [key, bytes] of old) if (!current.has(key)) sum += bytes;
  for (const [key, bytes] of current) if (!old.has(key)) sum += bytes;
  return sum;
}

/** Keys of one layer with their rows, or its deleted keys with `rows` undefined. */
interface Batch {
  readonly keys: Uint32Array;
  readonly rows: readonly Uint8Array[] | undefined;
}

function pickRows(
  rows: readonly Uint8Array[] | undefined,
  indices: readonly number[],
): Uint8Array[] | undefined {
  return rows && indices.map((i) => rows[i]!);
}

class TableComparison {
  readonly #before: TableFiles | undefined;
  readonly #after: TableFiles | undefined;
  readonly #options: DiffOptions;
  readonly #diff: TableDiff;
  readonly #comparable: boolean;

  constructor(
    before: TableFiles | undefined,
    after: TableFiles | undefined,
    table: string,
    options: DiffOptions,
  ) {
    this.#before = before;
    this.#after = after;
    this.#options = options;
    const shardNum = (after ?? before)?.shardNum ?? 0;
    this.#comparable =
      before !== undefined &&
      before.dtype !== 'bytes' &&
      before.dim === after?.dim &&
      after.dtype !== 'bytes';
    this.#diff = {
      table,
      before,
      after,
      added: 0,
      removed: 0,
      changed: 0,
      examples: [],
      maxAbsDifference: this.#comparable ? 0 : undefined,
      shards: Array.from({ length: shardNum }, () => ({ added: 0, removed: 0, changed: 0 })),
    };
  }

  run(): TableDiff {
    const before = this.#before;
    const after = this.#after;
    if (after !== undefined) this.#compareAfter(after);
    if (before !== undefined) this.#compareBefore(before);
    return this.#diff;
  }

  #compareAfter(after: TableFiles): void {
    for (let shard = 0; shard < after.shardNum; shard++) {
      const common = this.#common(shard);
      for (const batch of this.#readChanges(after, shard, common)) this.#compareNew(batch);
    }
  }

  #compareBefore(before: TableFiles): void {
    for (let shard = 0; shard < before.shardNum; shard++) {
      const common = this.#common(shard);
      for (const batch of this.#readChanges(before, shard, common)) this.#compareOld(batch, common);
    }
  }

  close(): void {
    this.#before?.close();
    this.#after?.close();
  }

  /** Counts the oldest layers of a shard that both versions share. */
  #common(shard: number): number {
    const [one, other] = [this.#before, this.#after];
    if (one === undefined || other === undefined || one.shardNum !== other.shardNum) return 0;
    const [a, b] = [one.shards[shard]!, other.shards[shard]!];
    let common = 0;
    while (common < a.length && a[common]!.contentId === b[common]?.contentId) common += 1;
    return common;
  }

  /** Yields each key of the layers from `common` on once, with the row of the newest of them. */
  *#readChanges(table: TableFiles, shard: number, common: number): Generator<Batch> {
    const files = table.shards[shard]!;
    for (let number = files.length - 1; number >= common; number--) {
      for (const batch of readBatches(files[number]!.path)) {
        const newer = table.openChain(shard).find(batch.keys, number + 1);
        const own: number[] = [];
        for (let i = 0; i < newer.count; i++) if (!newer.isDecided(i)) own.push(i);
        const keys = pickKeys(batch.keys, own);
        if (own.length > 0) yield { keys, rows: pickRows(batch.rows, own) };
      }
      this.#options.onBytes(files[number]!.bytes);
    }
  }

  /** Compares keys that unshared layers of the later version contain. */
  #compareNew({ keys, rows }: Batch): void {
    this.#lookUp(this.#before, keys, 0, (i, before) => {
      this.#compare(keyToBigint(keys, i), before, rows?.[i]);
    });
  }

  /** Compares keys that only unshared layers of the earlier version contain. */
  #compareOld({ keys, rows }: Batch, common: number): void {
    const remaining: number[] = [];
    this.#lookUp(this.#after, keys, common, (i, _, decided) => {
      if (!decided) remaining.push(i);
    });
    if (remaining.length === 0) return;
    const own = pickKeys(keys, remaining);
    this.#lookUp(this.#after, own, 0, (i, after) => {
      this.#compare(keyToBigint(own, i), rows?.[remaining[i]!], after);
    });
  }

  /**
   * Looks up keys and passes each row, undefined when missing or deleted, to `take`.
   * @param from number of the oldest layer to search
   */
  #lookUp(
    table: TableFiles | undefined,
    keys: Uint32Array,
    from: number,
    take: (i: number, row: Uint8Array | undefined, decided: boolean) => void,
  ): void {
    if (table === undefined) {
      for (let i = 0; i < keys.length / 2; i++) take(i, undefined, false);
      return;
    }
    for (const [shard, indices] of table.groupByShard(keys)) {
      const chain = table.openChain(shard);
      const searched = chain.find(pickKeys(keys, indices), from);
      const rows = chain.read(searched);
      indices.forEach((index, i) => {
        const row = searched.layers[i] === 0 ? undefined : getFoundRow(rows, i);
        take(index, row, searched.isDecided(i));
      });
    }
  }

  #compare(key: bigint, before: Uint8Array | undefined, after: Uint8Array | undefined): void {
    if (before === undefined && after === undefined) return;
    if (before === undefined) this.#add('added', key, before, after);
    else if (after === undefined) this.#add('removed', key, before, after);
    else if (this.#isChanged(before, after)) this.#add('changed', key, before, after);
  }

  #isChanged(before: Uint8Array, after: Uint8Array): boolean {
    const one = requireDefined(this.#before, 'the earlier table');
    const other = requireDefined(this.#after, 'the later table');
    const sameShape = one.dtype === other.dtype && one.dim === other.dim;
    if (sameShape && Buffer.compare(before, after) === 0) return false;
    if (!this.#comparable) return true;
    const a = decodeElements(before, one.dtype, one.dim);
    const b = decodeElements(after, other.dtype, other.dim);
    let changed = sameShape;
    a.forEach((x, i) => {
      if (Object.is(x, b[i])) return;
      changed = true;
      const difference = Math.abs(x - b[i]!);
      if (difference > (this.#diff.maxAbsDifference ?? 0)) this.#diff.maxAbsDifference = difference;
    });
    return changed;
  }

  #add(change: Change, key: bigint, before?: Uint8Array, after?: Uint8Array): void {
    const diff = this.#diff;
    const shard = Number(key % BigInt(diff.shards.length));
    diff[change] += 1;
    diff.shards[shard]![change] += 1;
    if (diff[change] > this.#options.limit) return;
    const copy = (row: Uint8Array | undefined) => (row === undefined ? row : row.slice());
    diff.examples.push({ change, key, shard, before: copy(before), after: copy(after) });
  }
}

/**
 * Yields the rows of a layer, then its deleted keys. Batches are large, because each one costs a
 * pass over the blocks of the other version.
 */
function* readBatches(path: string): Generator<Batch> {
  let keys: Uint32Array[] = [];
  let rows: Uint8Array[] = [];
  let bytes = 0;
  for (const batch of readLayerRows(path)) {
    keys.push(batch.keys);
    const rowBytes = batch.rows.length / batch.count;
    for (let i = 0; i < batch.count; i++) {
      const start = batch.ends === undefined ? i * rowBytes : i === 0 ? 0 : batch.ends[i - 1]!;
      const end = batch.ends === undefined ? start + rowBytes : batch.ends[i]!;
      rows.push(batch.rows.subarray(start, end));
    }
    bytes += batch.rows.length;
    if (rows.length < BATCH_KEYS && bytes < BATCH_BYTES) continue;
    yield { keys: joinKeys(keys), rows };
    [keys, rows, bytes] = [[], [], 0];
  }
  if (rows.length > 0) yield { keys: joinKeys(keys), rows };
  for (const deleted of readDeletedKeys(path)) yield { keys: deleted, rows: undefined };
}

function joinKeys(parts: readonly Uint32Array[]): Uint32Array {
  const all = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let offset = 0;
  for (const part of parts) {
    all.set(part, offset);
    offset += part.length;
  }
  return all;
}

/** Converts an example to JSON, its rows as stored, in hex. */
export function toExampleJson({ change, key, shard, before, after }: ChangedKey): object {
  const hex = (row: Uint8Array | undefined) => (row === undefined ? undefined : toHex(row));
  return { change, key: String(key), shard, before: hex(before), after: hex(after) };
}
