/**
 * Seeded random numbers. Every part of a simulation has its own sequence, so that none disturbs
 * another.
 */
export class Random {
  #state: number;

  constructor(seed: number, name: string) {
    let state = seed | 0;
    for (let i = 0; i < name.length; i++) state = Math.imul(state ^ name.charCodeAt(i), 0x01000193);
    this.#state = state;
  }

  /** 0 ≤ x < 1 (mulberry32). */
  next(): number {
    this.#state = (this.#state + 0x6d2b79f5) | 0;
    let t = Math.imul(this.#state ^ (this.#state >>> 15), 1 | this.#state);
    t = (t + Math.imul(t ^ (t >>> 7), 61 | t)) ^ t;
    return ((t ^ (t >>> 14)) >>> 0) / 2 ** 32;
  }

  /** An integer in `min` … `max` − 1. */
  integer(min: number, max: number): number {
    return min + Math.floor(this.next() * (max - min));
  }

  chance(share: number): boolean {
    return this.next() < share;
  }

  pick<T>(items: readonly T[]): T {
    return items[this.integer(0, items.length)]!;
  }
}
