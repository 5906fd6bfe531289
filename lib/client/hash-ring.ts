/**
 * Consistent hashing as brpc's c_murmurhash does it: every replica has a hundred points on a ring of 32-bit hashes, and a request
 * goes to the replica of the first point at or after its own hash. A replica that goes takes only its own requests along. Same ring,
 * same choice: a brpc client with equal request codes asks the same replicas.
 */
import type { Balancer, Candidates } from './balancer.ts';
import { murmur32 } from './murmur32.ts';

const POINTS = 100;

export class HashRing implements Balancer {
  /** Ascending. */
  readonly #hashes: Uint32Array;
  /** The replica of each point. */
  readonly #owners: Uint16Array;

  /** @param endpoints ip:port, index = replica */
  constructor(endpoints: readonly string[]) {
    const encoder = new TextEncoder();
    const points = endpoints.flatMap((endpoint, owner) =>
      Array.from({ length: POINTS }, (_, i) => {
        return { hash: murmur32(encoder.encode(`${endpoint}-${i}`)), owner, endpoint };
      }),
    );
    points.sort((a, b) => a.hash - b.hash || (a.endpoint < b.endpoint ? -1 : 1));
    this.#hashes = Uint32Array.from(points, ({ hash }) => hash);
    this.#owners = Uint16Array.from(points, ({ owner }) => owner);
  }

  choose({ ranks }: Candidates, rank: number, hash: number): number {
    const owners = this.#owners;
    let at = this.#firstAtOrAfter(hash >>> 0);
    for (;;) {
      if (at === owners.length) at = 0;
      const owner = owners[at++]!;
      if (ranks[owner] === rank) return owner;
    }
  }

  #firstAtOrAfter(hash: number): number {
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
