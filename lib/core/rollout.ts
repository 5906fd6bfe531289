/**
 * The states of a rollout and the transitions between them. A rollout moves one version through a
 * fleet; its log is in the repository. This table alone defines which state may follow which. Pure.
 */

/**
 * The channel that points to the version which the fleet loads before any other channel moves to
 * it. Every agent subscribes to it, and no version is ever activated for it. The channel's log is
 * the fence: the writer that moves it owns the bundle's one rollout.
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

/** The states that may follow each state. A rollout begins with `seen`. */
const NEXT_STATES: Readonly<Record<RolloutState, readonly RolloutState[]>> = {
  seen: ['staging', 'failed'],
  staging: ['staged', 'failed'],
  // A rollout may skip the gate.
  staged: ['gating', 'activating', 'failed'],
  gating: ['activating', 'failed'],
  activating: ['active', 'failed'],
  active: ['retired', 'failed'],
  // A channel may return to a version that was retired without a failure: a rollout of its own,
  // which stages it again.
  retired: ['staging'],
  // A version that was never active cannot be rolled back. A failure caused by the fleet may be
  // retried.
  failed: ['rolled-back', 'quarantined', 'seen'],
  // Rolled back for a reason other than the version (a pin, an abort): it may be tried again.
  'rolled-back': ['quarantined', 'seen'],
  quarantined: [],
};

/** @param from undefined: no state of the version is known yet */
export function canTransition(from: RolloutState | undefined, to: RolloutState): boolean {
  return from === undefined ? to === 'seen' : NEXT_STATES[from].includes(to);
}

/** The states that may follow, for messages. */
export function nextStates(from: RolloutState | undefined): readonly RolloutState[] {
  return from === undefined ? ['seen'] : NEXT_STATES[from];
}

/** True while a controller must act; the other states wait for people. */
export function isInProgress(state: RolloutState): boolean {
  return ['seen', 'staging', 'staged', 'gating', 'activating', 'failed'].includes(state);
}
