/**
 * Where values of dtype bytes lie: a place is length · 2^38 + offset / 8, its offset counted over the layer's segments of
 * values as if they were one. As words (low, high), like a key.
 */
import {
  SEGMENT_BYTES_MAX,
  type SegmentSize,
  VALUE_ALIGNMENT,
  valueSpace,
} from './layer-format.ts';

const UNITS_HIGH = 63;

/** Sets the i-th place. @param offset a multiple of 8 */
export function setPlace(places: Uint32Array, i: number, length: number, offset: number): void {
  const units = offset / VALUE_ALIGNMENT;
  places[2 * i] = units;
  places[2 * i + 1] = length * (UNITS_HIGH + 1) + Math.floor(units / 0x1_0000_0000);
}

/** Bytes of the value at a place. */
export function placeLength(high: number): number {
  return high >>> 6;
}

/** Where the value at a place starts, over all segments of values. */
export function placeOffset(low: number, high: number): number {
  return ((high & UNITS_HIGH) * 0x1_0000_0000 + low) * VALUE_ALIGNMENT;
}

/** Puts values one after the other into segments; a value does not cross the end of one. */
export class ValuePacker {
  readonly #segmentBytesMax: number;
  readonly #sizes: SegmentSize[] = [];
  /** Bytes of the finished segments, and of the one being filled. */
  #before = 0;
  #used = 0;
  #values = 0;

  constructor(segmentBytesMax: number = SEGMENT_BYTES_MAX) {
    this.#segmentBytesMax = segmentBytesMax;
  }

  /** @returns where the next value starts */
  take(length: number): number {
    const space = valueSpace(length);
    if (this.#used > 0 && this.#used + space > this.#segmentBytesMax) this.#endSegment();
    const offset = this.#before + this.#used;
    this.#used += space;
    this.#values += 1;
    return offset;
  }

  /** Of all segments; no value can be taken after it. */
  sizes(): readonly SegmentSize[] {
    if (this.#values > 0) this.#endSegment();
    return this.#sizes;
  }

  #endSegment(): void {
    this.#sizes.push({ rows: this.#values, slots: this.#used / VALUE_ALIGNMENT });
    this.#before += this.#used;
    this.#used = 0;
    this.#values = 0;
  }
}
