/**
 * Keys and rows of one shard to the segments of a layer file: pure, and a function of the content alone, so that the
 * order of the input does not show. Dense when the keys are a progression, inline otherwise. One segment's bytes are
 * made at a time; no object, string or BigInt per row.
 */
import { CubeError } from './errors.ts';
import { keyToBigint, mixKey, multiplyHigh, shardOf } from './keys.ts';
import {
  alignUp,
  blockCountOf,
  DIM_MAX,
  HEADER_BYTES,
  homeSlotsOf,
  type LayerHeader,
  type LayerSegment,
  NO_CONTENT_ID,
  SECTION_ALIGNMENT,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  SHARD_NUM_MAX,
  strideOf,
} from './layer-format.ts';
import { checkName } from './names.ts';

export interface LayerInput {
  readonly table: string;
  readonly dim: number;
  readonly shardIndex: number;
  readonly shardNum: number;
  /** 2n words (low, high), distinct, in any order. */
  readonly keys: Uint32Array;
  /** n · dim, in the order of the keys. */
  readonly rows: Float32Array;
}

/** A layer before its bytes are hashed: the header but for its checksums and content id. */
export interface LayerPlan {
  readonly header: LayerHeader;
  /** The bytes of one segment; call them in order, one at a time. */
  segmentBytes(segment: number): Uint8Array;
}

const UNHASHED = {
  contentId: NO_CONTENT_ID,
  kind: 'base',
  parentContentId: '',
  rowSegmentCount: 0,
  deletedCount: 0,
  deletedOffset: 0,
  deletedSlots: 0,
  deletedHomeSlots: 0,
  checksumsChecksum: 0n,
} as const;
const NOTHING_DENSE = { firstKey: 0n, keyStep: 0n, rowsPerSegment: 0 } as const;

/** A batch of rows and its common fields, while a layout is chosen. */
interface Rows {
  readonly keys: Uint32Array;
  /** The rows as words, which keeps every bit pattern of a float. */
  readonly words: Uint32Array;
  readonly count: number;
  readonly dim: number;
}

function checkInput(input: LayerInput): Rows {
  const { table, dim, shardIndex, shardNum, keys, rows } = input;
  const refuse = (text: string): never => {
    throw new CubeError('INVALID_ARGUMENT', `table ${table}: ${text}`);
  };
  checkName(table, 'table');
  if (!Number.isInteger(dim) || dim < 1 || dim > DIM_MAX) refuse(`dim ${dim}`);
  if (!Number.isInteger(shardNum) || shardNum < 1 || shardNum > SHARD_NUM_MAX) {
    refuse(`shardNum ${shardNum}`);
  }
  if (!Number.isInteger(shardIndex) || shardIndex < 0 || shardIndex >= shardNum) {
    refuse(`shard ${shardIndex} of ${shardNum}`);
  }
  const count = keys.length / 2;
  if (rows.length !== count * dim) {
    refuse(`${keys.length} key words and ${rows.length} floats are not keys with rows of ${dim}`);
  }
  for (let i = 0; i < count; i++) {
    if (shardOf(keys[2 * i]!, keys[2 * i + 1]!, shardNum) === shardIndex) continue;
    refuse(`key ${keyToBigint(keys, i)} does not belong to shard ${shardIndex} of ${shardNum}`);
  }
  return { keys, words: new Uint32Array(rows.buffer, rows.byteOffset, rows.length), count, dim };
}

/**
 * Plans a layer.
 * @param segmentBytesMax smaller segments than the format allows, for tests
 * @throws CubeError INVALID_ARGUMENT naming a key that comes twice or belongs to another shard
 */
export function planLayer(
  input: LayerInput,
  segmentBytesMax: number = SEGMENT_BYTES_MAX,
): LayerPlan {
  const rows = checkInput(input);
  const progression = findProgression(rows);
  const common = {
    table: input.table,
    dtype: 'f32',
    dim: input.dim,
    rowBytes: 4 * input.dim,
    shardIndex: input.shardIndex,
    shardNum: input.shardNum,
    rowCount: rows.count,
  } as const;
  if (progression !== undefined) return planDense(common, rows, progression, segmentBytesMax);
  return planInline(common, rows, segmentBytesMax);
}

type CommonFields = Pick<
  LayerHeader,
  'table' | 'dtype' | 'dim' | 'rowBytes' | 'shardIndex' | 'shardNum' | 'rowCount'
>;

/** Puts sections one after the other, and the checksums after them. */
function layOut(
  sizes: readonly { rows: number; slots: number }[],
  stride: number,
): Pick<LayerHeader, 'stride' | 'segments' | 'checksumsOffset' | 'blockCount' | 'fileBytes'> {
  let end = HEADER_BYTES;
  const segments = sizes.map(({ rows, slots }): LayerSegment => {
    const offset = alignUp(end, SECTION_ALIGNMENT);
    const bytes = slots * stride;
    end = offset + bytes;
    return { offset, bytes, rows, slots };
  });
  const checksumsOffset = alignUp(end, SECTION_ALIGNMENT);
  const blockCount = blockCountOf(checksumsOffset);
  const fileBytes = checksumsOffset + 8 * blockCount;
  return { stride, segments, checksumsOffset, blockCount, fileBytes };
}

