/**
 * Fills the sections of a searched layer in one pass over a sorted run: keys come by home slot over all segments, so each
 * segment is written from front to back, all of them at the same time.
 */
import {
  DELETED_STRIDE,
  keySegments,
  type LayerHeader,
  type LayerSegment,
  rowSegments,
  rowStrideOf,
  valueSpace,
} from '../../lib/core/layer-format.ts';
import { segmentOf } from '../../lib/core/layer-placement.ts';
import { setPlace } from '../../lib/core/value-places.ts';
import type { RandomWriter } from '../../lib/platform/files.ts';
import { type RunPiece, readRun, type SortedRun } from './sorted-run.ts';

export interface Fill {
  readonly header: LayerHeader;
  readonly run: SortedRun;
  readonly writer: RandomWriter;
  readonly budgetBytes: number;
}

const BUFFER_BYTES_MAX = 1 << 20;
const BUFFER_BYTES_MIN = 4 << 10;

/** A cursor in the file with a buffer before it. */
class RegionWriter {
  readonly #writer: RandomWriter;
  readonly #buffer: Uint32Array;
  #used = 0;
  #position: number;

  constructor(writer: RandomWriter, position: number, bufferBytes: number) {
    this.#writer = writer;
    this.#position = position;
    this.#buffer = new Uint32Array(bufferBytes / 4);
  }

