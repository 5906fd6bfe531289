/**
 * Shares the capacity under overload by weight. The use of a caller is a sum of rows that fades. A
 * caller that was quiet for half a second counts no more: its share is the others', and when it
 * comes back it has its full share again. Pure: times are passed in.
 */
import { FadingSum } from '../core/fading-sum.ts';

/** A use weighs 1/e after this time. */
const FADE_MS = 500;
const IDLE_MS = 500;
/** How often idle callers are removed. */
const SCAN_INTERVAL_MS = 100;

interface Use {
  weight: number;
  lastMs: number;
  readonly rows: FadingSum;
}

export class FairShare {
  readonly #uses = new Map<string, Use>();
  readonly #total = new FadingSum(FADE_MS);
  #weights = 0;
  #nextScanMs = Number.NEGATIVE_INFINITY;

  /** Counts admitted rows. @param weight > 0, relative to other callers */
  record(caller: string, weight: number, rowCount: number, nowMs: number): void {
    let use = this.#uses.get(caller);
    if (use === undefined) {
      use = { weight: 0, lastMs: nowMs, rows: new FadingSum(FADE_MS) };
      this.#uses.set(caller, use);
    }
    this.#weights += weight - use.weight;
    use.weight = weight;
    use.lastMs = nowMs;
    use.rows.add(rowCount, nowMs);
    this.#total.add(rowCount, nowMs);
    if (nowMs >= this.#nextScanMs) this.#scan(nowMs);
  }

  /**
   * Whether a caller used more than its share of what all callers used lately. A caller that is
   * alone never does.
   */
  exceeds(caller: string, nowMs: number): boolean {
    if (nowMs >= this.#nextScanMs) this.#scan(nowMs);
    const use = this.#uses.get(caller);
    if (use === undefined || this.#uses.size < 2) return false;
    return use.rows.get(nowMs) * this.#weights > this.#total.get(nowMs) * use.weight;
  }

  /** Removes idle callers, and the rounding errors of the sums. */
  #scan(nowMs: number): void {
    this.#nextScanMs = nowMs + SCAN_INTERVAL_MS;
    let rows = 0;
    this.#weights = 0;
    for (const [caller, use] of this.#uses) {
      if (nowMs - use.lastMs > IDLE_MS) {
        this.#uses.delete(caller);
        continue;
      }
      rows += use.rows.get(nowMs);
      this.#weights += use.weight;
    }
    this.#total.set(rows, nowMs);
  }
}
