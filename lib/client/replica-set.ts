/**
 * The replicas of one shard: which one a request goes to, and whether a failed one may be tried again elsewhere.
 *
 * Choice: the load balancer shares requests among the healthy replicas known to hold the version; then come healthy ones of which
 * that is not known; then those that failed, longest ago first in effect, because a backoff that has passed ranks higher; last
 * those that said they lack the version. So a dead replica costs nothing while another lives, and is still tried when none does.
 *
 * Retry budget: a token bucket. Each request puts in a tenth of a token, each retry and each backup takes one: a shard whose
 * replicas are all dying sees at most a tenth more requests than were asked, after a burst of RETRY_BURST.
 */
import type { Balancer, Candidates } from './balancer.ts';
import { balancerOf } from './balancers.ts';
import type { CallPolicy } from './call-policy.ts';
import { RecentLatencies } from './recent-latencies.ts';
import { RANK_HOLDS, RANK_UNKNOWN, type Replica } from './replica.ts';

const RETRY_SHARE = 0.1;
/** Enough for all that is in flight on one connection when a healthy fleet loses a replica. */
const RETRY_BURST = 100;
const RANK_TRIED = 255;
/** Timers count whole milliseconds. */
const BACKUP_MS_MIN = 1;

export class ReplicaSet {
  readonly shard: number;
  readonly replicas: readonly Replica[];
  readonly retryMax: number;
  readonly #backup: CallPolicy['backupRequest'];
  readonly #latencies: RecentLatencies = new RecentLatencies();
  readonly #balancer: Balancer;
  readonly #candidates: Candidates;
  #retryTokens = RETRY_BURST;

  /** @param weights for wrr and wr: one a replica */
  constructor(
    shard: number,
    replicas: readonly Replica[],
    weights: readonly number[],
    policy: CallPolicy = {},
  ) {
    this.shard = shard;
    this.replicas = replicas;
    this.retryMax = policy.retryMax ?? Number.POSITIVE_INFINITY;
    this.#backup = replicas.length > 1 ? policy.backupRequest : undefined;
    this.#balancer = balancerOf(policy.loadBalancer ?? 'rr', replicas);
    this.#candidates = {
      replicas,
      weights: Float64Array.from(weights),
      ranks: new Uint8Array(replicas.length),
    };
  }

  /**
   * The replica to ask, none of those tried.
   * @param hash of the request, for consistent hashing
   */
  pick(
    version: string,
    tried: readonly Replica[],
    nowMs: number,
    hash: number,
  ): Replica | undefined {
    const { replicas } = this;
    if (replicas.length === 1) return tried.length === 0 ? replicas[0] : undefined;
    const rank = this.#rankAll(version, tried, nowMs);
    if (rank === RANK_TRIED) return undefined;
    return replicas[this.#balancer.choose(this.#candidates, rank, hash, nowMs)];
  }

  /** As `pick`, but only a replica that is healthy as far as is known: a backup is no use to others. */
  pickBackup(
    version: string,
    tried: readonly Replica[],
    nowMs: number,
    hash: number,
  ): Replica | undefined {
    const rank = this.#rankAll(version, tried, nowMs);
    if (rank > RANK_UNKNOWN) return undefined;
    return this.replicas[this.#balancer.choose(this.#candidates, rank, hash, nowMs)];
  }

  /** A replica other than the chosen one that should be asked, in the background, whether it is usable again. */
  pickProbe(version: string, chosen: Replica, nowMs: number): Replica | undefined {
    if (chosen.rank(version, nowMs) !== RANK_HOLDS) return undefined;
    return this.replicas.find((replica) => replica !== chosen && replica.takeProbe(version, nowMs));
  }

  /** Counts a request that is neither retry nor backup. */
  countRequest(): void {
    this.#retryTokens = Math.min(this.#retryTokens + RETRY_SHARE, RETRY_BURST);
  }

  /** Takes one retry or backup from the budget; false when it is spent. */
  takeRetry(): boolean {
    if (this.#retryTokens < 1) return false;
    this.#retryTokens--;
    return true;
  }

  /** Milliseconds after which a request should be asked of a second replica too; infinite: never. */
  backupDelayMs(): number {
    const backup = this.#backup;
    if (backup === undefined) return Number.POSITIVE_INFINITY;
    return Math.max(BACKUP_MS_MIN, Math.ceil(backup === 'p95' ? this.#latencies.p95Ms : backup));
  }

  /** Counts the latency of an answer. */
  observe(latencyMs: number): void {
    if (this.#backup === 'p95') this.#latencies.add(latencyMs);
  }

  /** @returns the best rank there is */
  #rankAll(version: string, tried: readonly Replica[], nowMs: number): number {
    const { ranks } = this.#candidates;
    const { replicas } = this;
    let best = RANK_TRIED;
    for (let i = 0; i < replicas.length; i++) {
      const replica = replicas[i]!;
      const rank = tried.includes(replica) ? RANK_TRIED : replica.rank(version, nowMs);
      ranks[i] = rank;
      if (rank < best) best = rank;
    }
    return best;
  }
}
