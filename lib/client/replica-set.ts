/**
 * The replicas of one shard: which one a request goes to, and whether a failed one may be tried again elsewhere.
 *
 * Choice: round robin over the healthy replicas known to hold the version; then healthy ones of which that is not
 * known; then those that failed, longest ago first in effect, because a backoff that has passed ranks higher; last those that
 * said they lack the version. So a dead replica costs nothing while another lives, and is still tried when none does.
 *
 * Retry budget: a token bucket. Each request puts in a tenth of a token, each retry takes one: a shard whose replicas
 * are all dying sees at most a tenth more requests than were asked, after a burst of RETRY_BURST.
 */
import { RANK_HOLDS, type Replica } from './replica.ts';

const RETRY_SHARE = 0.1;
/** Enough for all that is in flight on one connection when a healthy fleet loses a replica. */
const RETRY_BURST = 100;

export class ReplicaSet {
  readonly shard: number;
  readonly replicas: readonly Replica[];
  #next = 0;
  #retryTokens = RETRY_BURST;

  constructor(shard: number, replicas: readonly Replica[]) {
    this.shard = shard;
    this.replicas = replicas;
  }

  /** The best replica that was not tried yet. @param tried indices of `replicas` */
  pick(version: string, tried: ReadonlySet<Replica>, nowMs: number): Replica | undefined {
    const { replicas } = this;
    let best: Replica | undefined;
    let bestRank = Number.POSITIVE_INFINITY;
    let bestAt = 0;
    for (let i = 0; i < replicas.length && bestRank > RANK_HOLDS; i++) {
      const at = (this.#next + i) % replicas.length;
      const replica = replicas[at]!;
      if (tried.has(replica)) continue;
      const rank = replica.rank(version, nowMs);
      if (rank < bestRank) [best, bestRank, bestAt] = [replica, rank, at];
    }
    if (best !== undefined) this.#next = (bestAt + 1) % replicas.length;
    return best;
  }

  /** A replica other than the chosen one that should be asked, in the background, whether it is usable again. */
  pickProbe(version: string, chosen: Replica, nowMs: number): Replica | undefined {
    if (chosen.rank(version, nowMs) !== RANK_HOLDS) return undefined;
    return this.replicas.find((replica) => replica !== chosen && replica.takeProbe(version, nowMs));
  }

  /** Counts a request that is not a retry. */
  countRequest(): void {
    this.#retryTokens = Math.min(this.#retryTokens + RETRY_SHARE, RETRY_BURST);
  }

  /** Takes one retry from the budget; false when it is spent. */
  takeRetry(): boolean {
    if (this.#retryTokens < 1) return false;
    this.#retryTokens--;
    return true;
  }
}
