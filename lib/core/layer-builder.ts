/**
 * Builds the sections of a layer file from the keys and rows of one shard. Pure, and a function of
 * the content alone: the order of the input does not show. The layout is dense when the keys are a
 * progression, inline while rows are small, otherwise indexed. The bytes of one section are made at
 * a time, without an object, string or BigInt per row.
 */
import { requireDefined } from './errors.ts';
import { mixKey } from './keys.ts';
import {
  computeHomeSlots,
  computeRowStride,
  computeStride,
  DELETED_STRIDE,
  INDEX_STRIDE,
  type LayerHeader,
  paddedValueBytes,
  SEGMENT_BYTES_MAX,
  SEGMENT_COUNT_MAX,
  type SegmentSize,
  VALUE_ALIGNMENT,
} from './layer-format.ts';
import {
  checkLayerInput,
  type LayerInput,
  type RowsInput,
  type ValuesInput,
} from './layer-input.ts';
import {
  computeHomeSlot,
  EmptyKeyFinder,
  keyDistance,
  minSegmentCount,
  orderKeys,
  type Progression,
  ProgressionFinder,
  type SegmentOrder,
} from './layer-placement.ts';
import {
  buildLayerHeader,
  chooseLayout,
  computeRowSegmentSizes,
  computeRowsPerSegment,
  failTooManySegments,
  type LayerIdentity,
  type LayerShape,
} from './layer-sections.ts';
import { computeRowBytes } from './row-codec.ts';
import { setValueLocation, ValuePacker } from './value-locations.ts';

/** A layer before its bytes are hashed: the header without checksums and content id. */
export interface LayerPlan {
  readonly header: LayerHeader;
  /** Number of sections: the segments, and the deleted keys when there are any. */
  readonly sectionCount: number;
  /** The bytes of one section, numbered in file order. Call it for one section at a time. */
  sectionBytes(section: number): Uint8Array;
}

/**
 * Plans a layer.
 * @param segmentBytesMax smaller segments than the format allows, for tests
 * @throws CubeError INVALID_ARGUMENT naming a key that is duplicate, also deleted, or of another
 * shard
 */
export function planLayer(
  input: LayerInput,
  segmentBytesMax: number = SEGMENT_BYTES_MAX,
): LayerPlan {
  return new LayerPlanner(input, checkLayerInput(input), segmentBytesMax).plan();
}

const NO_KEYS = new Uint32Array(0);

/** Words of rows in the order of the input, to be copied to slots and row segments. */
interface RowWords {
  readonly words: Uint32Array;
  readonly perRow: number;
}

class LayerPlanner {
  readonly #input: LayerInput;
  readonly #subject: LayerIdentity;
  readonly #keys: Uint32Array;
  readonly #deleted: Uint32Array;
  readonly #count: number;
  readonly #segmentBytesMax: number;

  constructor(input: LayerInput, subject: LayerIdentity, segmentBytesMax: number) {
    this.#input = input;
    this.#subject = subject;
    this.#keys = input.keys;
    this.#deleted = input.deleted ?? NO_KEYS;
    this.#count = input.keys.length / 2;
    this.#segmentBytesMax = segmentBytesMax;
  }

