/**
 * The states of a rollout and the moves between them. A rollout is one version on its way through a fleet; its log is in the
 * repository, and this table alone says what may follow what. Pure.
 */

/**
 * The channel whose pointer is the version that a fleet is to hold before any other channel moves to it. Every agent follows it,
 * nothing is ever activated for it, and who points it somewhere has the bundle's one rollout: its log is the fence.
 */
export const CANDIDATE_CHANNEL = 'candidate';

export const ROLLOUT_STATES = [
  'seen',
  'staging',
  'staged',
  'gating',
  'activating',
  'active',
  'retired',
  'failed',
  'rolled-back',
  'quarantined',
] as const;

export type RolloutState = (typeof ROLLOUT_STATES)[number];

/** From each state those that may follow. A rollout begins with `seen`. */
const NEXT: Readonly<Record<RolloutState, readonly RolloutState[]>> = {
  seen: ['staging', 'failed'],
  staging: ['staged', 'failed'],
  // A version may be wanted without a gate.
  staged: ['gating', 'activating', 'failed'],
  gating: ['activating', 'failed'],
  activating: ['active', 'failed'],
  active: ['retired', 'failed'],
  // A channel may go back to a version that it had left in good standing: that is a rollout of its own, staged again first.
  retired: ['staging'],
  // What never was active has nothing to go back from; and what failed for the fleet's sake may be tried again.
  failed: ['rolled-back', 'quarantined', 'seen'],
  // Rolled back for the fleet's sake (a pin, an abort) it may be tried again.
  'rolled-back': ['quarantined', 'seen'],
  quarantined: [],
};

/** @param from undefined: nothing is known of the version yet */
export function mayFollow(from: RolloutState | undefined, to: RolloutState): boolean {
  return from === undefined ? to === 'seen' : NEXT[from].includes(to);
}

/** What may follow, for messages. */
export function statesAfter(from: RolloutState | undefined): readonly RolloutState[] {
  return from === undefined ? ['seen'] : NEXT[from];
}

/** Somebody works on it, or should: the others wait for people. */
export function isUnderWay(state: RolloutState): boolean {
  return ['seen', 'staging', 'staged', 'gating', 'activating', 'failed'].includes(state);
}
