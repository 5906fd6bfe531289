/** What a rollout decides from: its own log, the observed fleet, and the policy. */
import type { RolloutState } from '../../lib/core/rollout.ts';
import type { ProblemFields } from '../fleet/problem.ts';

/** The cause of a failed rollout: a bad version is quarantined, a fleet fault may be retried. */
export type Fault = 'version' | 'fleet';

export interface ChannelStep {
  readonly channel: string;
  /** How long the version is watched on this channel before the next channel moves. */
  readonly holdMs: number;
}

export interface RolloutPolicy {
  /** At least one, in the order in which they move: canary, groups, and the main channel last. */
  readonly channels: readonly ChannelStep[];
  /** Replicas of each shard that must have loaded the version before the gate runs. */
  readonly replicas: number | 'all';
  readonly gate: boolean;
  /** How long the version is watched after the last channel moved, to roll it back if unhealthy. */
  readonly watchMs: number;
  /** Time limits of the states. */
  readonly stagingMs: number;
  readonly gatingMs: number;
  readonly activatingMs: number;
}

/** The log of the rollout. */
export interface RolloutView {
  readonly version: string;
  /** State of the newest entry; undefined before the first. */
  readonly state: RolloutState | undefined;
  /** Author of the newest entry. */
  readonly holder: string;
  /** This controller is the holder. */
  readonly isOurs: boolean;
  /** Set for a failed rollout. */
  readonly fault: Fault | undefined;
  /** Newest entry of each channel when activating began; undefined before. */
  readonly from: Readonly<Record<string, number>> | undefined;
  /** The same when gating began. */
  readonly gatedFrom?: Readonly<Record<string, number>> | undefined;
}

export interface ChannelView {
  readonly channel: string;
  /** Sequence number of the newest entry; 0: none. */
  readonly seq: number;
  readonly pointer: string | undefined;
  /** The pointer's version is quarantined: no further channel may point to it. */
  readonly isQuarantined?: boolean;
  /** Author and reason of the newest entry. */
  readonly changedBy: string;
  readonly isPinned: boolean;
  /** The newest entry was written by a rollout of the pointer's version. */
  readonly isMovedByRollout?: boolean;
  /** The version that the channel would roll back to. */
  readonly previous: string | undefined;
}

/** A replica in the status of a rollout; its field names are part of the JSON format. */
export interface ReplicaView {
  readonly address: string;
  /** The version is loaded. */
  readonly holds: boolean;
  readonly isActive: boolean;
  /** Layers of the version, as table/contentId, that arrive damaged on the replica's host. */
  readonly damaged: readonly string[];
  /** Why the replica has not loaded the version. */
  readonly problems: readonly ProblemFields[];
  /** The same problems as text. */
  readonly trouble: string;
}

/** Why the version's manifest cannot be read. */
export interface ManifestFailure {
  readonly fault: Fault;
  readonly reason: string;
}

/** Why the version's predictions are unhealthy. */
export interface HealthFailure {
  readonly fault: Fault;
  readonly reason: string;
}

/** The result of reading layers in the repository. */
export interface SourceCheck {
  /** The layers that were read, as table/contentId. */
  readonly layers: readonly string[];
  /** What is wrong with one of them; undefined: all are intact. */
  readonly damage: string | undefined;
}

export type GateOutcome =
  | { readonly verdict: 'pass' | 'fail'; readonly summary: string }
  /** The gate could not run. Final: another run would fail the same way. */
  | { readonly verdict: 'error'; readonly summary: string; readonly isFinal: boolean };

export interface FleetView {
  readonly isQuarantined: boolean;
  readonly manifestFailure: ManifestFailure | undefined;
  /** Version of the candidate channel. */
  readonly candidate: string | undefined;
  /** The other rollout that uses the candidate channel; undefined: the channel is free. */
  readonly candidateConflict: string | undefined;
  /** In the order of the policy. */
  readonly channels: readonly ChannelView[];
  /** Replicas by shard; empty while they are not needed. */
  readonly shards: readonly (readonly ReplicaView[])[];
  /** Undefined until damaged layers were checked in the repository. */
  readonly sourceCheck: SourceCheck | undefined;
  /** Undefined until the gate has run in this process. */
  readonly gate: GateOutcome | undefined;
  /** Undefined while the version is healthy or not yet served. */
  readonly healthFailure: HealthFailure | undefined;
}
