/**
 * The replicas of one shard: which one a request goes to, when it is sent to another one too, and
 * whether a failed request may be retried.
 *
 * Choice: the load balancer shares requests among the healthy replicas known to have loaded the
 * version. After them come healthy replicas of which that is unknown, then those with as many calls
 * in flight as they serve without queueing (concurrency-limit.ts), then those that fail more calls
 * than the others (outlier-ejection.ts), then those that are slower than the others, then failed
 * replicas whose backoff has passed, then other failed replicas, and last those that reported the
 * version absent. A replica whose circuit is open is never chosen. One that has just returned is
 * passed over for a part of its calls (slow-start.ts).
 *
 * Slow: a replica is expected to take its average latency, or the time for which it has answered
 * nothing while calls wait, if that is longer. It is slow when that is SLOW_FACTOR times as long as
 * that of the fastest replica, and SLOW_MS more. So a replica that hangs loses its traffic after
 * some milliseconds, and gets it back with its next answer.
 *
 * Budgets: retries and backups have one each (request-budget.ts). Half of the burst of backups is
 * kept for calls to slow replicas, so that quiet traffic never leaves none for a replica that
 * hangs.
 */
import type { TimerClock } from '../platform/clock.ts';
import { systemClock } from '../platform/clock.ts';
import { type BackupCaller, BackupTimer } from './backup-timer.ts';
import type { BackupRequest, CallPolicy, ConcurrencyLimitPolicy } from './call-policy.ts';
import { type Balancer, type Candidates, createBalancer } from './load-balancer.ts';
import { getEjectedMax, isOutlier } from './outlier-ejection.ts';
import {
  RANK_BUSY,
  RANK_CIRCUIT_OPEN,
  RANK_EJECTED,
  RANK_FAILED,
  RANK_LOADED,
  RANK_SLOW,
  RANK_UNKNOWN,
  type Replica,
} from './replica.ts';
import { RequestBudget } from './request-budget.ts';

const RANK_TRIED = 255;
/** Passed over in its slow start. */
const RANK_STARTING = 254;
const SLOW_FACTOR = 4;
/** Less is noise of timers and schedulers. */
const SLOW_MS = 5;
/** Timers count whole milliseconds. */
const BACKUP_DELAY_MS_MIN = 1;
/**
 * How often a call that still has no answer is considered for a further backup: a replica may have
 * recovered, or the budget.
 */
const BACKUP_RECHECK_MS = 20;
/** The delay until enough latencies are known for their percentile. */
const BACKUP_DELAY_MS_INITIAL = 20;
/**
 * A backup is only sent to a replica with fewer calls in flight than this share of its limit: under
 * load, work that is done twice would take the place of other calls.
 */
const BACKUP_LIMIT_SHARE = 0.5;
const LATENCY_SAMPLES = 256;
const P95_INTERVAL_SAMPLES = 32;

export class ReplicaSet {
  readonly shard: number;
  readonly replicas: readonly Replica[];
  readonly retryMax: number;
  readonly backupMax: number;
  readonly retryBudget: RequestBudget;
  readonly #backupTimer: BackupTimer;
  readonly #recheckTimer: BackupTimer;
  readonly #backupPolicy: BackupRequest;
  readonly #concurrency: ConcurrencyLimitPolicy;
  readonly #backupBudget: RequestBudget;
  readonly #latencies: LatencyWindow;
  readonly #balancer: Balancer;
  readonly #candidates: Candidates;
  /** Scratch: how long a call to each replica is expected to take, in milliseconds. */
  readonly #expectedMs: Float64Array;

