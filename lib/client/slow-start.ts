/**
 * Slow start: a replica that returns after an outage, or joins a fleet in use, gets a growing share
 * of its calls, because its caches are cold and its connections new. All callers would otherwise
 * send it their whole share at once.
 */

/** From the first answer to the full share. */
const SLOW_START_MS = 5_000;
/** The first share, so that the replica warms up at all. */
const SHARE_MIN = 0.1;
/** A shorter outage, of a connection for example, leaves a server warm. */
export const OUTAGE_MS_MIN = 1_000;

/** The share of its calls that a replica gets, `elapsedMs` after its return. */
export function getSlowStartShare(elapsedMs: number): number {
  return Math.min(1, Math.max(SHARE_MIN, elapsedMs / SLOW_START_MS));
}
