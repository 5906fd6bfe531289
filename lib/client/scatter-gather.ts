/**
 * Scatter and gather, without any I/O: sorts the keys of all groups by shard into one packed
 * buffer, and writes the shards' responses back to where their keys came from.
 *
 * Positions: the packed buffer holds the keys in (shard, group, order of the group) order.
 * `order[position]` is the key's index in its group. The keys of (shard s, group g) are the
 * positions starts[s·groups + g] … starts[s·groups + g + 1].
 */
import { fixedRowsResponseBytes } from '../../proto/lookup.ts';
import { computeShard } from '../core/keys.ts';
import { OUTCOME_HIT, OUTCOME_UNSEEN } from '../core/lookup-group.ts';

/** The keys of one group. */
export interface KeyGroup {
  /** 2·count words (low, high). */
  readonly keys: Uint32Array;
  readonly count: number;
}

/** The buffers for the rows of one group: f32 values, or words of rows as stored. */
export interface RowOutput {
  readonly rows: Float32Array | Uint32Array;
  readonly outcomes: Uint8Array;
}

/** One request: the positions `start` … `end` of one shard, split by group. */
export interface ShardRequest {
  readonly shard: number;
  readonly start: number;
  readonly end: number;
  readonly parts: readonly RequestPart[];
}

/** Upper limits of one request. A single row may exceed `responseBytes`. */
export interface RequestLimits {
  readonly keys: number;
  readonly groups: number;
  readonly responseBytes: number;
}

/** The part of a request that belongs to one group. */
export interface RequestPart {
  readonly group: number;
  readonly start: number;
  readonly count: number;
}

/**
 * Rows of up to this many elements are copied in a loop, longer ones by `set`: measured to be
 * equally fast about here.
 */
const LOOP_COPY_ELEMENTS = 32;

/**
 * The keys of one lookup in flight. Later lookups reuse the buffers, which grow to the largest
 * batch.
 */
export class ShardedKeys {
  /** Keys by position: 2 words (low, high) each. */
  words: Uint32Array = new Uint32Array(0);
  order: Uint32Array = new Uint32Array(0);
  starts: Uint32Array = new Uint32Array(0);
  #shards: Uint32Array = new Uint32Array(0);
  #groupCount = 0;
  #shardNum = 0;

  /**
   * Sorts the keys of all groups by shard, with a counting sort that keeps the order within each
   * group.
   */
  assign(groups: readonly KeyGroup[], shardNum: number): void {
    const groupCount = groups.length;
    let total = 0;
    for (const group of groups) total += group.count;
    this.#reserve(total, shardNum * groupCount + 1);
    this.#groupCount = groupCount;
    this.#shardNum = shardNum;
    const starts = this.starts.fill(0, 0, shardNum * groupCount + 1);
    const shards = this.#shards;
    for (let g = 0, offset = 0; g < groupCount; g++) {
      const { keys, count } = groups[g]!;
      countShards(keys, count, shardNum, shards, offset, starts, g, groupCount);
      offset += count;
    }
    for (let i = 0, next = 0; i <= shardNum * groupCount; i++) {
      const count = starts[i]!;
      starts[i] = next;
      next += count;
    }
    for (let g = 0, offset = 0; g < groupCount; g++) {
      const { keys, count } = groups[g]!;
      placeKeys(keys, count, shards, offset, starts, g, groupCount, this.words, this.order);
      offset += count;
    }
    // placeKeys advanced each start to its end, which is the next start.
    starts.copyWithin(1, 0, shardNum * groupCount);
    starts[0] = 0;
  }