  /**
   * @param weights for wrr and wr; index = replica
   * @param previous the set before the replicas changed, whose budgets and latencies still count
   */
  constructor(
    shard: number,
    replicas: readonly Replica[],
    weights: readonly number[],
    policy: CallPolicy = {},
    clock: TimerClock = systemClock,
    previous?: ReplicaSet,
  ) {
    this.shard = shard;
    this.replicas = replicas;
    this.retryMax = policy.retryMax ?? Number.POSITIVE_INFINITY;
    this.backupMax = policy.backupMax ?? Number.POSITIVE_INFINITY;
    this.retryBudget = previous === undefined ? new RequestBudget() : previous.retryBudget;
    this.#backupBudget = previous === undefined ? new RequestBudget() : previous.#backupBudget;
    this.#latencies = previous === undefined ? new LatencyWindow() : previous.#latencies;
    this.#concurrency = policy.concurrencyLimit ?? 'prefer';
    this.#backupPolicy = replicas.length > 1 ? (policy.backupRequest ?? 'p95') : 'never';
    this.#backupTimer = new BackupTimer(clock);
    this.#recheckTimer = new BackupTimer(clock);
    this.#balancer = createBalancer(policy.loadBalancer ?? 'rr', replicas);
    this.#candidates = {
      replicas,
      weights: Float64Array.from(weights),
      ranks: new Uint8Array(replicas.length),
    };
    this.#expectedMs = new Float64Array(replicas.length);
  }

  /**
   * Returns the replica to call, none of those already tried; undefined when there is none, the
   * circuits of all are open, or all are at their limits and the policy refuses then.
   * @param hash u32 of the request, for consistent hashing
   */
  pick(
    versionKey: string,
    tried: readonly Replica[],
    nowMs: number,
    hash: number,
  ): Replica | undefined {
    const [first] = this.replicas;
    const isRefusing = this.#concurrency === 'refuse';
    if (this.replicas.length === 1 && !isRefusing) {
      return tried.length === 0 && first?.isCircuitOpen === false ? first : undefined;
    }
    const rank = this.#rankAll(versionKey, tried, nowMs);
    if (rank >= RANK_CIRCUIT_OPEN || (rank === RANK_BUSY && isRefusing)) return undefined;
    return this.#choose(rank, nowMs, hash);
  }

  /** Whether `pick` would refuse a new call because all replicas are at their limits. */
  isSaturated(versionKey: string, nowMs: number): boolean {
    return this.#concurrency === 'refuse' && this.#rankAll(versionKey, [], nowMs) === RANK_BUSY;
  }

  /**
   * As `pick`, but only a replica that answers and has room to spare: a backup sent to another one
   * gains nothing.
   */
  pickBackup(
    versionKey: string,
    tried: readonly Replica[],
    nowMs: number,
    hash: number,
  ): Replica | undefined {
    const rank = this.#rankAll(versionKey, tried, nowMs, BACKUP_LIMIT_SHARE);
    if (rank > RANK_UNKNOWN && rank !== RANK_EJECTED) return undefined;
    return this.#choose(rank, nowMs, hash);
  }

  /** Chooses among the replicas of a rank, and passes over those in their slow start by chance. */
  #choose(rank: number, nowMs: number, hash: number): Replica | undefined {
    const { ranks } = this.#candidates;
    const first = this.#balancer.choose(this.#candidates, rank, hash, nowMs);
    for (let index = first; ; ) {
      const share = this.replicas[index]?.getShare(nowMs) ?? 1;
      if (share === 1 || Math.random() < share) return this.replicas[index];
      ranks[index] = RANK_STARTING;
      if (!ranks.includes(rank)) return this.replicas[first];
      index = this.#balancer.choose(this.#candidates, rank, hash, nowMs);
    }
  }

  /**
   * Records that a call to a replica failed, and ejects the replica if it fails more than the
   * others. @returns whether it was ejected
   */
  recordFailure(failed: Replica, nowMs: number): boolean {
    failed.recordOutcome(nowMs, true);
    let ejected = 0;
    const others = { calls: 0, failures: 0 };
    for (const replica of this.replicas) {
      if (replica.isEjected(nowMs)) ejected++;
      if (replica === failed) continue;
      const { calls, failures } = replica.getOutcomes(nowMs);
      others.calls += calls;
      others.failures += failures;
    }
    if (ejected >= getEjectedMax(this.replicas.length) || failed.isEjected(nowMs)) return false;
    if (!isOutlier(failed.getOutcomes(nowMs), others)) return false;
    failed.eject(nowMs);
    return true;
  }

  /**
   * Returns a replica that is due for a background probe: one that may hang, or, while the chosen
   * replica is healthy, another one that is new, slow or failed. Call it right after `pick`.
   */
  pickProbe(chosen: Replica, nowMs: number): Replica | undefined {
    const { replicas } = this;
    const { ranks } = this.#candidates;
    const isChosenHealthy = ranks[replicas.indexOf(chosen)] === RANK_LOADED;
    for (let i = 0; i < replicas.length; i++) {
      const replica = replicas[i]!;
      const rank = ranks[i]!;
      const isNotLoaded = rank === RANK_UNKNOWN || rank === RANK_SLOW || rank === RANK_FAILED;
      const isCandidate = isChosenHealthy && isNotLoaded && replica !== chosen;
      if ((isCandidate || replica.isSilent(nowMs)) && replica.tryStartProbe(nowMs)) return replica;
    }
    return undefined;
  }

  /** Counts a request that is neither a retry nor a backup. */
  countRequest(): void {
    this.retryBudget.countRequest();
    this.#backupBudget.countRequest();
  }

  /**
   * Takes one backup from the budget; returns false when the budget is spent. Call it right after
   * `pickBackup`.
   * @param tried the replicas that have not answered
   * @param backup the replica to ask too
   */
  tryTakeBackup(tried: readonly Replica[], backup: Replica, nowMs: number): boolean {
    const isUrgent = tried.every((replica) =>
      isSlower(computeExpectedMs(replica, nowMs), backup.latencyMs),
    );
    return this.#backupBudget.tryTake(isUrgent);
  }

  /** Has the call told when it is due for its first backup, if that is before its deadline. */
  awaitBackup(call: BackupCaller, nowMs: number, deadlineMs: number): void {
    const delayMs = this.backupDelayMs();
    if (nowMs + delayMs < deadlineMs) this.#backupTimer.add(call, nowMs, delayMs);
  }

  /** As `awaitBackup`, for a call that was told before and still has no answer. */
  awaitFurtherBackup(call: BackupCaller, nowMs: number, deadlineMs: number): void {
    if (nowMs + BACKUP_RECHECK_MS >= deadlineMs) return;
    this.#recheckTimer.add(call, nowMs, BACKUP_RECHECK_MS);
  }

  /** Milliseconds after which a request is sent to another replica too; infinite: never. */
  backupDelayMs(): number {
    const policy = this.#backupPolicy;
    if (policy === 'never') return Number.POSITIVE_INFINITY;
    const delayMs = policy === 'p95' ? this.#latencies.p95Ms : policy;
    return Math.max(BACKUP_DELAY_MS_MIN, Math.ceil(delayMs));
  }

  /** Records how long a successful request took. */
  recordLatency(latencyMs: number): void {
    if (this.#backupPolicy === 'p95') this.#latencies.add(latencyMs);
  }

  /**
   * Ranks all replicas for this pick, and returns the best rank.
   * @param share of the concurrency limits that may be used
   */
  #rankAll(versionKey: string, tried: readonly Replica[], nowMs: number, share = 1): number {
    const { ranks } = this.#candidates;
    const { replicas } = this;
    const expectedMs = this.#expectedMs;
    const limitShare = this.#concurrency === 'never' ? Number.POSITIVE_INFINITY : share;
    let best = RANK_TRIED;
    let fastestMs = Number.POSITIVE_INFINITY;
    let slowestMs = 0;
    for (let i = 0; i < replicas.length; i++) {
      const replica = replicas[i]!;
      const rank = tried.includes(replica)
        ? RANK_TRIED
        : replica.rank(versionKey, nowMs, limitShare);
      ranks[i] = rank;
      if (rank < best) best = rank;
      if (rank > RANK_EJECTED) continue;
      const expected = computeExpectedMs(replica, nowMs);
      expectedMs[i] = expected;
      if (expected > slowestMs) slowestMs = expected;
      if (expected < fastestMs && replica.latencyMs > 0) fastestMs = expected;
    }
    return isSlower(slowestMs, fastestMs) ? this.#demoteSlow(fastestMs) : best;
  }

  /** Lowers the rank of slow replicas; returns the best rank. */
  #demoteSlow(fastestMs: number): number {
    const { ranks } = this.#candidates;
    let best = RANK_TRIED;
    for (let i = 0; i < ranks.length; i++) {
      if (ranks[i]! <= RANK_EJECTED && isSlower(this.#expectedMs[i]!, fastestMs)) {
        ranks[i] = RANK_SLOW;
      }
      best = Math.min(best, ranks[i]!);
    }
    return best;
  }
}

