/**
 * The load balancers. Each picks one replica among the replicas of the best rank, in O(replicas)
 * and without allocating. Ranks express health and loaded versions (replica.ts); a balancer only
 * shares the load among replicas of equal rank.
 */
import { createHash } from 'node:crypto';
import type { LoadBalancer } from './call-policy.ts';
import { murmur32 } from './murmur32.ts';
import type { Replica } from './replica.ts';

/** The replicas of one shard as a balancer sees them; index = replica. */
export interface Candidates {
  readonly replicas: readonly Replica[];
  /** > 0. */
  readonly weights: Float64Array;
  /** The rank of each replica for this pick; lower is better. */
  readonly ranks: Uint8Array;
}

export interface Balancer {
  /**
   * Returns the index of a replica of the given rank.
   * @param rank at least one candidate has it
   * @param hash u32 of the request
   */
  choose(candidates: Candidates, rank: number, hash: number, nowMs: number): number;
}

export function createBalancer(name: LoadBalancer, replicas: readonly Replica[]): Balancer {
  switch (name) {
    case 'rr':
      return new RoundRobin();
    case 'wrr':
      return new WeightedRoundRobin(replicas.length);
    case 'random':
      return new Random(false);
    case 'wr':
      return new Random(true);
    case 'la':
      return new LocalityAware(replicas.length);
    case 'c_murmurhash':
      return new HashRing(replicas, (point) => murmur32(textEncoder.encode(point)));
    case 'c_md5':
      return new HashRing(replicas, md5Hash32);
  }
}

class RoundRobin implements Balancer {
  #next = 0;

  choose({ ranks }: Candidates, rank: number): number {
    let index = this.#next % ranks.length;
    while (ranks[index] !== rank) index = index + 1 === ranks.length ? 0 : index + 1;
    this.#next = index + 1;
    return index;
  }
}

/** Smooth weighted round robin: weights 5, 1, 1 give a a b a c a a, never five in a row. */
class WeightedRoundRobin implements Balancer {
  readonly #credit: Float64Array;

  constructor(count: number) {
    this.#credit = new Float64Array(count);
  }

  choose({ ranks, weights }: Candidates, rank: number): number {
    const credit = this.#credit;
    let total = 0;
    let best = -1;
    for (let i = 0; i < ranks.length; i++) {
      if (ranks[i] !== rank) continue;
      total += weights[i]!;
      credit[i]! += weights[i]!;
      if (best < 0 || credit[i]! > credit[best]!) best = i;
    }
    credit[best]! -= total;
    return best;
  }
}

class Random implements Balancer {
  readonly #isWeighted: boolean;

  constructor(isWeighted: boolean) {
    this.#isWeighted = isWeighted;
  }

  choose({ ranks, weights }: Candidates, rank: number): number {
    let total = 0;
    for (let i = 0; i < ranks.length; i++) {
      if (ranks[i] === rank) total += this.#isWeighted ? weights[i]! : 1;
    }
    let remaining = Math.random() * total;
    let last = -1;
    for (let i = 0; i < ranks.length && remaining >= 0; i++) {
      if (ranks[i] !== rank) continue;
      remaining -= this.#isWeighted ? weights[i]! : 1;
      last = i;
    }
    return last;
  }
}

/**
 * A slow replica keeps this share of the fastest replica's load, so that the client notices when it
 * recovers.
 */
const SHARE_MIN = 1 / 64;

/**
 * Random, in proportion to 1 / latency. Requests in flight count at once: when they have waited
 * longer than the replica usually takes, its share falls by that ratio, long before a response or a
 * timeout shows that it is slow.
 */
class LocalityAware implements Balancer {
  readonly #shares: Float64Array;

  constructor(count: number) {
    this.#shares = new Float64Array(count);
  }

  choose({ ranks, replicas }: Candidates, rank: number, _hash: number, nowMs: number): number {
    const shares = this.#shares;
    let best = 0;
    for (let i = 0; i < ranks.length; i++) {
      shares[i] = ranks[i] === rank ? replicas[i]!.speed(nowMs) : -1;
      best = Math.max(best, shares[i]!);
    }
    let total = 0;
    for (let i = 0; i < ranks.length; i++) {
      if (ranks[i] !== rank) continue;
      // A replica of unknown speed counts as the fastest, so that its speed is soon known.
      if (shares[i] === 0) shares[i] = best === 0 ? 1 : best;
      shares[i] = Math.max(shares[i]!, best * SHARE_MIN);
      total += shares[i]!;
    }
    let remaining = Math.random() * total;
    let last = -1;
    for (let i = 0; i < ranks.length && remaining >= 0; i++) {
      if (ranks[i] !== rank) continue;
      remaining -= shares[i]!;
      last = i;
    }
    return last;
  }
}

const POINTS_PER_REPLICA = 100;
const textEncoder = new TextEncoder();

/** The first four bytes of the MD5 digest, little-endian. */
function md5Hash32(point: string): number {
  return createHash('md5').update(point).digest().readUInt32LE(0);
}

/**
 * Consistent hashing as in brpc's c_murmurhash and c_md5: every replica has a hundred points on a
 * ring of 32-bit hashes, and a request goes to the replica of the first point at or after its own
 * hash. When a replica leaves, only its own requests move. A brpc client with the same request
 * codes picks the same replicas.
 */
class HashRing implements Balancer {
  /** Ascending. */
  readonly #hashes: Uint32Array;
  /** The replica of each point. */
  readonly #owners: Uint16Array;

  /** @param hash of a point, `ip:port-i` */
  constructor(replicas: readonly Replica[], hash: (point: string) => number) {
    const points = replicas.flatMap(({ endpoint }, owner) =>
      Array.from({ length: POINTS_PER_REPLICA }, (_, i) => {
        return { hash: hash(`${endpoint}-${i}`), owner, endpoint };
      }),
    );
    points.sort((a, b) => a.hash - b.hash || (a.endpoint < b.endpoint ? -1 : 1));
    this.#hashes = Uint32Array.from(points, ({ hash }) => hash);
    this.#owners = Uint16Array.from(points, ({ owner }) => owner);
  }

  choose({ ranks }: Candidates, rank: number, hash: number): number {
    const owners = this.#owners;
    let point = this.#findFirstAtOrAfter(hash >>> 0);
    for (;;) {
      if (point === owners.length) point = 0;
      const owner = owners[point++]!;
      if (ranks[owner] === rank) return owner;
    }
  }

  #findFirstAtOrAfter(hash: number): number {
    const hashes = this.#hashes;
    let low = 0;
    let high = hashes.length;
    while (low < high) {
      const middle = (low + high) >>> 1;
      if (hashes[middle]! < hash) low = middle + 1;
      else high = middle;
    }
    return low;
  }
}
