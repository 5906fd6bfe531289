/**
 * Scatter and gather, without any I/O: the keys of all groups sorted by shard into one packed buffer, and the
 * answers of the shards written back to where their keys came from.
 *
 * Positions: the packed buffer holds the keys in (shard, group, order of the group) order. `order[position]` is the
 * key's index in its group; the keys of (shard s, group g) are the positions starts[s·groups + g] … starts[s·groups + g + 1].
 */
import { shardOf } from '../core/keys.ts';
import { type LookupGroup, OUTCOME_HIT, OUTCOME_UNSEEN } from './lookup-group.ts';

/** One request: the positions `start` … `end` of one shard. */
export interface ShardRequest {
  readonly shard: number;
  readonly start: number;
  readonly end: number;
}

/** The part of a request that belongs to one group. */
export interface RequestPart {
  readonly group: number;
  readonly start: number;
  readonly count: number;
}

/** Rows of up to this many elements are copied one by one, longer ones by `set`: measured to cross near here. */
const LOOP_COPY_DIM = 32;

/** Scratch of one lookup in flight; reused by later ones, so it grows to the largest batch and stays there. */
export class Scatter {
  /** Keys by position: 2 words each. */
  words: Uint32Array = new Uint32Array(0);
  order: Uint32Array = new Uint32Array(0);
  starts: Uint32Array = new Uint32Array(0);
  #shards: Uint32Array = new Uint32Array(0);
  #groupCount = 0;
  #shardNum = 0;

  /** Sorts the keys of all groups by shard: a counting sort, so groups keep their order. */
  scatter(groups: readonly LookupGroup[], shardNum: number): void {
    const groupCount = groups.length;
    let total = 0;
    for (const group of groups) total += group.count;
    this.#reserve(total, shardNum * groupCount + 1);
    this.#groupCount = groupCount;
    this.#shardNum = shardNum;
    const starts = this.starts.fill(0, 0, shardNum * groupCount + 1);
    const shards = this.#shards;
    for (let g = 0, at = 0; g < groupCount; g++) {
      const { keys, count } = groups[g]!;
      countShards(keys, count, shardNum, shards, at, starts, g, groupCount);
      at += count;
    }
    for (let i = 0, sum = 0; i <= shardNum * groupCount; i++) {
      const here = starts[i]!;
      starts[i] = sum;
      sum += here;
    }
    for (let g = 0, at = 0; g < groupCount; g++) {
      const { keys, count } = groups[g]!;
      place(keys, count, shards, at, starts, g, groupCount, this.words, this.order);
      at += count;
    }
    // Placing moved each start to its end, which is the next one's start.
    starts.copyWithin(1, 0, shardNum * groupCount);
    starts[0] = 0;
  }

  /** One request for each shard that has keys, more where a shard has more than `keysMax`. */
  requests(keysMax: number): ShardRequest[] {
    const requests: ShardRequest[] = [];
    for (let shard = 0; shard < this.#shardNum; shard++) {
      const last = this.starts[(shard + 1) * this.#groupCount]!;
      for (let start = this.starts[shard * this.#groupCount]!; start < last; start += keysMax) {
        requests.push({ shard, start, end: Math.min(start + keysMax, last) });
      }
    }
    return requests;
  }

  /** The groups that a request has keys of, in order. */
  parts(request: ShardRequest): RequestPart[] {
    const parts: RequestPart[] = [];
    for (let group = 0; group < this.#groupCount; group++) {
      const at = request.shard * this.#groupCount + group;
      const start = Math.max(this.starts[at]!, request.start);
      const end = Math.min(this.starts[at + 1]!, request.end);
      if (start < end) parts.push({ group, start, count: end - start });
    }
    return parts;
  }

  /** The request's keys as they go over the wire: u64 little-endian; a view of the scratch. */
  keyBytes(request: ShardRequest): Uint8Array {
    const { buffer, byteOffset } = this.words;
    return new Uint8Array(
      buffer,
      byteOffset + request.start * 8,
      (request.end - request.start) * 8,
    );
  }

  #reserve(keys: number, starts: number): void {
    if (this.order.length < keys) {
      const capacity = Math.max(keys, 2 * this.order.length);
      this.words = new Uint32Array(2 * capacity);
      this.order = new Uint32Array(capacity);
      this.#shards = new Uint32Array(capacity);
    }
    if (this.starts.length < starts) this.starts = new Uint32Array(starts);
  }
}

function countShards(
  keys: Uint32Array,
  count: number,
  shardNum: number,
  shards: Uint32Array,
  shardsAt: number,
  counts: Uint32Array,
  group: number,
  groupCount: number,
): void {
  for (let i = 0; i < count; i++) {
    const shard = shardOf(keys[2 * i]!, keys[2 * i + 1]!, shardNum);
    shards[shardsAt + i] = shard;
    counts[shard * groupCount + group]!++;
  }
}

function place(
  keys: Uint32Array,
  count: number,
  shards: Uint32Array,
  shardsAt: number,
  nexts: Uint32Array,
  group: number,
  groupCount: number,
  words: Uint32Array,
  order: Uint32Array,
): void {
  for (let i = 0; i < count; i++) {
    const position = nexts[shards[shardsAt + i]! * groupCount + group]!++;
    words[2 * position] = keys[2 * i]!;
    words[2 * position + 1] = keys[2 * i + 1]!;
    order[position] = i;
  }
}

/**
 * Writes the answer of one part to its group: row and outcome of each key. `found` and `source` are the part's bitmap
 * and rows (a missing key's row is the default row already). @returns the number of unseen keys
 */
export function gatherPart(
  part: RequestPart,
  order: Uint32Array,
  found: Uint8Array,
  source: Float32Array,
  dim: number,
  target: LookupGroup,
): number {
  const unseen = gatherOutcomes(part, order, found, target.outcomes);
  if (dim <= LOOP_COPY_DIM) copyShortRows(part, order, source, dim, target.rows);
  else copyLongRows(part, order, source, dim, target.rows);
  return unseen;
}

function gatherOutcomes(
  part: RequestPart,
  order: Uint32Array,
  found: Uint8Array,
  outcomes: Uint8Array,
): number {
  const { start, count } = part;
  let unseen = 0;
  for (let i = 0; i < count; i++) {
    const hit = (found[i >>> 3]! >>> (i & 7)) & 1;
    outcomes[order[start + i]!] = hit === 1 ? OUTCOME_HIT : OUTCOME_UNSEEN;
    unseen += 1 - hit;
  }
  return unseen;
}

function copyShortRows(
  part: RequestPart,
  order: Uint32Array,
  source: Float32Array,
  dim: number,
  rows: Float32Array,
): void {
  const { start, count } = part;
  for (let i = 0, from = 0; i < count; i++) {
    const to = order[start + i]! * dim;
    for (let d = 0; d < dim; d++) rows[to + d] = source[from++]!;
  }
}

function copyLongRows(
  part: RequestPart,
  order: Uint32Array,
  source: Float32Array,
  dim: number,
  rows: Float32Array,
): void {
  const { start, count } = part;
  for (let i = 0; i < count; i++) {
    rows.set(source.subarray(i * dim, (i + 1) * dim), order[start + i]! * dim);
  }
}

/** Gives every key of a part this outcome and this row. */
export function fillPart(
  part: RequestPart,
  order: Uint32Array,
  row: Float32Array,
  outcome: number,
  target: LookupGroup,
): void {
  for (let i = 0; i < part.count; i++) {
    const index = order[part.start + i]!;
    target.rows.set(row, index * row.length);
    target.outcomes[index] = outcome;
  }
}
