/**
 * Locations of values of dtype bytes: length · 2^38 + offset / 8, with the offset counted over the
 * layer's segments of values as if they were one. Stored as words (low, high), like a key.
 */
import {
  paddedValueBytes,
  SEGMENT_BYTES_MAX,
  type SegmentSize,
  VALUE_ALIGNMENT,
} from './layer-format.ts';

const UNITS_HIGH = 63;

/** Sets the i-th location. @param offset a multiple of 8 */
export function setValueLocation(
  locations: Uint32Array,
  i: number,
  length: number,
  offset: number,
): void {
  const units = offset / VALUE_ALIGNMENT;
  locations[2 * i] = units;
  locations[2 * i + 1] = length * (UNITS_HIGH + 1) + Math.floor(units / 0x1_0000_0000);
}

/** Bytes of the value at a location. */
export function getLocationLength(high: number): number {
  return high >>> 6;
}

/** Offset of the value at a location, over all segments of values. */
export function getLocationOffset(low: number, high: number): number {
  return ((high & UNITS_HIGH) * 0x1_0000_0000 + low) * VALUE_ALIGNMENT;
}

/** Assigns offsets to values, one after another; a value does not cross the end of a segment. */
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

  /** @returns the offset of the next value */
  reserve(length: number): number {
    const space = paddedValueBytes(length);
    if (this.#used > 0 && this.#used + space > this.#segmentBytesMax) this.#endSegment();
    const offset = this.#before + this.#used;
    this.#used += space;
    this.#values += 1;
    return offset;
  }

  /** Sizes of all segments. Call it once, after the last value. */
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
