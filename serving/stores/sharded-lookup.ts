/**
 * Lookups in tables that are resident in this process: takes keys of any shard, and writes rows and
 * outcomes in the same order. The store uses it on the main thread, and each model worker on its
 * own area of the same memories.
 *
 * Synchronous. Scratch memory is reused, so one instance serves one thread.
 */

import { CubeError, requireDefined } from '../../lib/core/errors.ts';
import { computeShard } from '../../lib/core/keys.ts';
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../../lib/core/lookup-group.ts';
import { LookupBatch } from '../../lib/store/lookup-batch.ts';
import type { ResidentTable } from '../../lib/store/resident-table.ts';
import type { ResidentVersion } from '../../lib/store/resident-version.ts';

/** Up to this dim an element loop copies a row faster than `set(subarray)`. */
const LOOP_COPY_DIM = 16;

export class ShardedLookup {
  readonly #source: string;
  readonly #shardNum: number;
  /** By name, one for each shard. */
  readonly #tables = new Map<string, readonly ResidentTable[]>();
  readonly #batch = new LookupBatch({ asF32: true });
  /**
   * Scratch for a batch: the shard of each key, then keys sorted by shard, their positions, and
   * their results.
   */
  #shards = new Int32Array(0);
  #keys = new Uint32Array(0);
  #positions = new Int32Array(0);
  #rows = new Float32Array(0);
  #found = new Uint8Array(0);
  /** Where the keys of each shard end. */
  readonly #ends: Int32Array;

