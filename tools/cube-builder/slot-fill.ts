/**
 * Fills the sections of an inline or indexed layer in one pass over a sorted run. The run is
 * sorted by home slot, so all segments are written at the same time, each from front to back.
 */
import {
  computeRowStride,
  DELETED_STRIDE,
  getKeySegments,
  getRowSegments,
  type LayerHeader,
  type LayerSegment,
  paddedValueBytes,
} from '../../lib/core/layer-format.ts';
import { computeSegment } from '../../lib/core/layer-placement.ts';
import { setValueLocation } from '../../lib/core/value-locations.ts';
import type { RandomAccessWriter } from '../../lib/platform/files.ts';
import { type RunPiece, readRun, type SortedRun } from './sorted-run.ts';

export interface FillTask {
  readonly header: LayerHeader;
  readonly run: SortedRun;
  readonly writer: RandomAccessWriter;
  readonly budgetBytes: number;
}

const BUFFER_BYTES_MAX = 1 << 20;
const BUFFER_BYTES_MIN = 4 << 10;

/** Buffered writes to one region of the file. */
class RegionWriter {
  readonly #writer: RandomAccessWriter;
  readonly #buffer: Uint32Array;
  #used = 0;
  #position: number;

  constructor(writer: RandomAccessWriter, position: number, bufferBytes: number) {
    this.#writer = writer;
    this.#position = position;
    this.#buffer = new Uint32Array(bufferBytes / 4);
  }