function tooManySegments(table: string, count: number): never {
  throw new CubeError(
    'TOO_LARGE',
    `table ${table}: a shard of ${count} rows needs more than ${SEGMENT_COUNT_MAX} segments; use more shards`,
  );
}

/** Keys first + i · step. Spans of 2^53 and more are left to the inline layout. */
interface Progression {
  readonly firstLow: number;
  readonly firstHigh: number;
  readonly step: number;
}

/** key − first as a number, exact while it is below 2^53. */
function distance(keys: Uint32Array, i: number, firstLow: number, firstHigh: number): number {
  return (keys[2 * i + 1]! - firstHigh) * 0x1_0000_0000 + (keys[2 * i]! - firstLow);
}

function findProgression({ keys, count }: Rows): Progression | undefined {
  if (count === 0) return undefined;
  let least = 0;
  for (let i = 1; i < count; i++) {
    const order = keys[2 * i + 1]! - keys[2 * least + 1]! || keys[2 * i]! - keys[2 * least]!;
    if (order < 0) least = i;
  }
  const firstLow = keys[2 * least]!;
  const firstHigh = keys[2 * least + 1]!;
  let span = 0;
  for (let i = 0; i < count; i++) span = Math.max(span, distance(keys, i, firstLow, firstHigh));
  const step = count === 1 ? 1 : span / (count - 1);
  if (span > Number.MAX_SAFE_INTEGER || !Number.isInteger(step) || step < 1) return undefined;
  const seen = new Uint8Array(count);
  for (let i = 0; i < count; i++) {
    const place = distance(keys, i, firstLow, firstHigh) / step;
    if (!Number.isInteger(place) || seen[place] === 1) return undefined;
    seen[place] = 1;
  }
  return { firstLow, firstHigh, step };
}

function planDense(
  common: CommonFields,
  rows: Rows,
  progression: Progression,
  segmentBytesMax: number,
): LayerPlan {
  const { count, dim, keys, words } = rows;
  const { firstLow, firstHigh, step } = progression;
  const stride = strideOf('dense', common.rowBytes);
  const rowsPerSegment = Math.max(1, Math.floor(segmentBytesMax / stride));
  const segmentCount = Math.ceil(count / rowsPerSegment);
  if (segmentCount > SEGMENT_COUNT_MAX) tooManySegments(common.table, count);
  const sizes = Array.from({ length: segmentCount }, (_, i) => {
    const inSegment = Math.min(rowsPerSegment, count - i * rowsPerSegment);
    return { rows: inSegment, slots: inSegment };
  });
  const header: LayerHeader = {
    ...UNHASHED,
    ...common,
    ...layOut(sizes, stride),
    layout: 'dense',
    emptyKey: 0n,
    firstKey: (BigInt(firstHigh) << 32n) | BigInt(firstLow),
    keyStep: BigInt(step),
    homeSlots: 0,
    rowsPerSegment,
  };
  const segmentBytes = (segment: number): Uint8Array => {
    const target = new Uint32Array(header.segments[segment]!.bytes / 4);
    const startRow = segment * rowsPerSegment;
    for (let i = 0; i < count; i++) {
      const row = distance(keys, i, firstLow, firstHigh) / step - startRow;
      if (row >= 0 && row < rowsPerSegment) copyRow(target, row * dim, words, i * dim, dim);
    }
    return new Uint8Array(target.buffer);
  };
  return { header, segmentBytes };
}

function copyRow(
  target: Uint32Array,
  at: number,
  words: Uint32Array,
  from: number,
  length: number,
): void {
  for (let i = 0; i < length; i++) target[at + i] = words[from + i]!;
}

/** The greatest u64 that is not a key. */
function findEmptyKey(keys: Uint32Array): bigint {
  const lows: number[] = [];
  for (let i = 0; i < keys.length; i += 2) {
    if (keys[i + 1] === 0xffff_ffff && keys[i]! > 0xffff_ffff - keys.length) lows.push(keys[i]!);
  }
  let candidate = 0xffff_ffff;
  for (const low of lows.sort((a, b) => b - a)) if (low === candidate) candidate -= 1;
  return (0xffff_ffffn << 32n) | BigInt(candidate);
}

/** Row numbers of a segment in (home, key) order. */
interface SegmentOrder {
  readonly order: Uint32Array;
  /** One more than the last slot that a row takes. */
  readonly slotsUsed: number;
}