  plan(): LayerPlan {
    const { dtype, dim, parentContentId } = this.#subject;
    const kind = parentContentId === '' ? 'base' : 'delta';
    const progression = kind === 'base' ? findProgression(this.#keys) : undefined;
    const layout =
      this.#input.layout ??
      chooseLayout(kind, dtype, computeRowBytes(dtype, dim), progression !== undefined);
    if (layout === 'dense') return this.#planDense(requireDefined(progression, 'the progression'));
    if (layout === 'inline') return this.#planInline();
    return this.#planIndexed();
  }

  #planDense(progression: Progression): LayerPlan {
    const { firstLow, firstHigh, step } = progression;
    const rows = this.#rowWords();
    const stride = computeStride('dense', 4 * rows.perRow);
    const rowsPerSegment = computeRowsPerSegment(stride, this.#segmentBytesMax);
    const content: LayerShape = {
      ...this.#content('dense'),
      firstKey: (BigInt(firstHigh) << 32n) | BigInt(firstLow),
      keyStep: BigInt(step),
      rowsPerSegment,
    };
    const sizes = computeRowSegmentSizes(this.#count, rowsPerSegment);
    const header = buildLayerHeader(this.#subject, content, {
      keys: sizes,
      rows: [],
      deletedSlots: 0,
    });
    const order = new Uint32Array(this.#count);
    for (let i = 0; i < this.#count; i++) {
      const distance = keyDistance(this.#keys[2 * i]!, this.#keys[2 * i + 1]!, firstLow, firstHigh);
      order[distance / step] = i;
    }
    return {
      header,
      sectionCount: sizes.length,
      sectionBytes: (section) => gatherRows(order, section * rowsPerSegment, sizes[section]!, rows),
    };
  }

  #planInline(): LayerPlan {
    const rows = this.#rowWords();
    const placed = this.#placeKeys(computeStride('inline', 4 * rows.perRow));
    const deleted = this.#placeDeleted();
    const content = this.#searchedContent('inline', placed, deleted);
    const sizes = { keys: placed.sizes, rows: [], deletedSlots: deleted.slots };
    const header = buildLayerHeader(this.#subject, content, sizes);
    return this.#searchedPlan(header, placed.orders, rows, deleted, undefined);
  }

  #planIndexed(): LayerPlan {
    const placed = this.#placeKeys(INDEX_STRIDE);
    const deleted = this.#placeDeleted();
    const order = concatenate(placed.orders, this.#count);
    const input = this.#input;
    const stored =
      input.dtype === 'bytes' ? this.#storeValues(input, order) : this.#storeRows(order);
    const content = this.#searchedContent('indexed', placed, deleted);
    const sizes = { keys: placed.sizes, rows: stored.sizes, deletedSlots: deleted.slots };
    const { rowsPerSegment } = stored;
    const header = buildLayerHeader(this.#subject, { ...content, rowsPerSegment }, sizes);
    const places = { words: stored.locations, perRow: 2 };
    return this.#searchedPlan(header, placed.orders, places, deleted, stored);
  }

  #searchedPlan(
    header: LayerHeader,
    orders: readonly SegmentOrder[],
    rows: RowWords,
    deleted: PlacedDeletedKeys,
    stored: StoredRows | undefined,
  ): LayerPlan {
    const { segments, emptyKey, homeSlots, deletedHomeSlots, deletedCount } = header;
    const sectionBytes = (section: number): Uint8Array => {
      const placed = orders[section];
      if (placed !== undefined) {
        return fillSlots(this.#keys, placed, rows, homeSlots, header.stride, emptyKey);
      }
      if (section < segments.length) {
        const { segmentBytes } = requireDefined(stored, 'the stored rows');
        return segmentBytes(section - orders.length);
      }
      const none = { words: NO_KEYS, perRow: 0 };
      const order = requireDefined(deleted.order, 'the order of the deleted keys');
      return fillSlots(this.#deleted, order, none, deletedHomeSlots, DELETED_STRIDE, emptyKey);
    };
    return { header, sectionCount: segments.length + (deletedCount > 0 ? 1 : 0), sectionBytes };
  }

  #content(layout: LayerShape['layout']): LayerShape {
    return {
      layout,
      rowCount: this.#count,
      deletedCount: this.#deleted.length / 2,
      emptyKey: 0n,
      homeSlots: 0,
      deletedHomeSlots: 0,
      firstKey: 0n,
      keyStep: 0n,
      rowsPerSegment: 0,
    };
  }

  #searchedContent(
    layout: LayerShape['layout'],
    placed: PlacedKeys,
    deleted: PlacedDeletedKeys,
  ): LayerShape {
    return {
      ...this.#content(layout),
      emptyKey: this.#emptyKey(),
      homeSlots: placed.homeSlots,
      deletedHomeSlots: deleted.homeSlots,
    };
  }

  #rowWords(): RowWords {
    const { rows, dtype, dim } = this.#input as RowsInput;
    const aligned = rows.byteOffset % 4 === 0 ? rows : rows.slice();
    const words = new Uint32Array(aligned.buffer, aligned.byteOffset, aligned.length / 4);
    return { words, perRow: computeRowBytes(dtype, dim) / 4 };
  }

  #emptyKey(): bigint {
    const finder = new EmptyKeyFinder(this.#count + this.#deleted.length / 2);
    finder.add(this.#keys);
    finder.add(this.#deleted);
    return finder.emptyKey();
  }

  /** Uses the smallest number of segments with which each one fits. */
  #placeKeys(stride: number): PlacedKeys {
    const count = this.#count;
    if (count === 0) return { orders: [], sizes: [], homeSlots: 0 };
    const slotsMax = Math.floor(this.#segmentBytesMax / stride);
    let segmentCount = minSegmentCount(count, slotsMax);
    for (; segmentCount <= SEGMENT_COUNT_MAX; segmentCount++) {
      const homeSlots = computeHomeSlots(count, segmentCount);
      const orders = orderKeys(this.#keys, segmentCount, homeSlots);
      if (orders.some(({ slots }) => slots > slotsMax)) continue;
      const sizes = orders.map(({ order, slots }) => ({ rows: order.length, slots }));
      return { orders, sizes, homeSlots };
    }
    return failTooManySegments(this.#subject.table, count);
  }

  #placeDeleted(): PlacedDeletedKeys {
    const count = this.#deleted.length / 2;
    if (count === 0) return { order: undefined, slots: 0, homeSlots: 0 };
    const homeSlots = computeHomeSlots(count, 1);
    const [first] = orderKeys(this.#deleted, 1, homeSlots, 'is deleted twice');
    const order = requireDefined(first, 'the order of the deleted keys');
    const both = new Uint32Array(this.#keys.length + this.#deleted.length);
    both.set(this.#keys);
    both.set(this.#deleted, this.#keys.length);
    orderKeys(both, 1, computeHomeSlots(both.length / 2, 1), 'is deleted and also has a row');
    return { order, slots: order.slots, homeSlots };
  }

  #storeRows(order: Uint32Array): StoredRows {
    const rows = this.#rowWords();
    const stride = computeRowStride({ dtype: this.#subject.dtype, rowBytes: 4 * rows.perRow });
    const rowsPerSegment = computeRowsPerSegment(stride, this.#segmentBytesMax);
    const sizes = computeRowSegmentSizes(this.#count, rowsPerSegment);
    const places = new Uint32Array(2 * this.#count);
    for (let place = 0; place < order.length; place++) places[2 * order[place]!] = place;
    const segmentBytes = (segment: number): Uint8Array =>
      gatherRows(order, segment * rowsPerSegment, sizes[segment]!, rows);
    return { sizes, locations: places, rowsPerSegment, segmentBytes };
  }

  #storeValues({ values, ends }: ValuesInput, order: Uint32Array): StoredRows {
    const places = new Uint32Array(2 * this.#count);
    const packer = new ValuePacker(this.#segmentBytesMax);
    for (const i of order) {
      const start = i === 0 ? 0 : ends[i - 1]!;
      const length = ends[i]! - start;
      setValueLocation(places, i, length, packer.reserve(length));
    }
    const sizes = packer.sizes();
    const segmentBytes = (segment: number): Uint8Array => {
      const first = sizes.slice(0, segment).reduce((sum, { rows }) => sum + rows, 0);
      const { rows, slots } = sizes[segment]!;
      const target = new Uint8Array(slots * VALUE_ALIGNMENT);
      let at = 0;
      for (const i of order.subarray(first, first + rows)) {
        const value = values.subarray(i === 0 ? 0 : ends[i - 1]!, ends[i]!);
        target.set(value, at);
        at += paddedValueBytes(value.length);
      }
      return target;
    };
    return { sizes, locations: places, rowsPerSegment: 0, segmentBytes };
  }
}

interface PlacedKeys {
  readonly orders: readonly SegmentOrder[];
  readonly sizes: readonly SegmentSize[];
  readonly homeSlots: number;
}

interface PlacedDeletedKeys {
  readonly order: SegmentOrder | undefined;
  readonly slots: number;
  readonly homeSlots: number;
}

interface StoredRows {
  readonly sizes: readonly SegmentSize[];
  /** Words of the location of each row of the input. */
  readonly locations: Uint32Array;
  readonly rowsPerSegment: number;
  segmentBytes(segment: number): Uint8Array;
}

/** @returns undefined also for a duplicate key: ordering the keys will report it */
function findProgression(keys: Uint32Array): Progression | undefined {
  const finder = new ProgressionFinder();
  finder.add(keys);
  const progression = finder.progression();
  if (progression === undefined) return undefined;
  const { firstLow, firstHigh, step } = progression;
  const seen = new Uint8Array(keys.length / 2);
  for (let i = 0; i < keys.length; i += 2) {
    const place = keyDistance(keys[i]!, keys[i + 1]!, firstLow, firstHigh) / step;
    if (seen[place] === 1) return undefined;
    seen[place] = 1;
  }
  return progression;
}

function concatenate(orders: readonly SegmentOrder[], count: number): Uint32Array {
  const all = new Uint32Array(count);
  let at = 0;
  for (const { order } of orders) {
    all.set(order, at);
    at += order.length;
  }
  return all;
}

function copyWords(
  target: Uint32Array,
  at: number,
  words: Uint32Array,
  from: number,
  length: number,
): void {
  for (let i = 0; i < length; i++) target[at + i] = words[from + i]!;
}

/** Copies rows order[first …] one after another. */
function gatherRows(
  order: Uint32Array,
  first: number,
  { rows }: SegmentSize,
  { words, perRow }: RowWords,
): Uint8Array {
  const target = new Uint32Array(rows * perRow);
  for (let i = 0; i < rows; i++) {
    copyWords(target, i * perRow, words, order[first + i]! * perRow, perRow);
  }
  return new Uint8Array(target.buffer);
}

/**
 * Fills the slots of a searched segment: each key at its home slot or the next free one, with its
 * row; the others empty.
 */
function fillSlots(
  keys: Uint32Array,
  { order, slots }: SegmentOrder,
  { words, perRow }: RowWords,
  homeSlots: number,
  stride: number,
  emptyKey: bigint,
): Uint8Array {
  const strideWords = stride / 4;
  const target = new Uint32Array(slots * strideWords);
  const emptyLow = Number(emptyKey & 0xffff_ffffn);
  const emptyHigh = Number(emptyKey >> 32n);
  const mixed = new Uint32Array(2);
  let slot = 0;
  const fillEmpty = (end: number): void => {
    for (; slot < end; slot++) {
      target[slot * strideWords] = emptyLow;
      target[slot * strideWords + 1] = emptyHigh;
    }
  };
  for (let i = 0; i < order.length; i++) {
    const key = order[i]!;
    mixKey(keys[2 * key]!, keys[2 * key + 1]!, mixed, 0);
    fillEmpty(computeHomeSlot(mixed, 0, homeSlots));
    const at = slot * strideWords;
    target[at] = keys[2 * key]!;
    target[at + 1] = keys[2 * key + 1]!;
    copyWords(target, at + 2, words, key * perRow, perRow);
    slot += 1;
  }
  fillEmpty(slots);
  return new Uint8Array(target.buffer);
}