/** How long a call is expected to take; 0 when nothing is known. */
function computeExpectedMs(replica: Replica, nowMs: number): number {
  return Math.max(replica.latencyMs, replica.silentMs(nowMs));
}

function isSlower(expectedMs: number, fastestMs: number): boolean {
  return expectedMs > SLOW_FACTOR * fastestMs + SLOW_MS;
}

/**
 * The 95th percentile of a shard's most recent latencies, recomputed every P95_INTERVAL_SAMPLES
 * samples.
 */
class LatencyWindow {
  readonly #samples = new Float64Array(LATENCY_SAMPLES);
  readonly #sorted = new Float64Array(LATENCY_SAMPLES);
  #count = 0;
  p95Ms: number = BACKUP_DELAY_MS_INITIAL;

  add(latencyMs: number): void {
    this.#samples[this.#count++ % LATENCY_SAMPLES] = latencyMs;
    if (this.#count % P95_INTERVAL_SAMPLES !== 0) return;
    const filled = Math.min(this.#count, LATENCY_SAMPLES);
    const sorted = this.#sorted.subarray(0, filled);
    sorted.set(this.#samples.subarray(0, filled));
    sorted.sort();
    this.p95Ms = sorted[Math.ceil(0.95 * filled) - 1]!;
  }
}
