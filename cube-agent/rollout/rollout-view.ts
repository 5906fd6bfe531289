/** What a rollout sees: its own log, the fleet, the gate; and the policy by which it goes. */
import type { RolloutState } from '../../lib/core/rollout.ts';

/** Whose fault it is that a rollout failed: the version's, which is condemned, or the fleet's, which may try it again. */
export type Fault = 'version' | 'fleet';

export interface ChannelStep {
  readonly channel: string;
  /** How long the version is watched there before the next channel follows. */
  readonly holdMs: number;
}

export interface RolloutPolicy {
  /** In the order in which they move: a canary, groups, and last the one that decides. At least one. */
  readonly channels: readonly ChannelStep[];
  /** Of each shard, that must hold the version before the gate; all there are when they are fewer. */
  readonly replicas: number | 'all';
  readonly gate: boolean;
  /** After the last channel moved: how long a version that does badly is rolled back by itself. */
  readonly watchMs: number;
  /** How long a state may take. */
  readonly stagingMs: number;
  readonly gatingMs: number;
  readonly activatingMs: number;
}

export interface RolloutView {
  readonly version: string;
  /** Of the newest entry; undefined before the first. */
  readonly state: RolloutState | undefined;
  /** Who wrote it; and whether that is us. */
  readonly holder: string;
  readonly isOurs: boolean;
  /** Of a rollout that failed. */
  readonly fault: Fault | undefined;
  /** Newest entry of each channel when activating began; undefined before. */
  readonly from: Readonly<Record<string, number>> | undefined;
}

export interface ChannelView {
  readonly channel: string;
  /** Of the newest entry; 0: there is none. */
  readonly seq: number;
  readonly pointer: string | undefined;
  /** The pointer's version is quarantined: nothing may point there that does not yet. */
  readonly isBad?: boolean;
  /** Who wrote the newest entry, and why. */
  readonly said: string;
  readonly isPinned: boolean;
  /** Where it would go back to. */
  readonly previous: string | undefined;
}

export interface ReplicaView {
  readonly address: string;
  readonly holds: boolean;
  readonly isActive: boolean;
  /** Layers of the version, as table/contentId, that come to its host damaged. */
  readonly damaged: readonly string[];
  /** Why it does not hold the version, as far as it is known. */
  readonly trouble: string;
}

/** Why the version's manifest cannot be read, and whose fault that is. */
export interface Unreadable {
  readonly fault: Fault;
  readonly why: string;
}

/** What is wrong with a version's answers, and whose fault that is. */
export interface Sickness {
  readonly fault: Fault;
  readonly why: string;
}

export interface SourceFinding {
  /** Those that were read. */
  readonly layers: readonly string[];
  /** What is wrong with one of them; undefined: they are whole where they lie. */
  readonly damage: string | undefined;
}

export type GateOutcome =
  | { readonly verdict: 'pass' | 'fail'; readonly summary: string }
  /** It could not run; `isFinal`: nor will it as it was asked for. */
  | { readonly verdict: 'error'; readonly summary: string; readonly isFinal: boolean };

export interface FleetView {
  readonly isQuarantined: boolean;
  readonly unreadable: Unreadable | undefined;
  readonly candidate: string | undefined;
  /** Why the candidate channel belongs to another rollout; undefined when it may be taken. */
  readonly candidateBusy: string | undefined;
  /** As the policy has them. */
  readonly channels: readonly ChannelView[];
  readonly shards: readonly (readonly ReplicaView[])[];
  /** What we found when we read layers that hosts find damaged; undefined until we have. */
  readonly source: SourceFinding | undefined;
  /** Undefined until the gate has run here. */
  readonly gate: GateOutcome | undefined;
  /** What is wrong with the version's answers since it was activated. */
  readonly sickness: Sickness | undefined;
}
