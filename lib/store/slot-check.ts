/** Checks that slots of a layer file have the order that a search relies on. */
import { CubeError } from '../core/errors.ts';
import { mixKey } from '../core/keys.ts';
import { computeHomeSlot, computeSegment } from '../core/layer-placement.ts';

/** One segment of a slot table. */
export interface SlotSegment {
  readonly stride: number;
  readonly homeSlots: number;
  readonly emptyKey: bigint;
  readonly segment: number;
  readonly segmentCount: number;
}

/**
 * Checks that every key lies at or after its home slot without an empty slot between, in strict
 * (home, key) order.
 */
export class SlotOrderCheck {
  readonly #table: SlotSegment;
  readonly #source: string;
  readonly #mixed = new Uint32Array(2);
  #slot = 0;
  #runStart = 0;
  #rows = 0;
  #home = -1;
  #low = 0;
  #high = 0;

  /** @param source name of the segment in errors */
  constructor(table: SlotSegment, source: string) {
    this.#table = table;
    this.#source = source;
  }

  /** @param words the next whole slots */
  check(words: Uint32Array): void {
    const { stride, emptyKey } = this.#table;
    const emptyLow = Number(emptyKey & 0xffff_ffffn);
    const emptyHigh = Number(emptyKey >> 32n);
    for (let at = 0; at < words.length; at += stride / 4) {
      const low = words[at]!;
      const high = words[at + 1]!;
      if (low === emptyLow && high === emptyHigh) this.#runStart = this.#slot + 1;
      else this.#checkKey(low, high);
      this.#slot += 1;
    }
  }

  finish(rows: number): void {
    if (this.#runStart !== this.#slot) this.#fail('its last slot is not empty');
    if (this.#rows !== rows) this.#fail(`it holds ${this.#rows} keys, not ${rows}`);
  }

  #checkKey(low: number, high: number): void {
    const { homeSlots, segment, segmentCount } = this.#table;
    mixKey(low, high, this.#mixed, 0);
    if (computeSegment(this.#mixed, 0, segmentCount) !== segment) {
      this.#fail(`slot ${this.#slot} holds a key of another segment`);
    }
    const home = computeHomeSlot(this.#mixed, 0, homeSlots);
    if (home < this.#runStart || home > this.#slot) {
      this.#fail(`the key in slot ${this.#slot} is not found by a search`);
    }
    const order = home - this.#home || high - this.#high || low - this.#low;
    if (order <= 0) this.#fail(`slot ${this.#slot} is out of (home, key) order`);
    this.#home = home;
    this.#low = low;
    this.#high = high;
    this.#rows += 1;
  }

  #fail(text: string): never {
    throw new CubeError('CORRUPT', `${this.#source}: ${text}; build it again`);
  }
}

/** The deleted keys of a delta, after their check, for searches. */
export class DeletedKeySet {
  readonly #words: Uint32Array;
  readonly #homeSlots: number;
  readonly #emptyLow: number;
  readonly #emptyHigh: number;
  readonly #mixed = new Uint32Array(2);

  constructor(words: Uint32Array, homeSlots: number, emptyKey: bigint) {
    this.#words = words;
    this.#homeSlots = homeSlots;
    this.#emptyLow = Number(emptyKey & 0xffff_ffffn);
    this.#emptyHigh = Number(emptyKey >> 32n);
  }

  has(low: number, high: number): boolean {
    const words = this.#words;
    mixKey(low, high, this.#mixed, 0);
    for (let at = 2 * computeHomeSlot(this.#mixed, 0, this.#homeSlots); ; at += 2) {
      if (words[at] === this.#emptyLow && words[at + 1] === this.#emptyHigh) return false;
      if (words[at] === low && words[at + 1] === high) return true;
    }
  }
}
