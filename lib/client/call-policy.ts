/**
 * The call policy of a bundle: load balancing, retries, backup requests and the default timeout.
 */
import { CubeError } from '../core/errors.ts';

/**
 * brpc's names: round robin, weighted round robin, random, weighted random, locality aware (slower
 * replicas get less), and consistent hashing (equal hashes go to one replica).
 */
export const LOAD_BALANCERS = ['rr', 'wrr', 'random', 'wr', 'la', 'c_murmurhash', 'c_md5'] as const;
export type LoadBalancer = (typeof LOAD_BALANCERS)[number];

export type BackupRequest = number | 'p95' | 'never';

const CONCURRENCY_LIMITS = ['prefer', 'refuse', 'never'] as const;
/** What to do when a replica has as many calls in flight as it serves without queueing. */
export type ConcurrencyLimitPolicy = (typeof CONCURRENCY_LIMITS)[number];

export interface CallPolicy {
  /** Default rr. */
  readonly loadBalancer?: LoadBalancer;
  /**
   * Maximum retries of one request, each on another replica. Default: every replica of the shard
   * once.
   */
  readonly retryMax?: number;
  /**
   * Milliseconds without a response after which the request is also sent to another replica, or
   * `p95`: the 95th percentile of the shard's recent latencies. The first response wins. Default
   * p95.
   */
  readonly backupRequest?: BackupRequest;
  /** Maximum backups of one request. Default: as many as `retryMax` allows. */
  readonly backupMax?: number;
  /**
   * `prefer`: a replica at its adaptive limit gets calls only while all are at theirs, and no
   * backups. `refuse`: a call that finds all replicas at their limits fails at once with
   * OVERLOADED. `never`: no limit. Default prefer.
   */
  readonly concurrencyLimit?: ConcurrencyLimitPolicy;
  /** Default timeout of a whole call in milliseconds. Default 1000. Only seeks use it. */
  readonly timeoutMs?: number;
}

/** @throws CubeError INVALID_ARGUMENT naming the field */
export function checkPolicy(policy: CallPolicy): CallPolicy {
  const { loadBalancer = 'rr', retryMax = 0, backupRequest = 'p95', timeoutMs = 1 } = policy;
  const { backupMax = 0, concurrencyLimit = 'prefer' } = policy;
  if (!LOAD_BALANCERS.includes(loadBalancer)) {
    rejectField('loadBalancer', `one of ${LOAD_BALANCERS.join(', ')}`, loadBalancer);
  }
  if (!Number.isInteger(retryMax) || retryMax < 0)
    rejectField('retryMax', 'an integer ≥ 0', retryMax);
  if (backupRequest !== 'p95' && backupRequest !== 'never' && !(backupRequest > 0)) {
    rejectField('backupRequest', 'milliseconds > 0, p95 or never', backupRequest);
  }
  if (!Number.isInteger(backupMax) || backupMax < 0)
    rejectField('backupMax', 'an integer ≥ 0', backupMax);
  if (!CONCURRENCY_LIMITS.includes(concurrencyLimit)) {
    rejectField('concurrencyLimit', `one of ${CONCURRENCY_LIMITS.join(', ')}`, concurrencyLimit);
  }
  if (!(timeoutMs > 0)) rejectField('timeoutMs', 'milliseconds > 0', timeoutMs);
  return policy;
}

function rejectField(field: string, expected: string, got: unknown): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${field}: expected ${expected}, got ${JSON.stringify(got)}`,
  );
}
