/** What a client did since it was made: a plain object, for whatever collects metrics. */
import type { ReplicaStats } from './replica.ts';

/** Only ever counts up. */
export interface ClientCounters {
  /** Lookups or seeks asked of the client. */
  calls: number;
  keys: number;
  unseenKeys: number;
  /** Keys that no replica answered for. */
  unavailableKeys: number;
  /** Sent to replicas, retries and backups included, probes not. */
  requests: number;
  retries: number;
  backups: number;
  /** Backups that answered first. */
  backupsWon: number;
  /** Requests that failed, late ones included. */
  failures: number;
  /** Answers that a replica does not hold the version. */
  versionsAbsent: number;
  /** Retries and backups that were not made because the budget was spent. */
  budgetRefusals: number;
  /** Empty lookups that ask whether a replica is back. */
  probes: number;
}

export interface ClientStats extends Readonly<ClientCounters> {
  readonly replicas: readonly ReplicaStats[];
}

export function newCounters(): ClientCounters {
  return {
    calls: 0,
    keys: 0,
    unseenKeys: 0,
    unavailableKeys: 0,
    requests: 0,
    retries: 0,
    backups: 0,
    backupsWon: 0,
    failures: 0,
    versionsAbsent: 0,
    budgetRefusals: 0,
    probes: 0,
  };
}
