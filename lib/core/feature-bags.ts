/**
 * Collects the features of rows, slot by slot: one for a slot of one value, any number for one that pools several. Made
 * for a known number of bags, so that where each ends is one array, and none when every slot has one value.
 */
import { CubeError } from './errors.ts';
import { BAG_VALUES_MAX, REQUEST_VALUES_MAX } from './limits.ts';
import type { Slot } from './slots.ts';

export class FeatureBags<T> {
  readonly values: T[] = [];
  readonly ends: Uint32Array | undefined;
  readonly #slots: readonly Slot[];
  #bag = 0;

  /** @param slots those of one row, in order */
  constructor(slots: readonly Slot[], rowCount: number) {
    this.#slots = slots;
    const isPooled = slots.some(({ pooling }) => pooling !== undefined);
    if (isPooled) this.ends = new Uint32Array(rowCount * slots.length);
  }

  /** Another value of the current bag. */
  add(value: T): void {
    this.values.push(value);
  }

  /** The current bag is complete. @throws CubeError TOO_LARGE naming row and slot */
  endBag(): void {
    const { ends } = this;
    if (ends === undefined) return;
    const count = this.values.length - (this.#bag === 0 ? 0 : ends[this.#bag - 1]!);
    if (count > BAG_VALUES_MAX) {
      this.#fail(`${count} values in one slot, the limit is ${BAG_VALUES_MAX}: send the latest`);
    }
    if (this.values.length > REQUEST_VALUES_MAX) {
      this.#fail(`over ${REQUEST_VALUES_MAX} values in one request: send it in several`);
    }
    ends[this.#bag++] = this.values.length;
  }

  #fail(what: string): never {
    const row = Math.floor(this.#bag / this.#slots.length) + 1;
    const { name } = this.#slots[this.#bag % this.#slots.length]!;
    throw new CubeError('TOO_LARGE', `row ${row} (${name}): ${what}`);
  }
}