  /** @param shards all shards of one version, in order */
  constructor(shards: readonly ResidentVersion[]) {
    const { manifest } = requireDefined(shards[0], 'the first shard');
    this.#source = `${manifest.bundle} ${manifest.version}`;
    this.#shardNum = shards.length;
    this.#ends = new Int32Array(shards.length);
    for (const { name } of manifest.tables) {
      this.#tables.set(
        name,
        shards.map((shard) => requireDefined(shard.table(name), `table ${name}`)),
      );
    }
  }

  /**
   * Fills rows and outcomes of one group. The caller has checked its arrays. @returns the number of
   * unseen keys
   */
  lookup({ table, keys, count, rows, outcomes }: LookupGroup): number {
    if (count === 0) return 0;
    const shards = requireDefined(this.#tables.get(table), 'the shards of a table');
    const first = requireDefined(shards[0], 'the first shard');
    this.#reserve(count, first.dim);
    if (this.#shardNum === 1) return count - this.#find(first, keys, count, rows, outcomes);
    return this.#scatter(shards, keys, count, rows, outcomes);
  }

  #reserve(count: number, dim: number): void {
    if (this.#found.length < count) this.#found = new Uint8Array(2 * count);
    if (this.#shardNum === 1) return;
    if (this.#positions.length < count) {
      this.#shards = new Int32Array(2 * count);
      this.#positions = new Int32Array(2 * count);
      this.#keys = new Uint32Array(4 * count);
    }
    if (this.#rows.length < count * dim) this.#rows = new Float32Array(2 * count * dim);
  }

  /** Looks up keys of one shard. @returns the number of hits */
  #find(
    table: ResidentTable,
    keys: Uint32Array,
    count: number,
    rows: Float32Array,
    outcomes: Uint8Array,
  ): number {
    const batch = this.#batch;
    const found = this.#found;
    batch.keys = new Uint8Array(keys.buffer, keys.byteOffset, 8 * count);
    batch.count = count;
    batch.rows = new Uint8Array(rows.buffer, rows.byteOffset, 4 * table.dim * count);
    batch.found = found;
    const hits = table.lookup(batch);
    if (hits < 0) this.#failForeignKey(table, -1 - hits);
    if (hits === count) {
      outcomes.fill(OUTCOME_HIT, 0, count);
      return hits;
    }
    for (let i = 0; i < count; i++) {
      outcomes[i] = (found[i >>> 3]! >>> (i & 7)) & 1 ? OUTCOME_HIT : OUTCOME_UNSEEN;
    }
    return hits;
  }

  /**
   * Sorts the keys by shard, looks up each shard's keys, and writes rows and outcomes in the
   * original order.
   */
  #scatter(
    shards: readonly ResidentTable[],
    keys: Uint32Array,
    count: number,
    rows: Float32Array,
    outcomes: Uint8Array,
  ): number {
    const positions = this.#positions;
    sortByShard(keys, count, {
      shards: this.#shards,
      ends: this.#ends,
      sorted: this.#keys,
      positions,
    });
    const { dim } = requireDefined(shards[0], 'the first shard');
    const sortedOutcomes = this.#reserveOutcomes(count);
    let hits = 0;
    let start = 0;
    for (let shard = 0; shard < shards.length; shard++) {
      const end = this.#ends[shard]!;
      if (end > start) {
        const own = this.#keys.subarray(2 * start);
        const ownRows = this.#rows.subarray(start * dim);
        const ownOutcomes = sortedOutcomes.subarray(start);
        hits += this.#find(shards[shard]!, own, end - start, ownRows, ownOutcomes);
      }
      start = end;
    }
    scatterRows(this.#rows, rows, dim, positions, count);
    if (hits === count) outcomes.fill(OUTCOME_HIT, 0, count);
    else for (let i = 0; i < count; i++) outcomes[positions[i]!] = sortedOutcomes[i]!;
    return count - hits;
  }

  #sortedOutcomes = new Uint8Array(0);

  #reserveOutcomes(count: number): Uint8Array {
    if (this.#sortedOutcomes.length < count) this.#sortedOutcomes = new Uint8Array(2 * count);
    return this.#sortedOutcomes;
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

/** Stable counting sort. */
function sortByShard(
  keys: Uint32Array,
  count: number,
  out: { shards: Int32Array; ends: Int32Array; sorted: Uint32Array; positions: Int32Array },
): void {
  const { shards, ends, sorted, positions } = out;
  const shardNum = ends.length;
  ends.fill(0);
  for (let i = 0; i < count; i++) {
    const shard = computeShard(keys[2 * i]!, keys[2 * i + 1]!, shardNum);
    shards[i] = shard;
    ends[shard]!++;
  }
  let start = 0;
  for (let shard = 0; shard < shardNum; shard++) {
    const own = ends[shard]!;
    ends[shard] = start;
    start += own;
  }
  for (let i = 0; i < count; i++) {
    const at = ends[shards[i]!]!++;
    sorted[2 * at] = keys[2 * i]!;
    sorted[2 * at + 1] = keys[2 * i + 1]!;
    positions[at] = i;
  }
}

function scatterRows(
  source: Float32Array,
  target: Float32Array,
  dim: number,
  positions: Int32Array,
  count: number,
): void {
  if (dim > LOOP_COPY_DIM) {
    for (let i = 0; i < count; i++) {
      target.set(source.subarray(i * dim, (i + 1) * dim), positions[i]! * dim);
    }
  } else if (dim % 2 === 0 && target.byteOffset % 8 === 0) {
    // Copying pairs of values as doubles takes a third of the time. Bits are kept: a pair that
    // reads as NaN holds a NaN.
    scatterElements(
      pairs(source, count * dim),
      pairs(target, count * dim),
      dim / 2,
      positions,
      count,
    );
  } else {
    scatterElements(source, target, dim, positions, count);
  }
}

function pairs({ buffer, byteOffset }: Float32Array, length: number): Float64Array {
  return new Float64Array(buffer, byteOffset, length / 2);
}

/** Marks indices as 32-bit integers, so that the engine does not check for larger ones. */
function scatterElements<T extends Float32Array | Float64Array>(
  source: T,
  target: T,
  width: number,
  positions: Int32Array,
  count: number,
): void {
  for (let i = 0; i < count; i++) {
    const from = Math.imul(i, width);
    const to = Math.imul(positions[i]!, width);
    for (let at = 0; at < width; at = (at + 1) | 0)
      target[(to + at) | 0] = source[(from + at) | 0]!;
  }
}
