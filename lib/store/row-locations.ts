/**
 * Locations of rows or values that no kernel can fetch: rows on disk and variable-length values.
 */

import { CubeError } from '../core/errors.ts';
import {
  computeRowStride,
  getRowSegments,
  type LayerHeader,
  VALUE_ALIGNMENT,
} from '../core/layer-format.ts';

/** For each key the layer that has it, and the location there. */
export class RowLocations {
  /** 0: none; else the layer's number plus one, newest first. */
  readonly layers: Uint8Array;
  readonly low: Uint32Array;
  readonly high: Uint32Array;

  constructor(count: number) {
    this.layers = new Uint8Array(count);
    this.low = new Uint32Array(count);
    this.high = new Uint32Array(count);
  }

  /**
   * Adds the locations that a search of layer `number` found for keys from `first`; words of all
   * ones mean none.
   */
  addAll(number: number, first: number, words: Uint32Array): void {
    for (let i = 0; i < words.length; i += 2) {
      const low = words[i]!;
      const high = words[i + 1]!;
      if (low === 0xffff_ffff && high === 0xffff_ffff) continue;
      this.add(number, first + i / 2, low, high);
    }
  }

  add(number: number, key: number, low: number, high: number): void {
    this.layers[key] = number + 1;
    this.low[key] = low;
    this.high[key] = high;
  }

  has(key: number): boolean {
    return this.layers[key] !== 0;
  }

  /** For fixed-size rows. */
  rowNumber(key: number): number {
    return this.high[key]! * 0x1_0000_0000 + this.low[key]!;
  }

  /** For a value, whose location is length · 2^38 + offset / 8. */
  valueLength(key: number): number {
    return this.high[key]! >>> 6;
  }

  /** Offset in the concatenated row segments. */
  valueOffset(key: number): number {
    return ((this.high[key]! & 63) * 0x1_0000_0000 + this.low[key]!) * VALUE_ALIGNMENT;
  }
}

/** A position inside one section of rows. */
export interface SectionRange {
  section: number;
  /** Offset in the section. */
  offset: number;
}

/**
 * Converts locations to sections. One object per layer; each call overwrites the previous result.
 */
export class RowLocator {
  readonly #header: LayerHeader;
  /** Cumulative size of the row sections. */
  readonly #ends: Float64Array;
  readonly #range: SectionRange = { section: 0, offset: 0 };

  constructor(header: LayerHeader) {
    this.#header = header;
    const segments = header.layout === 'dense' ? header.segments : getRowSegments(header);
    this.#ends = new Float64Array(segments.length);
    segments.reduce((sum, { bytes }, i) => {
      this.#ends[i] = sum + bytes;
      return sum + bytes;
    }, 0);
  }

  /** @throws CubeError CORRUPT when the layer has no such row */
  locateRow(row: number): SectionRange {
    const { rowsPerSegment, rowCount } = this.#header;
    if (row >= rowCount) this.#refuse(`row ${row} of ${rowCount}`);
    const range = this.#range;
    range.section = Math.floor(row / rowsPerSegment);
    range.offset = (row - range.section * rowsPerSegment) * computeRowStride(this.#header);
    return range;
  }

  /** @throws CubeError CORRUPT when the value is not inside one section */
  locateValue(offset: number, length: number): SectionRange {
    const ends = this.#ends;
    let section = 0;
    while (section < ends.length && ends[section]! <= offset) section++;
    const start = section === 0 ? 0 : ends[section - 1]!;
    if (section === ends.length || offset + length > ends[section]!) {
      this.#refuse(`a value of ${length} bytes at ${offset}`);
    }
    const range = this.#range;
    range.section = section;
    range.offset = offset - start;
    return range;
  }

  #refuse(what: string): never {
    const { table, contentId } = this.#header;
    throw new CubeError(
      'CORRUPT',
      `table ${table}, layer ${contentId}: its index refers to ${what}, outside its rows; ` +
        'build the layer again',
      { details: { table, contentId } },
    );
  }
}

export class FoundValues {
  readonly count: number;
  /** Bit i: key i was found. */
  readonly found: Uint8Array;
  /** Length of each value; 0 for a missing key. */
  readonly lengths: Uint32Array;
  readonly locations: RowLocations;
  /** Hits, or -1 - i when missing key i belongs to another shard; nothing else is set then. */
  hits = 0;
  /** Size of all values together. */
  bytes = 0;

  constructor(count: number) {
    this.count = count;
    this.found = new Uint8Array((count + 7) >>> 3);
    this.lengths = new Uint32Array(count);
    this.locations = new RowLocations(count);
  }

  /** Sets the lengths from the locations. */
  measure(): void {
    const { locations, lengths } = this;
    for (let i = 0; i < this.count; i++) {
      if (!locations.has(i)) continue;
      const length = locations.valueLength(i);
      lengths[i] = length;
      this.bytes += length;
    }
  }
}

export class DenseRowFinder {
  readonly #header: LayerHeader;
  readonly #firstLow: number;
  readonly #firstHigh: number;
  readonly #step: number;

  constructor(header: LayerHeader) {
    this.#header = header;
    this.#firstLow = Number(header.firstKey & 0xffff_ffffn);
    this.#firstHigh = Number(header.firstKey >> 32n);
    this.#step = Number(header.keyStep);
  }

  /** Finds the row of a key; -1 when there is none. */
  findRow(low: number, high: number): number {
    const distance = (high - this.#firstHigh) * 0x1_0000_0000 + (low - this.#firstLow);
    if (distance < 0) return -1;
    // Above 2^53 a double is not exact.
    const row =
      distance <= Number.MAX_SAFE_INTEGER ? distance / this.#step : this.#exactRow(low, high);
    return Number.isInteger(row) && row < this.#header.rowCount ? row : -1;
  }

  #exactRow(low: number, high: number): number {
    const { firstKey, keyStep } = this.#header;
    const distance = ((BigInt(high) << 32n) | BigInt(low)) - firstKey;
    return distance % keyStep === 0n ? Number(distance / keyStep) : -1;
  }
}
