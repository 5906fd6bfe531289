/**
 * What differs between two versions: keys added, removed and changed, by table and shard. Only layers that one of them has and the
 * other has not are gone through, batch by batch; each key of theirs is looked up in the files of the other version.
 */
import { keyToBigint } from '../../lib/core/keys.ts';
import type { Manifest } from '../../lib/core/manifest.ts';
import { foundRow } from '../../lib/store/chain-search.ts';
import { readDeletedKeys, readLayerRows } from '../../lib/store/layer-file.ts';
import { elementsOf, hexOf } from './row-text.ts';
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
  /** Undefined: the version has no such table. */
  readonly before: TableFiles | undefined;
  readonly after: TableFiles | undefined;
  /** Over all elements of changed rows; undefined for rows that cannot be compared by element. */
  maxAbsDifference: number | undefined;
  /** Of the newer version's shards, or of the older one's for a table that is gone. */
  readonly shards: ChangeCounts[];
  readonly examples: ChangedKey[];
}

export interface DiffWish {
  readonly tables: readonly string[] | undefined;
  /** Examples of each kind of change, for a table. */
  readonly limit: number;
  readonly onBytes: (bytes: number) => void;
}

/** Keys that are compared at once, and bytes of their rows. */
const BATCH_KEYS = 1 << 20;
const BATCH_BYTES = 64 << 20;

interface Side {
  readonly root: string;
  readonly manifest: Manifest;
}

/** @yields a table at a time */
export function* diffVersions(before: Side, after: Side, wish: DiffWish): Generator<TableDiff> {
  const names = [
    ...after.manifest.tables.map(({ name }) => name),
    ...before.manifest.tables.map(({ name }) => name),
  ];
  for (const name of new Set(names)) {
    if (wish.tables !== undefined && !wish.tables.includes(name)) continue;
    const comparison = new TableComparison(filesOf(before, name), filesOf(after, name), name, wish);
    try {
      yield comparison.run();
    } finally {
      comparison.close();
    }
  }
}

function filesOf({ root, manifest }: Side, name: string): TableFiles | undefined {
  const has = manifest.tables.some((table) => table.name === name);
  return has ? TableFiles.ofVersion(root, manifest, name) : undefined;
}

/** Bytes of the layers that a diff goes through. */
export function bytesToRead(before: Manifest, after: Manifest): number {
  const sizes = (manifest: Manifest): Map<string, number> =>
    new Map(
      manifest.tables.flatMap(({ name, shards }) =>
        shards.flat().map(({ contentId, bytes }) => [`${name}/${contentId}`, bytes] as const),
      ),
    );
  const [old, young] = [sizes(before), sizes(after)];
  let sum = 0;
  for (const [key, bytes] of old) if (!young.has(key)) sum += bytes;
  for (const [key, bytes] of young) if (!old.has(key)) sum += bytes;
  return sum;
}

/** Keys of one layer with their rows, or its deleted keys. */
interface Batch {
  readonly keys: Uint32Array;
  readonly rows: readonly Uint8Array[] | undefined;
}

class TableComparison {
  readonly #before: TableFiles | undefined;
  readonly #after: TableFiles | undefined;
  readonly #wish: DiffWish;
  readonly #diff: TableDiff;
  readonly #comparable: boolean;