  word(value: number): void {
    if (this.#used === this.#buffer.length) this.flush();
    this.#buffer[this.#used++] = value;
  }

  words(source: Uint32Array, from: number, length: number): void {
    if (length > 64) {
      this.#long(source.subarray(from, from + length));
      return;
    }
    if (this.#used + length > this.#buffer.length) this.flush();
    for (let i = 0; i < length; i++) this.#buffer[this.#used + i] = source[from + i]!;
    this.#used += length;
  }

  /** Goes on somewhere else. */
  moveTo(position: number): void {
    if (position === this.#position + 4 * this.#used) return;
    this.flush();
    this.#position = position;
  }

  flush(): void {
    const bytes = new Uint8Array(this.#buffer.buffer, 0, 4 * this.#used);
    this.#writer.writeAt(bytes, this.#position);
    this.#position += bytes.length;
    this.#used = 0;
  }

  #long(words: Uint32Array): void {
    if (this.#used + words.length > this.#buffer.length) this.flush();
    if (words.length > this.#buffer.length) {
      this.#writer.writeAt(
        new Uint8Array(words.buffer, words.byteOffset, words.byteLength),
        this.#position,
      );
      this.#position += words.byteLength;
      return;
    }
    this.#buffer.set(words, this.#used);
    this.#used += words.length;
  }
}

/** One searched segment on its way to the file. */
class SlotWriter {
  readonly #region: RegionWriter;
  readonly #padWords: number;
  readonly #emptyLow: number;
  readonly #emptyHigh: number;
  readonly #rowWords: number;
  readonly #slots: number;
  #slot = 0;

  constructor(
    region: RegionWriter,
    { emptyKey }: LayerHeader,
    shape: { stride: number; rowBytes: number; slots: number },
  ) {
    this.#region = region;
    this.#emptyLow = Number(emptyKey & 0xffff_ffffn);
    this.#emptyHigh = Number(emptyKey >> 32n);
    this.#rowWords = shape.rowBytes / 4;
    this.#padWords = (shape.stride - 8 - shape.rowBytes) / 4;
    this.#slots = shape.slots;
  }

  put(low: number, high: number, home: number, row: Uint32Array, from: number): void {
    this.#fillEmpty(home);
    this.#region.word(low);
    this.#region.word(high);
    this.#region.words(row, from, this.#rowWords);
    for (let i = 0; i < this.#padWords; i++) this.#region.word(0);
    this.#slot += 1;
  }

  finish(): void {
    this.#fillEmpty(this.#slots);
    this.#region.flush();
  }

  #fillEmpty(end: number): void {
    for (; this.#slot < end; this.#slot++) {
      this.#region.word(this.#emptyLow);
      this.#region.word(this.#emptyHigh);
      for (let i = this.#rowWords + this.#padWords; i > 0; i--) this.#region.word(0);
    }
  }
}

function bufferBytes({ budgetBytes }: Fill, regions: number): number {
  const share = budgetBytes / 4 / Math.max(1, regions);
  return Math.max(BUFFER_BYTES_MIN, Math.min(BUFFER_BYTES_MAX, 2 ** Math.floor(Math.log2(share))));
}

function slotWriters(fill: Fill, rowBytes: number, regions: number): SlotWriter[] {
  const { header, writer } = fill;
  const bytes = bufferBytes(fill, regions);
  return keySegments(header).map(({ offset, slots }) => {
    const region = new RegionWriter(writer, offset, bytes);
    return new SlotWriter(region, header, { stride: header.stride, rowBytes, slots });
  });
}

function pieces({ run, header, budgetBytes }: Fill): Generator<RunPiece> {
  return readRun(run, Math.max(1, header.homeSlots), 'everything', budgetBytes / 8);
}

export function fillInline(fill: Fill): void {
  const segments = keySegments(fill.header).length;
  const targets = slotWriters(fill, fill.header.rowBytes, segments);
  for (const { order, keys, mixed, homes, starts, words } of pieces(fill)) {
    for (let j = 0; j < order.length; j++) {
      const i = order[j]!;
      const target = targets[segmentOf(mixed, 2 * i, segments)]!;
      target.put(keys[2 * i]!, keys[2 * i + 1]!, homes[i]!, words, starts[i]!);
    }
  }
  for (const target of targets) target.finish();
}

/** @param segmentBytesMax of the segments of values */
export function fillIndexed(fill: Fill, segmentBytesMax: number): void {
  const { header, run, writer } = fill;
  const segments = keySegments(header).length;
  const targets = slotWriters(fill, 8, 2 * segments);
  const bytes = bufferBytes(fill, 2 * segments);
  const regions = targets.map(() => new RegionWriter(writer, 0, bytes));
  const places =
    run.rowBytes === 0 ? new ValuePlaces(fill, segmentBytesMax) : new RowPlaces(header);
  const place = new Uint32Array(2);
  for (const piece of pieces(fill)) {
    const { order, keys, mixed, homes, starts, words } = piece;
    for (let j = 0; j < order.length; j++) {
      const i = order[j]!;
      const segment = segmentOf(mixed, 2 * i, segments);
      const length = run.rowBytes === 0 ? piece.lengths[i]! : run.rowBytes;
      const position = places.take(segment, length, place);
      targets[segment]!.put(keys[2 * i]!, keys[2 * i + 1]!, homes[i]!, place, 0);
      const end = i + 1 < starts.length ? starts[i + 1]! : words.length;
      regions[segment]!.moveTo(position);
      regions[segment]!.words(words, starts[i]!, end - starts[i]!);
    }
  }
  for (const target of targets) target.finish();
  for (const region of regions) region.flush();
}

export function fillDeleted(fill: Fill): void {
  const { header, run, writer, budgetBytes } = fill;
  const { deletedOffset, deletedSlots, deletedHomeSlots } = header;
  const region = new RegionWriter(writer, deletedOffset, bufferBytes(fill, 1));
  const shape = { stride: DELETED_STRIDE, rowBytes: 0, slots: deletedSlots };
  const target = new SlotWriter(region, header, shape);
  for (const piece of readRun(run, deletedHomeSlots, 'deleted keys', budgetBytes / 8)) {
    const { order, keys, homes } = piece;
    for (const i of order) target.put(keys[2 * i]!, keys[2 * i + 1]!, homes[i]!, keys, 0);
  }
  target.finish();
}

/** Rows of one size: the rows of index segment s follow those of s − 1. */
class RowPlaces {
  readonly #next: number[] = [];
  readonly #rows: readonly LayerSegment[];
  readonly #stride: number;
  readonly #rowsPerSegment: number;

  constructor(header: LayerHeader) {
    let before = 0;
    for (const { rows } of keySegments(header)) {
      this.#next.push(before);
      before += rows;
    }
    this.#rows = rowSegments(header);
    this.#stride = rowStrideOf(header);
    this.#rowsPerSegment = header.rowsPerSegment;
  }

  /** @returns where in the file the next row of an index segment goes */
  take(segment: number, _length: number, place: Uint32Array): number {
    const row = this.#next[segment]!;
    this.#next[segment] = row + 1;
    place[0] = row;
    place[1] = Math.floor(row / 0x1_0000_0000);
    const inSegment = row % this.#rowsPerSegment;
    const target = this.#rows[(row - inSegment) / this.#rowsPerSegment]!;
    return target.offset + inSegment * this.#stride;
  }
}

/** Where values go, as ValuePacker packs them; it can be left and taken up again. */
interface Packing {
  /** Bytes of the segments that are full, and of the one being filled. */
  before: number;
  used: number;
  /** The segment being filled. */
  segment: number;
}

/** Values: each index segment's packing starts where that of the one before ends. */
class ValuePlaces {
  readonly #packings: Packing[] = [];
  readonly #segments: readonly LayerSegment[];
  readonly #segmentBytesMax: number;

  constructor(fill: Fill, segmentBytesMax: number) {
    const { header, run, budgetBytes } = fill;
    const segments = keySegments(header).length;
    const packing: Packing = { before: 0, used: 0, segment: 0 };
    this.#segments = rowSegments(header);
    this.#segmentBytesMax = segmentBytesMax;
    for (let segment = 0; segment < segments; segment++) {
      this.#packings.push({ ...packing });
      if (segment === segments - 1) break;
      for (const piece of readRun(run, header.homeSlots, 'keys and lengths', budgetBytes / 8)) {
        for (const i of piece.order) {
          if (segmentOf(piece.mixed, 2 * i, segments) !== segment) continue;
          this.#pack(packing, piece.lengths[i]!);
        }
      }
    }
  }

  take(segment: number, length: number, place: Uint32Array): number {
    const packing = this.#packings[segment]!;
    const inSegment = this.#pack(packing, length);
    setPlace(place, 0, length, packing.before + inSegment);
    return this.#segments[packing.segment]!.offset + inSegment;
  }

  #pack(packing: Packing, length: number): number {
    const space = valueSpace(length);
    if (packing.used > 0 && packing.used + space > this.#segmentBytesMax) {
      packing.before += packing.used;
      packing.used = 0;
      packing.segment += 1;
    }
    const at = packing.used;
    packing.used += space;
    return at;
  }
}
