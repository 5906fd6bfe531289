/**
 * The disk work of each bundle and each server are lanes: one action at a time in a lane, and no lane waits for another,
 * so that a long fetch does not keep a restarted server empty.
 */
import type { Clock } from '../../lib/platform/clock.ts';
import type { Logger } from '../../lib/platform/logs.ts';

export interface Running {
  readonly bundle: string;
  /** As nameOf calls it. */
  readonly what: string;
  readonly kind: string;
  readonly version: string;
}

export class Lanes {
  readonly #running = new Map<string, Running>();
  readonly #clock: Clock;
  readonly #logger: Logger;
  readonly #onEnd: (lane: string) => void;

  /** @param onEnd called whenever a lane is free again */
  constructor(clock: Clock, logger: Logger, onEnd: (lane: string) => void) {
    this.#clock = clock;
    this.#logger = logger;
    this.#onEnd = onEnd;
  }

  get(lane: string): Running | undefined {
    return this.#running.get(lane);
  }

  /** What runs for a bundle, in whatever lane. */
  ofBundle(bundle: string): Running[] {
    return [...this.#running.values()].filter((running) => running.bundle === bundle);
  }

  start(lane: string, running: Running, run: () => Promise<void>): void {
    this.#running.set(lane, running);
    run()
      .catch((error: unknown) => this.#logger.error({ err: error, lane }, 'lane failed'))
      .finally(() => {
        this.#running.delete(lane);
        this.#onEnd(lane);
      });
  }

  /** Resolves when every lane is free. */
  async idle(): Promise<void> {
    while (this.#running.size > 0) await this.#clock.sleep(10);
  }
}
