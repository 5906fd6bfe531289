/** Where the rows or values of found keys are when no kernel fetches them: on disk, or of any length. */
import { CubeError } from '../core/errors.ts';
import {
  type LayerHeader,
  rowSegments,
  rowStrideOf,
  VALUE_ALIGNMENT,
} from '../core/layer-format.ts';

/** Per key the layer that has it, and its place there. */
export class FoundPlaces {
  /** 0: none; else one more than the layer's number, newest first. */
  readonly layers: Uint8Array;
  readonly low: Uint32Array;
  readonly high: Uint32Array;

  constructor(count: number) {
    this.layers = new Uint8Array(count);
    this.low = new Uint32Array(count);
    this.high = new Uint32Array(count);
  }

  /** Takes the places that a search of layer `number` found for the keys from `first`: words, all ones for none. */
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

  /** Of fixed-size rows. */
  row(key: number): number {
    return this.high[key]! * 0x1_0000_0000 + this.low[key]!;
  }

  /** Of a value: its place is length · 2^38 + offset / 8. */
  length(key: number): number {
    return this.high[key]! >>> 6;
  }

  /** In the concatenated row segments. */
  offset(key: number): number {
    return ((this.high[key]! & 63) * 0x1_0000_0000 + this.low[key]!) * VALUE_ALIGNMENT;
  }
}

/** A range inside one section of rows. */
export interface SectionRange {
  section: number;
  /** In the section. */
  offset: number;
}

/** From places to sections. One object per layer: `find` overwrites its answer. */
export class PlaceFinder {
  readonly #header: LayerHeader;
  /** Bytes of all row sections up to the end of each. */
  readonly #ends: Float64Array;
  readonly #range: SectionRange = { section: 0, offset: 0 };

  constructor(header: LayerHeader) {
    this.#header = header;
    const segments = header.layout === 'dense' ? header.segments : rowSegments(header);
    this.#ends = new Float64Array(segments.length);
    segments.reduce((sum, { bytes }, i) => {
      this.#ends[i] = sum + bytes;
      return sum + bytes;
    }, 0);
  }

  /** @throws CubeError CORRUPT when the place is none of the layer's */
  findRow(row: number): SectionRange {
    const { rowsPerSegment, rowCount } = this.#header;
    if (row >= rowCount) this.#refuse(`row ${row} of ${rowCount}`);
    const range = this.#range;
    range.section = Math.floor(row / rowsPerSegment);
    range.offset = (row - range.section * rowsPerSegment) * rowStrideOf(this.#header);
    return range;
  }

  /** @throws CubeError CORRUPT when the value is not inside one section */
  findValue(offset: number, length: number): SectionRange {
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
      `table ${table}, layer ${contentId}: its index points to ${what}, outside its rows; build it again`,
    );
  }
}
