/** The values of dtype bytes that a lookup found, before they are copied: the caller makes room for them first. */
import { FoundPlaces } from './found-places.ts';

export class FoundValues {
  readonly count: number;
  /** Bit i: key i was found. */
  readonly found: Uint8Array;
  /** Of each value; 0 for a missing key. */
  readonly lengths: Uint32Array;
  readonly places: FoundPlaces;
  /** Or -1 - i when missing key i belongs to another shard; nothing else is set then. */
  hits = 0;
  /** Of all values together. */
  bytes = 0;

  constructor(count: number) {
    this.count = count;
    this.found = new Uint8Array((count + 7) >>> 3);
    this.lengths = new Uint32Array(count);
    this.places = new FoundPlaces(count);
  }

  /** Takes the lengths from the places. */
  measure(): void {
    const { places, lengths } = this;
    for (let i = 0; i < this.count; i++) {
      if (!places.has(i)) continue;
      const length = places.length(i);
      lengths[i] = length;
      this.bytes += length;
    }
  }
}
