/**
 * Which requests are let in: a bounded number at a time, none once the process is stopping. Refusing early keeps the latency of
 * those inside; whoever is inside is waited for at the end.
 */
import { CubeError } from '../lib/core/errors.ts';

export class Admission {
  readonly #inFlightMax: number;
  #inFlight = 0;
  #closed = false;
  #onEmpty: (() => void) | undefined;

  constructor(inFlightMax: number) {
    this.#inFlightMax = inFlightMax;
  }

  get inFlight(): number {
    return this.#inFlight;
  }

  get closed(): boolean {
    return this.#closed;
  }

  /** `leave` must follow, once. @throws CubeError STOPPING, OVERLOADED */
  enter(): void {
    if (this.#closed) throw new CubeError('STOPPING', 'this server is stopping; ask another');
    if (this.#inFlight >= this.#inFlightMax) {
      throw new CubeError(
        'OVERLOADED',
        `${this.#inFlight} requests are in flight, the limit is ${this.#inFlightMax}; try again later`,
      );
    }
    this.#inFlight++;
  }

  leave(): void {
    this.#inFlight--;
    if (this.#inFlight === 0) this.#onEmpty?.();
  }

  /** Lets nobody in any more and waits until all are out. */
  async close(): Promise<void> {
    this.#closed = true;
    if (this.#inFlight === 0) return;
    await new Promise<void>((resolve) => {
      this.#onEmpty = resolve;
    });
  }
}
