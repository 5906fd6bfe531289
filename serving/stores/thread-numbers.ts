/**
 * Numbers 1 … capacity, each held by one model worker at a time: the area of the tables' memories that it looks up in. A number
 * goes back when its worker has ended, and the next worker takes the lowest free one.
 */
import { CubeError } from '../../lib/core/errors.ts';

export class ThreadNumbers {
  readonly capacity: number;
  readonly #taken = new Set<number>();

  constructor(capacity: number) {
    this.capacity = capacity;
  }

  /** @throws CubeError OVERLOADED when every number is held */
  take(): number {
    for (let number = 1; number <= this.capacity; number++) {
      if (this.#taken.has(number)) continue;
      this.#taken.add(number);
      return number;
    }
    throw new CubeError(
      'OVERLOADED',
      `all ${this.capacity} model workers that the store in memory was opened for are in use; serve fewer versions or instances`,
    );
  }

  give(number: number): void {
    this.#taken.delete(number);
  }
}
