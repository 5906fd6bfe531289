/**
 * Lookups in tables that are resident in this process: keys of any shard in, rows and outcomes out, in the order asked. Used by
 * the store on the main thread, and by each model worker on its own area of the same memories.
 *
 * Synchronous; the scratch is reused, so one instance serves one thread.
 */
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from '../../lib/client/lookup-group.ts';
import { CubeError } from '../../lib/core/errors.ts';
import { shardOf } from '../../lib/core/keys.ts';
import { LookupBatch } from '../../lib/store/lookup-batch.ts';
import type { ResidentTable } from '../../lib/store/resident-table.ts';
import type { ResidentVersion } from '../../lib/store/resident-version.ts';

/** Up to this dim an element loop copies a row faster than `set(subarray)`. */
const LOOP_COPY_DIM = 16;

export class ShardedLookup {
  readonly #source: string;
  readonly #shardNum: number;
  /** By name, one a shard. */
  readonly #tables = new Map<string, readonly ResidentTable[]>();
  readonly #batch = new LookupBatch({ asF32: true });
  /** Of a batch: the shard of each key; keys sorted by shard, which position each was asked at, and what was found for it. */
  #shards = new Int32Array(0);
  #keys = new Uint32Array(0);
  #positions = new Int32Array(0);
  #rows = new Float32Array(0);
  #found = new Uint8Array(0);
  /** Where the keys of each shard end. */
  readonly #ends: Int32Array;

  /** @param shards all shards of one version, in order */
  constructor(shards: readonly ResidentVersion[]) {
    const { manifest } = shards[0]!;
    this.#source = `${manifest.bundle} ${manifest.version}`;
    this.#shardNum = shards.length;
    this.#ends = new Int32Array(shards.length);
    for (const { name } of manifest.tables) {
      this.#tables.set(
        name,
        shards.map((shard) => shard.table(name)!),
      );
    }
  }

  /** Fills rows and outcomes of one group, whose arrays are long enough. @returns how many keys are in no shard */
  lookup({ table, keys, count, rows, outcomes }: LookupGroup): number {
    if (count === 0) return 0;
    const shards = this.#tables.get(table)!;
    this.#reserve(count, shards[0]!.dim);
    if (this.#shardNum === 1) return count - this.#find(shards[0]!, keys, count, rows, outcomes);
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

  /** One shard's keys. @returns hits */
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
    if (hits < 0) this.#refuseForeign(table, -1 - hits);
    if (hits === count) {
      outcomes.fill(OUTCOME_HIT, 0, count);
      return hits;
    }
    for (let i = 0; i < count; i++) {
      outcomes[i] = (found[i >>> 3]! >>> (i & 7)) & 1 ? OUTCOME_HIT : OUTCOME_UNSEEN;
    }
    return hits;
  }

  /** Sorts the keys by shard, looks each shard's up, and puts rows and outcomes where they were asked. */
  #scatter(
    shards: readonly ResidentTable[],
    keys: Uint32Array,
    count: number,
    rows: Float32Array,
    outcomes: Uint8Array,
  ): number {
    const positions = this.#positions;
    sortByShard(keys, count, {
      ...{ shards: this.#shards, ends: this.#ends },
      ...{ sorted: this.#keys, positions },
    });
    const { dim } = shards[0]!;
    const sortedOutcomes = this.#outcomesOf(count);
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

  #outcomes = new Uint8Array(0);

  #outcomesOf(count: number): Uint8Array {
    if (this.#outcomes.length < count) this.#outcomes = new Uint8Array(2 * count);
    return this.#outcomes;
  }

  /** The keys were sorted by this very rule: the files are not what the manifest says. */
  #refuseForeign(table: ResidentTable, i: number): never {
    throw new CubeError(
      'CORRUPT',
      `${this.#source}: table ${table.name}: key ${i} of a shard is of another one; publish the version again`,
    );
  }
}

/** Stable: counts, then places. */
function sortByShard(
  keys: Uint32Array,
  count: number,
  out: { shards: Int32Array; ends: Int32Array; sorted: Uint32Array; positions: Int32Array },
): void {
  const { shards, ends, sorted, positions } = out;
  const shardNum = ends.length;
  ends.fill(0);
  for (let i = 0; i < count; i++) {
    const shard = shardOf(keys[2 * i]!, keys[2 * i + 1]!, shardNum);
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
    // Pairs of values as doubles take a third of the time. A pair that is no number as a double holds a value that is none.
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

/** Indices are 32-bit integers, and said to be: the engine would look out for larger ones. */
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
