/** How the requests of one bundle are made: which replica is chosen, how often another is tried, and when a second is asked beside the first. */
import { CubeError } from '../core/errors.ts';

/**
 * brpc's names: round robin, weighted round robin, random, weighted random, locality aware (less to the slower), and
 * consistent hashing (equal hashes go to one replica).
 */
export const LOAD_BALANCERS = ['rr', 'wrr', 'random', 'wr', 'la', 'c_murmurhash'] as const;
export type LoadBalancer = (typeof LOAD_BALANCERS)[number];

export interface CallPolicy {
  /** Default rr. */
  readonly loadBalancer?: LoadBalancer;
  /** Further replicas tried for one request after a failure; default: every replica of the shard, each once. */
  readonly retryMax?: number;
  /**
   * Milliseconds without an answer after which another replica is asked too, or `p95`: the 95th percentile of the shard's
   * recent latencies. The first answer wins. Default: never.
   */
  readonly backupRequest?: number | 'p95';
  /** Milliseconds for a whole call that does not say. */
  readonly timeoutMs?: number;
}

/** @throws CubeError INVALID_ARGUMENT naming the field */
export function checkPolicy(policy: CallPolicy): CallPolicy {
  const { loadBalancer = 'rr', retryMax = 0, backupRequest = 'p95', timeoutMs = 1 } = policy;
  if (!LOAD_BALANCERS.includes(loadBalancer)) {
    refuse('loadBalancer', `one of ${LOAD_BALANCERS.join(', ')}`, loadBalancer);
  }
  if (!Number.isInteger(retryMax) || retryMax < 0) refuse('retryMax', 'an integer ≥ 0', retryMax);
  if (backupRequest !== 'p95' && !(backupRequest > 0)) {
    refuse('backupRequest', 'milliseconds > 0, or p95', backupRequest);
  }
  if (!(timeoutMs > 0)) refuse('timeoutMs', 'milliseconds > 0', timeoutMs);
  return policy;
}

function refuse(field: string, expected: string, got: unknown): never {
  throw new CubeError(
    'INVALID_ARGUMENT',
    `${field}: expected ${expected}, got ${JSON.stringify(got)}`,
  );
}
