/** Converts slots and rows of a layer file to batches of keys and rows. */
import { CubeError } from '../core/errors.ts';
import { keyToBigint } from '../core/keys.ts';
import {
  computeRowStride,
  getRowSegments,
  type LayerHeader,
  type LayerSegment,
  paddedValueBytes,
} from '../core/layer-format.ts';
import { getLocationLength, getLocationOffset } from '../core/value-locations.ts';
import type { LayerReader } from './layer-reader.ts';

export interface RowBatch {
  readonly count: number;
  /** 2 · count words (low, high). */
  readonly keys: Uint32Array;
  /** count · rowBytes; for dtype bytes the concatenated values. */
  readonly rows: Uint8Array;
  /** For dtype bytes: the end of each value in `rows`. */
  readonly ends?: Uint32Array;
}

/** Rows of the non-empty slots of a searched segment. */
export function readSlotRows(
  piece: Uint8Array,
  stride: number,
  rowBytes: number,
  emptyKey: bigint,
): RowBatch {
  const slots = piece.length / stride;
  const words = new Uint32Array(piece.buffer, piece.byteOffset, piece.length / 4);
  const strideWords = stride / 4;
  const rowWords = rowBytes / 4;
  const emptyLow = Number(emptyKey & 0xffff_ffffn);
  const emptyHigh = Number(emptyKey >> 32n);
  const keys = new Uint32Array(2 * slots);
  const rows = new Uint32Array(slots * rowWords);
  let count = 0;
  for (let at = 0; at < words.length; at += strideWords) {
    const low = words[at]!;
    const high = words[at + 1]!;
    if (low === emptyLow && high === emptyHigh) continue;
    keys[2 * count] = low;
    keys[2 * count + 1] = high;
    for (let i = 0; i < rowWords; i++) rows[count * rowWords + i] = words[at + 2 + i]!;
    count += 1;
  }
  return {
    keys: keys.subarray(0, 2 * count),
    rows: new Uint8Array(rows.buffer, 0, count * rowBytes),
    count,
  };
}

/** Keys of slots that contain only keys. */
export function readSlotKeys(piece: Uint8Array, emptyKey: bigint): Uint32Array {
  return readSlotRows(piece, 8, 0, emptyKey).keys;
}

/** Dense rows are stored without keys; keys follow from the row numbers. */
export function readDenseRows(header: LayerHeader, piece: Uint8Array, firstRow: number): RowBatch {
  const count = piece.length / header.stride;
  const first = BigInt.asUintN(64, header.firstKey + BigInt(firstRow) * header.keyStep);
  const stepLow = Number(header.keyStep & 0xffff_ffffn);
  const stepHigh = Number(header.keyStep >> 32n);
  const keys = new Uint32Array(2 * count);
  let low = Number(first & 0xffff_ffffn);
  let high = Number(first >> 32n);
  for (let i = 0; i < count; i++) {
    keys[2 * i] = low;
    keys[2 * i + 1] = high;
    const sum = low + stepLow;
    high = (high + stepHigh + (sum > 0xffff_ffff ? 1 : 0)) >>> 0;
    low = sum >>> 0;
  }
  return { keys, rows: piece, count };
}

/**
 * Reads the rows or values of an indexed layer in the order of its index. They are stored in that
 * order without gaps, so any other location means a damaged index: a row named twice, or not at
 * all.
 */
export class IndexedRowReader {
  readonly #reader: LayerReader;
  readonly #header: LayerHeader;
  readonly #segments: readonly LayerSegment[];
  readonly #stride: number;
  /** The current segment, the bytes read of it, and the total bytes of earlier segments. */
  #segment = 0;
  #used = 0;
  #before = 0;

  constructor(reader: LayerReader) {
    this.#reader = reader;
    this.#header = reader.header;
    this.#segments = getRowSegments(reader.header);
    this.#stride = computeRowStride(reader.header);
  }

  /** The rows of consecutive keys of the index; values in batches of about `bytesMax`. */
  *readBatches(keys: Uint32Array, places: Uint32Array, bytesMax: number): Generator<RowBatch> {
    const count = keys.length / 2;
    if (this.#header.dtype !== 'bytes') {
      if (count > 0) yield { count, keys, rows: this.#rows(keys, places) };
      return;
    }
    for (let start = 0; start < count; ) {
      let end = start;
      let bytes = 0;
      while (end < count && (end === start || bytes < bytesMax)) {
        bytes += getLocationLength(places[2 * end + 1]!);
        end += 1;
      }
      yield this.#values(keys.slice(2 * start, 2 * end), places.subarray(2 * start, 2 * end));
      start = end;
    }
  }

  #rows(keys: Uint32Array, places: Uint32Array): Uint8Array {
    const rows = new Uint8Array((keys.length / 2) * this.#stride);
    for (let i = 0; i < keys.length / 2; i++) {
      const expected = (this.#before + this.#used) / this.#stride + i;
      const place = places[2 * i + 1]! * 0x1_0000_0000 + places[2 * i]!;
      if (place !== expected) this.#fail(keys, i);
    }
    for (let done = 0; done < rows.length; ) {
      const { offset, bytes } = this.#segmentAt();
      const length = Math.min(rows.length - done, bytes - this.#used);
      if (length === 0) this.#fail(keys, done / this.#stride);
      this.#reader.read(rows.subarray(done, done + length), offset + this.#used);
      this.#used += length;
      done += length;
    }
    return rows;
  }

  #values(keys: Uint32Array, places: Uint32Array): RowBatch {
    const count = keys.length / 2;
    const ends = new Uint32Array(count);
    let total = 0;
    for (let i = 0; i < count; i++) {
      total += getLocationLength(places[2 * i + 1]!);
      ends[i] = total;
    }
    // Lengths from the index are checked against the file size before an array of that size is
    // allocated.
    if (total > this.#header.fileBytes) this.#fail(keys, 0);
    const values = new Uint8Array(total);
    for (let i = 0; i < count; i++) {
      const { offset, bytes } = this.#segmentAt();
      const length = getLocationLength(places[2 * i + 1]!);
      const start = getLocationOffset(places[2 * i]!, places[2 * i + 1]!);
      if (start !== this.#before + this.#used) this.#fail(keys, i);
      if (this.#used + paddedValueBytes(length) > bytes) this.#fail(keys, i);
      this.#reader.read(values.subarray(ends[i]! - length, ends[i]!), offset + this.#used);
      this.#used += paddedValueBytes(length);
    }
    return { count, keys, rows: values, ends };
  }

  /** The segment of the next row. */
  #segmentAt(): LayerSegment {
    const segments = this.#segments;
    let segment = segments[this.#segment]!;
    while (this.#used === segment.bytes && this.#segment < segments.length - 1) {
      this.#before += segment.bytes;
      this.#used = 0;
      this.#segment += 1;
      segment = segments[this.#segment]!;
    }
    return segment;
  }

  #fail(keys: Uint32Array, i: number): never {
    throw new CubeError(
      'CORRUPT',
      `${this.#reader.path}: the index has a wrong location for key ${keyToBigint(keys, i)}; ` +
        'build the layer again',
    );
  }
}
