/** What a load balancer is: a choice among replicas of equal rank. */
import type { Replica } from './replica.ts';

/** The replicas of one shard as a balancer sees them: columns, index = replica. */
export interface Candidates {
  readonly replicas: readonly Replica[];
  /** > 0. */
  readonly weights: Float64Array;
  /** Of this pick; the candidates are those whose rank is the best. */
  readonly ranks: Uint8Array;
}

export interface Balancer {
  /** @param rank at least one replica has it. @param hash u32 of the request @returns an index */
  choose(candidates: Candidates, rank: number, hash: number, nowMs: number): number;
}