  constructor(
    before: TableFiles | undefined,
    after: TableFiles | undefined,
    table: string,
    wish: DiffWish,
  ) {
    this.#before = before;
    this.#after = after;
    this.#wish = wish;
    const shardNum = (after ?? before)!.shardNum;
    this.#comparable =
      before !== undefined &&
      before.dtype !== 'bytes' &&
      before.dim === after?.dim &&
      after.dtype !== 'bytes';
    this.#diff = {
      ...{ table, before, after, added: 0, removed: 0, changed: 0, examples: [] },
      maxAbsDifference: this.#comparable ? 0 : undefined,
      shards: Array.from({ length: shardNum }, () => ({ added: 0, removed: 0, changed: 0 })),
    };
  }

  run(): TableDiff {
    const before = this.#before;
    const after = this.#after;
    for (let shard = 0; shard < (after?.shardNum ?? 0); shard++) {
      const common = this.#common(shard);
      for (const batch of this.#changesOf(after!, shard, common)) this.#compareNew(batch);
    }
    for (let shard = 0; shard < (before?.shardNum ?? 0); shard++) {
      const common = this.#common(shard);
      for (const batch of this.#changesOf(before!, shard, common)) this.#compareOld(batch, common);
    }
    return this.#diff;
  }

  close(): void {
    this.#before?.close();
    this.#after?.close();
  }

  /** How many layers a shard of both versions begins with. */
  #common(shard: number): number {
    const [one, other] = [this.#before, this.#after];
    if (one === undefined || other === undefined || one.shardNum !== other.shardNum) return 0;
    const [a, b] = [one.shards[shard]!, other.shards[shard]!];
    let common = 0;
    while (common < a.length && a[common]!.contentId === b[common]?.contentId) common += 1;
    return common;
  }

  /** What layers from `common` on decide: every key once, by the newest of them. */
  *#changesOf(table: TableFiles, shard: number, common: number): Generator<Batch> {
    const files = table.shards[shard]!;
    for (let number = files.length - 1; number >= common; number--) {
      for (const batch of batchesOf(files[number]!.path)) {
        const newer = table.chain(shard).find(batch.keys, number + 1);
        const own: number[] = [];
        for (let i = 0; i < newer.count; i++) if (!newer.isDecided(i)) own.push(i);
        const keys = pickKeys(batch.keys, own);
        if (own.length > 0) yield { keys, rows: batch.rows && own.map((i) => batch.rows![i]!) };
      }
      this.#wish.onBytes(files[number]!.bytes);
    }
  }

  /** Keys that the newer version's own layers decide. */
  #compareNew({ keys, rows }: Batch): void {
    this.#lookUp(this.#before, keys, 0, (i, before) => {
      this.#compare(keyToBigint(keys, i), before, rows?.[i]);
    });
  }

  /** Keys that the older version's own layers decide, and the newer one's do not. */
  #compareOld({ keys, rows }: Batch, common: number): void {
    const left: number[] = [];
    this.#lookUp(this.#after, keys, common, (i, _, decided) => {
      if (!decided) left.push(i);
    });
    if (left.length === 0) return;
    const own = pickKeys(keys, left);
    this.#lookUp(this.#after, own, 0, (i, after) => {
      this.#compare(keyToBigint(own, i), rows?.[left[i]!], after);
    });
  }

  /** @param from the oldest layer that is asked */
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
    for (const [shard, indices] of table.split(keys)) {
      const chain = table.chain(shard);
      const searched = chain.find(pickKeys(keys, indices), from);
      const rows = chain.read(searched);
      indices.forEach((index, i) => {
        const row = searched.layers[i] === 0 ? undefined : foundRow(rows, i);
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
    const [one, other] = [this.#before!, this.#after!];
    const sameShape = one.dtype === other.dtype && one.dim === other.dim;
    if (sameShape && Buffer.compare(before, after) === 0) return false;
    if (!this.#comparable) return true;
    const a = elementsOf(before, one.dtype, one.dim);
    const b = elementsOf(after, other.dtype, other.dim);
    let changed = sameShape;
    a.forEach((x, i) => {
      if (Object.is(x, b[i])) return;
      changed = true;
      const difference = Math.abs(x - b[i]!);
      if (difference > this.#diff.maxAbsDifference!) this.#diff.maxAbsDifference = difference;
    });
    return changed;
  }

  #add(change: Change, key: bigint, before?: Uint8Array, after?: Uint8Array): void {
    const diff = this.#diff;
    const shard = Number(key % BigInt(diff.shards.length));
    diff[change] += 1;
    diff.shards[shard]![change] += 1;
    if (diff[change] > this.#wish.limit) return;
    const copy = (row: Uint8Array | undefined) => (row === undefined ? row : row.slice());
    diff.examples.push({ change, key, shard, before: copy(before), after: copy(after) });
  }
}

/** A layer's rows, then its deleted keys, in batches that are worth a pass over the other version's blocks. */
function* batchesOf(path: string): Generator<Batch> {
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
    yield { keys: joined(keys), rows };
    [keys, rows, bytes] = [[], [], 0];
  }
  if (rows.length > 0) yield { keys: joined(keys), rows };
  for (const deleted of readDeletedKeys(path)) yield { keys: deleted, rows: undefined };
}

function joined(parts: readonly Uint32Array[]): Uint32Array {
  const all = new Uint32Array(parts.reduce((sum, part) => sum + part.length, 0));
  let at = 0;
  for (const part of parts) {
    all.set(part, at);
    at += part.length;
  }
  return all;
}

/** For programs: rows as they are stored. */
export function exampleJson({ change, key, shard, before, after }: ChangedKey): object {
  const hex = (row: Uint8Array | undefined) => (row === undefined ? undefined : hexOf(row));
  return { change, key: String(key), shard, before: hex(before), after: hex(after) };
}
