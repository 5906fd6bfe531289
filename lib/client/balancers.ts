/**
 * The load balancers: each picks one replica among those of the best rank, in O(replicas) and without allocating. Health and
 * versions are the rank's business (replica.ts); a balancer only shares the load among equals.
 */
import type { Balancer, Candidates } from './balancer.ts';
import type { LoadBalancer } from './call-policy.ts';
import { HashRing } from './hash-ring.ts';
import type { Replica } from './replica.ts';

export function balancerOf(name: LoadBalancer, replicas: readonly Replica[]): Balancer {
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
      return new HashRing(replicas.map(({ endpoint }) => endpoint));
  }
}

class RoundRobin implements Balancer {
  #next = 0;

  choose({ ranks }: Candidates, rank: number): number {
    let at = this.#next % ranks.length;
    while (ranks[at] !== rank) at = at + 1 === ranks.length ? 0 : at + 1;
    this.#next = at + 1;
    return at;
  }
}

/** Smooth: weights 5, 1, 1 give a a b a c a a, never five in a row. */
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
  readonly #weighted: boolean;

  constructor(weighted: boolean) {
    this.#weighted = weighted;
  }

  choose({ ranks, weights }: Candidates, rank: number): number {
    let total = 0;
    for (let i = 0; i < ranks.length; i++) {
      if (ranks[i] === rank) total += this.#weighted ? weights[i]! : 1;
    }
    let rest = Math.random() * total;
    let last = -1;
    for (let i = 0; i < ranks.length && rest >= 0; i++) {
      if (ranks[i] !== rank) continue;
      rest -= this.#weighted ? weights[i]! : 1;
      last = i;
    }
    return last;
  }
}

/** A slow replica keeps this share of the fastest one's, so that its getting faster is seen. */
const SHARE_MIN = 1 / 64;

/**
 * By chance, in proportion to 1 / latency. What is in flight counts at once: when a replica's open requests have waited longer
 * than it usually takes, its share falls by that ratio, long before an answer or a timeout says so.
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
      // One of which nothing is known yet is taken for the fastest: that is soon known.
      if (shares[i] === 0) shares[i] = best === 0 ? 1 : best;
      shares[i] = Math.max(shares[i]!, best * SHARE_MIN);
      total += shares[i]!;
    }
    let rest = Math.random() * total;
    let last = -1;
    for (let i = 0; i < ranks.length && rest >= 0; i++) {
      if (ranks[i] !== rank) continue;
      rest -= shares[i]!;
      last = i;
    }
    return last;
  }
}
