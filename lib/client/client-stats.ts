/** The statistics of a client since its creation: a plain object, for metrics collectors. */
import type { ReplicaStats } from './replica.ts';

/** Counters that only increase. */
export interface ClientCounters {
  /** Calls of lookup or seek. */
  calls: number;
  keys: number;
  unseenKeys: number;
  /** Keys that no replica answered. */
  unavailableKeys: number;
  /** Requests sent to replicas, with retries and backups, without probes. */
  requests: number;
  retries: number;
  backups: number;
  /** Backup requests that were answered first. */
  backupsWon: number;
  /** Failed requests and probes, late failures included. */
  failures: number;
  /** VERSION_ABSENT errors: the replica has not loaded the version. */
  versionAbsentErrors: number;
  /** Retries not sent because the retry budget was spent. */
  retryBudgetRefusals: number;
  /** Backups not sent because the backup budget was spent. */
  backupBudgetRefusals: number;
  /** Times that a replica was ejected because it failed more calls than the others. */
  ejections: number;
  /** Calls refused because all replicas were at their concurrency limits. */
  concurrencyRefusals: number;
  /** Lookups without keys that check whether a replica is usable. */
  probes: number;
}

export interface ClientStats extends Readonly<ClientCounters> {
  readonly replicas: readonly ReplicaStats[];
}

export function createCounters(): ClientCounters {
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
    versionAbsentErrors: 0,
    retryBudgetRefusals: 0,
    backupBudgetRefusals: 0,
    ejections: 0,
    concurrencyRefusals: 0,
    probes: 0,
  };
}