  /**
   * Returns one request per shard that has keys, more where one would exceed a limit. @param
   * rowBytes index = group
   */
  createRequests(limits: RequestLimits, rowBytes: readonly number[]): ShardRequest[] {
    const requests: ShardRequest[] = [];
    for (let shard = 0; shard < this.#shardNum; shard++) {
      const first = this.starts[shard * this.#groupCount]!;
      const last = this.starts[(shard + 1) * this.#groupCount]!;
      if (first < last) this.#splitShard(shard, limits, rowBytes, requests);
    }
    return requests;
  }

  #splitShard(
    shard: number,
    limits: RequestLimits,
    rowBytes: readonly number[],
    requests: ShardRequest[],
  ): void {
    let parts: RequestPart[] = [];
    let start = this.starts[shard * this.#groupCount]!;
    let position = start;
    let remainingBytes = limits.responseBytes;
    const finish = (): void => {
      requests.push({ shard, start, end: position, parts });
      parts = [];
      start = position;
      remainingBytes = limits.responseBytes;
    };
    for (let group = 0; group < this.#groupCount; group++) {
      const end = this.starts[shard * this.#groupCount + group + 1]!;
      while (position < end) {
        const capacity = Math.min(
          limits.keys - (position - start),
          getKeyCapacity(remainingBytes, rowBytes[group]!),
        );
        if (parts.length === limits.groups || (parts.length > 0 && capacity < 1)) {
          finish();
          continue;
        }
        const count = Math.min(end - position, Math.max(1, capacity));
        parts.push({ group, start: position, count });
        position += count;
        remainingBytes -= fixedRowsResponseBytes(count, rowBytes[group]!);
      }
    }
    if (parts.length > 0) finish();
  }

  /** Returns the request's keys in wire form, u64 little-endian: a view of `words`. */
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
  shardsOffset: number,
  counts: Uint32Array,
  group: number,
  groupCount: number,
): void {
  for (let i = 0; i < count; i++) {
    const shard = computeShard(keys[2 * i]!, keys[2 * i + 1]!, shardNum);
    shards[shardsOffset + i] = shard;
    counts[shard * groupCount + group]!++;
  }
}

function placeKeys(
  keys: Uint32Array,
  count: number,
  shards: Uint32Array,
  shardsOffset: number,
  nexts: Uint32Array,
  group: number,
  groupCount: number,
  words: Uint32Array,
  order: Uint32Array,
): void {
  for (let i = 0; i < count; i++) {
    const position = nexts[shards[shardsOffset + i]! * groupCount + group]!++;
    words[2 * position] = keys[2 * i]!;
    words[2 * position + 1] = keys[2 * i + 1]!;
    order[position] = i;
  }
}

/** Returns how many keys of a group fit into a response, bitmap and padding included. */
function getKeyCapacity(responseBytes: number, rowBytes: number): number {
  return Math.floor((responseBytes - 16) / (rowBytes + 1 / 8));
}

/**
 * Writes the rows of one part to its group.
 * @param source the part's rows; an unseen key has the default row
 * @param elements elements of 4 bytes per row
 */
export function writeRows(
  part: RequestPart,
  order: Uint32Array,
  source: Float32Array | Uint32Array,
  elements: number,
  target: Float32Array | Uint32Array,
): void {
  if (elements <= LOOP_COPY_ELEMENTS) copyShortRows(part, order, source, elements, target);
  else copyLongRows(part, order, source, elements, target);
}

/**
 * Writes the outcome of each key of a part. @param bitmap one bit per key: 1 is a hit @returns the
 * number of unseen keys
 */
export function writeOutcomes(
  part: RequestPart,
  order: Uint32Array,
  bitmap: Uint8Array,
  outcomes: Uint8Array,
): number {
  const { start, count } = part;
  let unseen = 0;
  for (let i = 0; i < count; i++) {
    const hit = (bitmap[i >>> 3]! >>> (i & 7)) & 1;
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

/** Gives every key of a part the same outcome and row. */
export function fillRows(
  part: RequestPart,
  order: Uint32Array,
  row: Float32Array | Uint32Array,
  outcome: number,
  output: RowOutput,
): void {
  for (let i = 0; i < part.count; i++) {
    const index = order[part.start + i]!;
    output.rows.set(row, index * row.length);
    output.outcomes[index] = outcome;
  }
}

/** Splits a request that a server found too large into two of half its keys each. */
export function splitRequest({ shard, start, end, parts }: ShardRequest): ShardRequest[] {
  const middle = (start + end) >>> 1;
  const selectParts = (from: number, to: number): RequestPart[] =>
    parts.flatMap((part) => {
      const first = Math.max(part.start, from);
      const last = Math.min(part.start + part.count, to);
      return first < last ? [{ group: part.group, start: first, count: last - first }] : [];
    });
  return [
    { shard, start, end: middle, parts: selectParts(start, middle) },
    { shard, start: middle, end, parts: selectParts(middle, end) },
  ];
}