  writeWord(value: number): void {
    if (this.#used === this.#buffer.length) this.flush();
    this.#buffer[this.#used++] = value;
  }

  writeWords(source: Uint32Array, from: number, length: number): void {
    if (length > 64) {
      this.#writeLong(source.subarray(from, from + length));
      return;
    }
    if (this.#used + length > this.#buffer.length) this.flush();
    for (let i = 0; i < length; i++) this.#buffer[this.#used + i] = source[from + i]!;
    this.#used += length;
  }

  /** Continues at another position. */
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

  #writeLong(words: Uint32Array): void {
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

/** Writes the slots of one segment in order and marks skipped slots as empty. */
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

  writeSlot(low: number, high: number, home: number, row: Uint32Array, from: number): void {
    this.#fillEmpty(home);
    this.#region.writeWord(low);
    this.#region.writeWord(high);
    this.#region.writeWords(row, from, this.#rowWords);
    for (let i = 0; i < this.#padWords; i++) this.#region.writeWord(0);
    this.#slot += 1;
  }

  finish(): void {
    this.#fillEmpty(this.#slots);
    this.#region.flush();
  }

  #fillEmpty(end: number): void {
    for (; this.#slot < end; this.#slot++) {
      this.#region.writeWord(this.#emptyLow);
      this.#region.writeWord(this.#emptyHigh);
      for (let i = this.#rowWords + this.#padWords; i > 0; i--) this.#region.writeWord(0);
    }
  }
}

function computeBufferBytes({ budgetBytes }: FillTask, regions: number): number {
  const share = budgetBytes / 4 / Math.max(1, regions);
  return Math.max(BUFFER_BYTES_MIN, Math.min(BUFFER_BYTES_MAX, 2 ** Math.floor(Math.log2(share))));
}

function createSlotWriters(fill: FillTask, rowBytes: number, regions: number): SlotWriter[] {
  const { header, writer } = fill;
  const bytes = computeBufferBytes(fill, regions);
  return getKeySegments(header).map(({ offset, slots }) => {
    const region = new RegionWriter(writer, offset, bytes);
    return new SlotWriter(region, header, { stride: header.stride, rowBytes, slots });
  });
}

function readPieces({ run, header, budgetBytes }: FillTask): Generator<RunPiece> {
  return readRun(run, Math.max(1, header.homeSlots), 'everything', budgetBytes / 8);
}

export function fillInline(fill: FillTask): void {
  const segments = getKeySegments(fill.header).length;
  const targets = createSlotWriters(fill, fill.header.rowBytes, segments);
  for (const { order, keys, mixed, homes, starts, words } of readPieces(fill)) {
    for (let j = 0; j < order.length; j++) {
      const i = order[j]!;
      const target = targets[computeSegment(mixed, 2 * i, segments)]!;
      target.writeSlot(keys[2 * i]!, keys[2 * i + 1]!, homes[i]!, words, starts[i]!);
    }
  }
  for (const target of targets) target.finish();
}

/** @param segmentBytesMax maximum size of a segment of values */
export function fillIndexed(fill: FillTask, segmentBytesMax: number): void {
  const { header, run, writer } = fill;
  const segments = getKeySegments(header).length;
  const targets = createSlotWriters(fill, 8, 2 * segments);
  const bytes = computeBufferBytes(fill, 2 * segments);
  const regions = targets.map(() => new RegionWriter(writer, 0, bytes));
  const positions =
    run.rowBytes === 0 ? new ValuePositions(fill, segmentBytesMax) : new RowPositions(header);
  const location = new Uint32Array(2);
  for (const piece of readPieces(fill)) {
    const { order, keys, mixed, homes, starts, words } = piece;
    for (let j = 0; j < order.length; j++) {
      const i = order[j]!;
      const segment = computeSegment(mixed, 2 * i, segments);
      const length = run.rowBytes === 0 ? piece.lengths[i]! : run.rowBytes;
      const position = positions.assign(segment, length, location);
      targets[segment]!.writeSlot(keys[2 * i]!, keys[2 * i + 1]!, homes[i]!, location, 0);
      const end = i + 1 < starts.length ? starts[i + 1]! : words.length;
      regions[segment]!.moveTo(position);
      regions[segment]!.writeWords(words, starts[i]!, end - starts[i]!);
    }
  }
  for (const target of targets) target.finish();
  for (const region of regions) region.flush();
}

export function fillDeleted(fill: FillTask): void {
  const { header, run, writer, budgetBytes } = fill;
  const { deletedOffset, deletedSlots, deletedHomeSlots } = header;
  const region = new RegionWriter(writer, deletedOffset, computeBufferBytes(fill, 1));
  const shape = { stride: DELETED_STRIDE, rowBytes: 0, slots: deletedSlots };
  const target = new SlotWriter(region, header, shape);
  for (const piece of readRun(run, deletedHomeSlots, 'deleted keys', budgetBytes / 8)) {
    const { order, keys, homes } = piece;
    for (const i of order) target.writeSlot(keys[2 * i]!, keys[2 * i + 1]!, homes[i]!, keys, 0);
  }
  target.finish();
}

/** File positions of rows of one size: the rows of index segment s follow those of s − 1. */
class RowPositions {
  readonly #next: number[] = [];
  readonly #rows: readonly LayerSegment[];
  readonly #stride: number;
  readonly #rowsPerSegment: number;

  constructor(header: LayerHeader) {
    let before = 0;
    for (const { rows } of getKeySegments(header)) {
      this.#next.push(before);
      before += rows;
    }
    this.#rows = getRowSegments(header);
    this.#stride = computeRowStride(header);
    this.#rowsPerSegment = header.rowsPerSegment;
  }

  /** Assigns the next row of an index segment. @returns its position in the file */
  assign(segment: number, _length: number, location: Uint32Array): number {
    const row = this.#next[segment]!;
    this.#next[segment] = row + 1;
    location[0] = row;
    location[1] = Math.floor(row / 0x1_0000_0000);
    const inSegment = row % this.#rowsPerSegment;
    const target = this.#rows[(row - inSegment) / this.#rowsPerSegment]!;
    return target.offset + inSegment * this.#stride;
  }
}

/** State of packing values into segments, with the same result as ValuePacker. */
interface PackingState {
  /** Bytes of the full segments. */
  fullBytes: number;
  /** Bytes used in the current segment. */
  usedBytes: number;
  /** Index of the current segment. */
  segment: number;
}

/** File positions of values: packing of an index segment starts where the previous one ends. */
class ValuePositions {
  readonly #states: PackingState[] = [];
  readonly #segments: readonly LayerSegment[];
  readonly #segmentBytesMax: number;

  constructor(fill: FillTask, segmentBytesMax: number) {
    const { header, run, budgetBytes } = fill;
    const segments = getKeySegments(header).length;
    const state: PackingState = { fullBytes: 0, usedBytes: 0, segment: 0 };
    this.#segments = getRowSegments(header);
    this.#segmentBytesMax = segmentBytesMax;
    for (let segment = 0; segment < segments; segment++) {
      this.#states.push({ ...state });
      if (segment === segments - 1) break;
      for (const piece of readRun(run, header.homeSlots, 'keys and lengths', budgetBytes / 8)) {
        for (const i of piece.order) {
          if (computeSegment(piece.mixed, 2 * i, segments) !== segment) continue;
          this.#pack(state, piece.lengths[i]!);
        }
      }
    }
  }

  assign(segment: number, length: number, location: Uint32Array): number {
    const state = this.#states[segment]!;
    const inSegment = this.#pack(state, length);
    setValueLocation(location, 0, length, state.fullBytes + inSegment);
    return this.#segments[state.segment]!.offset + inSegment;
  }

  #pack(state: PackingState, length: number): number {
    const space = paddedValueBytes(length);
    if (state.usedBytes > 0 && state.usedBytes + space > this.#segmentBytesMax) {
      state.fullBytes += state.usedBytes;
      state.usedBytes = 0;
      state.segment += 1;
    }
    const at = state.usedBytes;
    state.usedBytes += space;
    return at;
  }
}
