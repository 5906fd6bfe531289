/** From the slots and rows of a layer file, as they lie there, to batches of keys with their rows. */
import { CubeError } from '../core/errors.ts';
import { keyToBigint } from '../core/keys.ts';
import {
  type LayerHeader,
  type LayerSegment,
  rowSegments,
  rowStrideOf,
  valueSpace,
} from '../core/layer-format.ts';
import { placeLength, placeOffset } from '../core/value-places.ts';
import type { LayerReader } from './layer-reader.ts';

export interface RowBatch {
  readonly count: number;
  /** 2 · count words (low, high). */
  readonly keys: Uint32Array;
  /** count · rowBytes; of dtype bytes: the values one after the other. */
  readonly rows: Uint8Array;
  /** Of dtype bytes: where each value ends in `rows`. */
  readonly ends?: Uint32Array;
}

/** The slots of a searched segment that are not empty. */
export function rowsOfSlots(
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

/** Of slots that hold keys alone. */
export function keysOfSlots(piece: Uint8Array, emptyKey: bigint): Uint32Array {
  return rowsOfSlots(piece, 8, 0, emptyKey).keys;
}

/** Dense rows are stored without keys: they follow from the row number. */
export function rowsOfDense(header: LayerHeader, piece: Uint8Array, firstRow: number): RowBatch {
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
 * The rows or values of an indexed layer, read in the order of its index. They lie in that order without a gap, so that a
 * place that is not the next one means a damaged index: a row named twice, or never.
 */
export class StoredRows {
  readonly #reader: LayerReader;
  readonly #header: LayerHeader;
  readonly #segments: readonly LayerSegment[];
  readonly #stride: number;
  /** The segment read from, what of it was read, and what lies before it (bytes). */
  #segment = 0;
  #used = 0;
  #before = 0;

  constructor(reader: LayerReader) {
    this.#reader = reader;
    this.#header = reader.header;
    this.#segments = rowSegments(reader.header);
    this.#stride = rowStrideOf(reader.header);
  }

  /** The rows of keys that follow each other in the index; values in batches of about `bytesMax`. */
  *batches(keys: Uint32Array, places: Uint32Array, bytesMax: number): Generator<RowBatch> {
    const count = keys.length / 2;
    if (this.#header.dtype !== 'bytes') {
      if (count > 0) yield { count, keys, rows: this.#rows(keys, places) };
      return;
    }
    for (let start = 0; start < count; ) {
      let end = start;
      let bytes = 0;
      while (end < count && (end === start || bytes < bytesMax)) {
        bytes += placeLength(places[2 * end + 1]!);
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
      total += placeLength(places[2 * i + 1]!);
      ends[i] = total;
    }
    // What the places claim is bounded by the file before anything of that size is made.
    if (total > this.#header.fileBytes) this.#fail(keys, 0);
    const values = new Uint8Array(total);
    for (let i = 0; i < count; i++) {
      const { offset, bytes } = this.#segmentAt();
      const length = placeLength(places[2 * i + 1]!);
      const start = placeOffset(places[2 * i]!, places[2 * i + 1]!);
      if (start !== this.#before + this.#used) this.#fail(keys, i);
      if (this.#used + valueSpace(length) > bytes) this.#fail(keys, i);
      this.#reader.read(values.subarray(ends[i]! - length, ends[i]!), offset + this.#used);
      this.#used += valueSpace(length);
    }
    return { count, keys, rows: values, ends };
  }

  /** The segment that the next row lies in. */
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
      `${this.#reader.path}: the index places key ${keyToBigint(keys, i)} where its row is not; build it again`,
    );
  }
}
