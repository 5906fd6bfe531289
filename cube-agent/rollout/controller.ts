/**
 * Drives the rollouts of several bundles until it is stopped. Bundles do not wait for each other.
 */
import type { Clock } from '../../lib/platform/clock.ts';
import type { Stoppable } from '../../lib/platform/lifecycle.ts';
import type { BundleController } from './bundle-controller.ts';

/** Longer than one inspection may take, without steps that take long by themselves. */
const STALL_TIMEOUT_MS = 120_000;

export class Controller implements Stoppable {
  readonly bundles: readonly BundleController[];
  readonly #clock: Clock;
  readonly #pollMs: number;
  readonly #stopping: AbortController;
  #wake = new AbortController();
  #ended: Promise<unknown> = Promise.resolve();

  /** @param stopping aborted by `stop()`, which also ends gates in progress */
  constructor(
    bundles: readonly BundleController[],
    { clock, pollMs, stopping }: { clock: Clock; pollMs: number; stopping: AbortController },
  ) {
    this.bundles = bundles;
    this.#clock = clock;
    this.#pollMs = pollMs;
    this.#stopping = stopping;
  }

  /**
   * Every bundle was inspected recently. One whose gate runs is waited for: its run has a time
   * limit of its own.
   */
  get isHealthy(): boolean {
    const oldestMs = this.#clock.nowMs() - STALL_TIMEOUT_MS - this.#pollMs;
    return this.bundles.every((bundle) => bundle.isInLongStep || bundle.lastLookMs > oldestMs);
  }

  start(): void {
    this.#ended = Promise.all(this.bundles.map((bundle) => this.#drive(bundle)));
  }

  /** Inspects all bundles now. */
  poke(): void {
    this.#wake.abort();
    this.#wake = new AbortController();
  }

  async stop(): Promise<void> {
    this.#stopping.abort();
    this.poke();
    await this.#ended;
  }

  async #drive(bundle: BundleController): Promise<void> {
    while (!this.#stopping.signal.aborted) {
      // Read before the inspection, so that a poke or stop during it ends the pause.
      const { signal } = this.#wake;
      const isMoving = await bundle.advance();
      if (!isMoving) await this.#clock.sleep(this.#pollMs, signal);
    }
  }
}
