/**
 * A fill that runs only while the machine has idle time. The thread counts the blocks; the store
 * watches them, and hands the rest over to a thread of usual priority when the machine has none.
 */
import { systemClock } from '../platform/clock.ts';

const FILLED = 0;
const HANDED_OVER = 1;
const WORDS = 2;

/** Pause between two looks at the progress. */
const WATCH_MS = 500;
/** Below this share of the blocks that the rate allows, the thread counts as starved. */
const STARVED_SHARE = 1 / 8;
/** So that the share is at least one block. */
const WATCHED_BLOCKS_MIN = 8;

export class BackgroundFill {
  /** Shared between threads. */
  readonly words: Int32Array;

  /** @param words of the fill in another thread */
  constructor(words: Int32Array = new Int32Array(new SharedArrayBuffer(4 * WORDS))) {
    this.words = words;
  }

  addBlock(): void {
    Atomics.add(this.words, FILLED, 1);
  }

  get isHandedOver(): boolean {
    return Atomics.load(this.words, HANDED_OVER) === 1;
  }

  /**
   * Hands the rest over as soon as the thread fills far fewer blocks than it may. Resolves then, or
   * when `signal` is aborted.
   */
  async watch(blocks: number, blocksPerSecond: number, signal: AbortSignal): Promise<void> {
    const intervalMs = Math.max(WATCH_MS, (1000 * WATCHED_BLOCKS_MIN) / blocksPerSecond);
    const allowed = (blocksPerSecond * intervalMs) / 1000;
    let before = 0;
    for (;;) {
      await systemClock.sleep(intervalMs, signal);
      if (signal.aborted) return;
      const filled = Atomics.load(this.words, FILLED);
      if (filled - before < STARVED_SHARE * Math.min(allowed, blocks - before)) break;
      before = filled;
    }
    Atomics.store(this.words, HANDED_OVER, 1);
  }
}