function planInline(common: CommonFields, rows: Rows, segmentBytesMax: number): LayerPlan {
  const stride = strideOf('inline', common.rowBytes);
  const slotsMax = Math.floor(segmentBytesMax / stride);
  const least = Math.ceil((1.25 * rows.count) / Math.max(1, slotsMax - 1));
  for (let segmentCount = least; segmentCount <= SEGMENT_COUNT_MAX; segmentCount++) {
    const homeSlots = rows.count === 0 ? 0 : homeSlotsOf(rows.count, segmentCount);
    const segments = orderRows(rows, segmentCount, homeSlots);
    const sizes = segments.map(({ order, slotsUsed }) => ({
      rows: order.length,
      slots: Math.max(slotsUsed, homeSlots) + 1,
    }));
    if (sizes.some(({ slots }) => slots > slotsMax)) continue;
    const header: LayerHeader = {
      ...UNHASHED,
      ...common,
      ...NOTHING_DENSE,
      ...layOut(sizes, stride),
      layout: 'inline',
      emptyKey: findEmptyKey(rows.keys),
      homeSlots,
    };
    return { header, segmentBytes: (i) => fillSegment(header, i, rows, segments[i]!.order) };
  }
  return tooManySegments(common.table, rows.count);
}

/** Splits the rows into segments and orders each by (home, key). */
function orderRows(rows: Rows, segmentCount: number, homeSlots: number): SegmentOrder[] {
  const { keys, count } = rows;
  const homes = new Uint32Array(count);
  const segmentOfRow = new Uint8Array(segmentCount > 1 ? count : 0);
  const inSegment = new Uint32Array(segmentCount);
  const mixed = new Uint32Array(2);
  for (let i = 0; i < count; i++) {
    mixKey(keys[2 * i]!, keys[2 * i + 1]!, mixed, 0);
    homes[i] = multiplyHigh(mixed[1]!, homeSlots);
    const segment = segmentCount > 1 ? multiplyHigh(mixed[0]!, segmentCount) : 0;
    if (segmentCount > 1) segmentOfRow[i] = segment;
    inSegment[segment]! += 1;
  }
  return Array.from({ length: segmentCount }, (_, segment) => {
    const order = new Uint32Array(inSegment[segment]!);
    sortByHome(segmentOfRow, segment, homes, homeSlots, order);
    sortRuns(keys, homes, order);
    return { order, slotsUsed: slotsUsed(homes, order) };
  });
}

/** Counting sort by home slot of the rows of one segment. */
function sortByHome(
  segmentOfRow: Uint8Array,
  segment: number,
  homes: Uint32Array,
  homeSlots: number,
  order: Uint32Array,
): void {
  const split = segmentOfRow.length > 0;
  const starts = new Uint32Array(homeSlots + 1);
  for (let i = 0; i < homes.length; i++) {
    if (!split || segmentOfRow[i] === segment) starts[homes[i]! + 1]! += 1;
  }
  for (let home = 0; home < homeSlots; home++) starts[home + 1]! += starts[home]!;
  for (let i = 0; i < homes.length; i++) {
    if (split && segmentOfRow[i] !== segment) continue;
    const home = homes[i]!;
    order[starts[home]!] = i;
    starts[home]! += 1;
  }
}

/** Insertion sort by key among rows of one home: they are few. Equal keys meet here. */
function sortRuns(keys: Uint32Array, homes: Uint32Array, order: Uint32Array): void {
  for (let i = 1; i < order.length; i++) {
    const row = order[i]!;
    let at = i;
    for (; at > 0; at--) {
      const before = order[at - 1]!;
      if (homes[before] !== homes[row]) break;
      const difference =
        keys[2 * row + 1]! - keys[2 * before + 1]! || keys[2 * row]! - keys[2 * before]!;
      if (difference > 0) break;
      if (difference === 0) {
        throw new CubeError('INVALID_ARGUMENT', `key ${keyToBigint(keys, row)} comes twice`);
      }
      order[at] = before;
    }
    order[at] = row;
  }
}

function slotsUsed(homes: Uint32Array, order: Uint32Array): number {
  let next = 0;
  for (let i = 0; i < order.length; i++) next = Math.max(next, homes[order[i]!]!) + 1;
  return next;
}

function fillSegment(
  header: LayerHeader,
  segment: number,
  rows: Rows,
  order: Uint32Array,
): Uint8Array {
  const { keys, words, dim } = rows;
  const { bytes, slots } = header.segments[segment]!;
  const strideWords = header.stride / 4;
  const target = new Uint32Array(bytes / 4);
  const emptyLow = Number(header.emptyKey & 0xffff_ffffn);
  const emptyHigh = Number(header.emptyKey >> 32n);
  const mixed = new Uint32Array(2);
  let slot = 0;
  const fillEmpty = (end: number): void => {
    for (; slot < end; slot++) {
      target[slot * strideWords] = emptyLow;
      target[slot * strideWords + 1] = emptyHigh;
    }
  };
  for (let i = 0; i < order.length; i++) {
    const row = order[i]!;
    mixKey(keys[2 * row]!, keys[2 * row + 1]!, mixed, 0);
    fillEmpty(multiplyHigh(mixed[1]!, header.homeSlots));
    const at = slot * strideWords;
    target[at] = keys[2 * row]!;
    target[at + 1] = keys[2 * row + 1]!;
    copyRow(target, at + 2, words, row * dim, dim);
    slot += 1;
  }
  fillEmpty(slots);
  return new Uint8Array(target.buffer);
}
