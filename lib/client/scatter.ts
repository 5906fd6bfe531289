/**
 * Scatter and gather, without any I/O: the keys of all groups sorted by shard into one packed buffer, and the
 * answers of the shards written back to where their keys came from.
 *
 * Positions: the packed buffer holds the keys in (shard, group, order of the group) order. `order[position]` is the
 * key's index in its group; the keys of (shard s, group g) are the positions starts[s·groups + g] … starts[s·groups + g + 1].
 */
import { groupBytes } from '../../proto/lookup.ts';
import { shardOf } from '../core/keys.ts';
import { OUTCOME_HIT, OUTCOME_UNSEEN } from './lookup-group.ts';

/** Keys of one group: 2·count words. */
export interface KeyGroup {
  readonly keys: Uint32Array;
  readonly count: number;
}

/** Where rows of one group go: f32 values, or words of rows as stored. */
export interface RowTarget {
  readonly rows: Float32Array | Uint32Array;
  readonly outcomes: Uint8Array;
}

/** One request: the positions `start` … `end` of one shard, group by group. */
export interface ShardRequest {
  readonly shard: number;
  readonly start: number;
  readonly end: number;
  readonly parts: readonly RequestPart[];
}

/** What one request may be at most; a single row may be larger than `answerBytes`. */
export interface RequestLimits {
  readonly keys: number;
  readonly groups: number;
  readonly answerBytes: number;
}

/** The part of a request that belongs to one group. */
export interface RequestPart {
  readonly group: number;
  readonly start: number;
  readonly count: number;
}

/** Rows of up to this many elements are copied one by one, longer ones by `set`: measured to cross near here. */
const LOOP_COPY_ELEMENTS = 32;

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
  scatter(groups: readonly KeyGroup[], shardNum: number): void {
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

  /** One request for each shard that has keys, more where one would be over a limit. @param rowBytes by group */
  requests(limits: RequestLimits, rowBytes: readonly number[]): ShardRequest[] {
    const requests: ShardRequest[] = [];
    for (let shard = 0; shard < this.#shardNum; shard++) {
      const first = this.starts[shard * this.#groupCount]!;
      const last = this.starts[(shard + 1) * this.#groupCount]!;
      if (first < last) this.#cut(shard, limits, rowBytes, requests);
    }
    return requests;
  }

  #cut(
    shard: number,
    limits: RequestLimits,
    rowBytes: readonly number[],
    requests: ShardRequest[],
  ): void {
    let parts: RequestPart[] = [];
    let start = this.starts[shard * this.#groupCount]!;
    let at = start;
    let bytesLeft = limits.answerBytes;
    const finish = (): void => {
      requests.push({ shard, start, end: at, parts });
      parts = [];
      start = at;
      bytesLeft = limits.answerBytes;
    };
    for (let group = 0; group < this.#groupCount; group++) {
      const end = this.starts[shard * this.#groupCount + group + 1]!;
      while (at < end) {
        const room = Math.min(limits.keys - (at - start), keysIn(bytesLeft, rowBytes[group]!));
        if (parts.length === limits.groups || (parts.length > 0 && room < 1)) {
          finish();
          continue;
        }
        const count = Math.min(end - at, Math.max(1, room));
        parts.push({ group, start: at, count });
        at += count;
        bytesLeft -= groupBytes(count, rowBytes[group]!);
      }
    }
    if (parts.length > 0) finish();
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

/** How many keys of a group an answer of so many bytes has room for, with the bitmap's and the padding's share. */
function keysIn(answerBytes: number, rowBytes: number): number {
  return Math.floor((answerBytes - 16) / (rowBytes + 1 / 8));
}

/**
 * Writes the rows of one part to its group. `source` holds the part's rows (a missing key's row is the default row already),
 * elements of 4 bytes like the target's.
 */
export function gatherRows(
  part: RequestPart,
  order: Uint32Array,
  source: Float32Array | Uint32Array,
  elements: number,
  target: Float32Array | Uint32Array,
): void {
  if (elements <= LOOP_COPY_ELEMENTS) copyShortRows(part, order, source, elements, target);
  else copyLongRows(part, order, source, elements, target);
}

/** Writes the outcome of each key of a part. @param found the part's bitmap @returns the number of unseen keys */
export function gatherOutcomes(
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
  source: Float32Array | Uint32Array,
  elements: number,
  rows: Float32Array | Uint32Array,
): void {
  const { start, count } = part;
  for (let i = 0, from = 0; i < count; i++) {
    const to = order[start + i]! * elements;
    for (let e = 0; e < elements; e++) rows[to + e] = source[from++]!;
  }
}

function copyLongRows(
  part: RequestPart,
  order: Uint32Array,
  source: Float32Array | Uint32Array,
  elements: number,
  rows: Float32Array | Uint32Array,
): void {
  const { start, count } = part;
  for (let i = 0; i < count; i++) {
    rows.set(source.subarray(i * elements, (i + 1) * elements), order[start + i]! * elements);
  }
}

/** Gives every key of a part this outcome and this row. */
export function fillPart(
  part: RequestPart,
  order: Uint32Array,
  row: Float32Array | Uint32Array,
  outcome: number,
  target: RowTarget,
): void {
  for (let i = 0; i < part.count; i++) {
    const index = order[part.start + i]!;
    target.rows.set(row, index * row.length);
    target.outcomes[index] = outcome;
  }
}
