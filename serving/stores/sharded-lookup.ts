/**
 * Lookups in tables that are resident in this process: takes keys of any shard, and writes rows and
 * outcomes in the same order. The store uses it on the main thread, and each model worker on its
 * own area of the same memories.
 *
 * Synchronous. Scratch memory is reused, so one instance serves one thread.
 */

import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../../lib/core/lookup-group.ts';
import { LookupBatch } from '../../lib/store/lookup-batch.ts';
import type { ResidentTable } from '../../lib/store/resident-table.ts';
import type { ResidentVersion } from '../../lib/store/resident-version.ts';
import { ShardOrder } from './shard-order.ts';

export class ShardedLookup {
  readonly #source: string;
  readonly #shardNum: number;
  /** By name, one for each shard. */
  readonly #tables = new Map<string, readonly ResidentTable[]>();
  readonly #batch = new LookupBatch({ asF32: true });
  /** Undefined when one shard has all keys. */
  readonly #order: ShardOrder | undefined;
  #found = new Uint8Array(0);

  /** @param shards all shards of one version, in order */
  constructor(shards: readonly ResidentVersion[]) {
    const { manifest } = requireDefined(shards[0], 'the first shard');
    this.#source = `${manifest.bundle} ${manifest.version}`;
    this.#shardNum = shards.length;
    for (const { name } of manifest.tables) {
      this.#tables.set(
        name,
        shards.map((shard) => requireDefined(shard.table(name), `table ${name}`)),
      );
    }
    const dim = Math.max(1, ...manifest.tables.map((table) => table.dim));
    this.#order = shards.length === 1 ? undefined : new ShardOrder(shards.length, dim);
  }

  /**
   * Fills rows and outcomes of one group. The caller has checked its arrays. @returns the number of
   * unseen keys
   */
  lookup(group: LookupGroup): number {
    const { table, count } = group;
    if (count === 0) return 0;
    const shards = requireDefined(this.#tables.get(table), 'the shards of a table');
    const order = this.#order;
    if (order === undefined) return count - this.#lookUpAll(shards[0]!, group);
    let hits = 0;
    for (let start = 0; start < count; start += order.chunkKeys) {
      const length = Math.min(order.chunkKeys, count - start);
      hits += this.#lookUpChunk(shards, order, group, start, length);
    }
    return count - hits;
  }

  /** Looks up keys of one shard. @returns the number of hits */
  #lookUpAll(table: ResidentTable, { keys, count, rows, outcomes }: LookupGroup): number {
    if (this.#found.length < count) this.#found = new Uint8Array(2 * count);
    const batch = this.#batch;
    const found = this.#found;
    batch.keys = new Uint8Array(keys.buffer, keys.byteOffset, 8 * count);
    batch.count = count;
    batch.rows = new Uint8Array(rows.buffer, rows.byteOffset, 4 * table.dim * count);
    batch.found = found;
    const hits = table.lookup(batch);
    if (hits < 0) this.#failForeignKey(table, -1 - hits);
    outcomes.fill(OUTCOME_HIT, 0, count);
    if (hits === count) return hits;
    for (let i = 0; i < count; i++) {
      if (!isFound(found, i)) outcomes[i] = OUTCOME_UNSEEN;
    }
    return hits;
  }

  /** Looks up keys [start, start + length) of a group, shard by shard. @returns hits */
  #lookUpChunk(
    shards: readonly ResidentTable[],
    order: ShardOrder,
    { keys, rows, outcomes }: LookupGroup,
    start: number,
    length: number,
  ): number {
    const { bytes, ends, sortedAt, foundAt, sortedRowsAt } = order;
    const { dim } = shards[0]!;
    const batch = this.#batch;
    order.sort(keys, start, length);
    outcomes.fill(OUTCOME_HIT, start, start + length);
    batch.keys = bytes;
    batch.rows = bytes;
    batch.found = bytes;
    batch.foundAt = foundAt;
    let hits = 0;
    let first = 0;
    for (let shard = 0; shard < this.#shardNum; shard++) {
      const count = ends[shard]! - first;
      if (count === 0) continue;
      batch.keysAt = sortedAt + 8 * first;
      batch.rowsAt = sortedRowsAt + 4 * dim * first;
      batch.count = count;
      const own = shards[shard]!.lookup(batch);
      if (own < 0) this.#failForeignKey(shards[shard]!, -1 - own);
      if (own < count) markUnseen(order, first, count, outcomes, start);
      hits += own;
      first += count;
    }
    order.unsort(rows, start, length, dim);
    return hits;
  }

  /**
   * Fails for a key of another shard: the keys were sorted by the manifest, so the files do not
   * match it.
   */
  #failForeignKey(table: ResidentTable, i: number): never {
    throw new CubeError(
      'CORRUPT',
      `${this.#source}: table ${table.name}: key ${i} of a shard belongs to another shard; ` +
        'publish the version again',
    );
  }
}

/** Marks the keys of one shard that were not found, at their positions in the batch. */
function markUnseen(
  { bytes, foundAt, positions }: ShardOrder,
  first: number,
  count: number,
  outcomes: Uint8Array,
  start: number,
): void {
  const found = bytes.subarray(foundAt);
  for (let i = 0; i < count; i++) {
    if (!isFound(found, i)) outcomes[start + positions[first + i]!] = OUTCOME_UNSEEN;
  }
}

function isFound(found: Uint8Array, i: number): boolean {
  return ((found[i >>> 3]! >>> (i & 7)) & 1) === 1;
}
