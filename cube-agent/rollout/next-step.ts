/**
 * What a rollout does next: a pure function of its log, the observed fleet, the policy and the
 * elapsed times. A step is planned only when its precondition is observed. So a step may be taken
 * twice, by two controllers, or by one that has just started: the second writer of a log entry gets
 * a conflict and observes again.
 *
 * Safety does not depend on times; they only limit waiting. A channel moves only to a version that
 * enough replicas of every shard have loaded, and only from the entry at which the rollout found
 * the channel. It never moves while pinned, and never to a quarantined version.
 */
import type { RolloutState } from '../../lib/core/rollout.ts';
import type {
  ChannelView,
  Fault,
  FleetView,
  ReplicaView,
  RolloutPolicy,
  RolloutView,
} from './rollout-view.ts';

export interface ElapsedTimes {
  /** Since the newest entry of the log was seen. */
  readonly inStateMs: number;
  /** Since a channel of the policy was last seen to move. */
  readonly sinceMoveMs: number;
}

export type Step =
  /** Nothing to do now. Blocked: an operator or another rollout must act first. */
  | { readonly kind: 'wait'; readonly reason: string; readonly isBlocked?: boolean }
  /** The rollout is over. */
  | { readonly kind: 'done'; readonly reason: string }
  /** Appends an entry to the log. */
  | {
      readonly kind: 'enter';
      readonly state: RolloutState;
      readonly reason: string;
      readonly fault?: Fault;
      /** With state `activating`: the sequence number of each channel's newest entry. */
      readonly from?: Readonly<Record<string, number>>;
    }
  /** Points the candidate channel to the version. */
  | { readonly kind: 'stage' }
  /** Points the candidate channel to the deployed version `to`, so that hosts drop this one. */
  | { readonly kind: 'release'; readonly to: string }
  /** Reads layers from the repository to find out whether the version itself is damaged. */
  | { readonly kind: 'verify'; readonly layers: readonly string[] }
  /** Runs the gate. `lastError` tells why the previous run gave no verdict. */
  | { readonly kind: 'gate'; readonly lastError?: string }
  /** Points a channel to the version, if its newest entry is still `expected`. */
  | { readonly kind: 'move'; readonly channel: string; readonly expected: number }
  /** Points a channel back from the version, and quarantines it if `quarantines`. */
  | { readonly kind: 'back'; readonly channel: string; readonly quarantines: boolean }
  | { readonly kind: 'quarantine' };

/** Whether the next inspection should wait a while: nothing to do, or the gate gave no verdict. */
export function shouldPause(step: Step): boolean {
  return step.kind === 'wait' || (step.kind === 'gate' && step.lastError !== undefined);
}

export interface StepInput {
  readonly rollout: RolloutView;
  readonly fleet: FleetView;
  readonly policy: RolloutPolicy;
  readonly elapsed: ElapsedTimes;
}

/** How long a damaged manifest is read again: a transient repository error never quarantines. */
const MANIFEST_RETRY_MAX_MS = 60_000;

export function nextStep(input: StepInput): Step {
  const { rollout } = input;
  switch (rollout.state) {
    case undefined:
      return stepBeforeSeen(input);
    case 'seen':
      return stepFromSeen(input);
    case 'staging':
      return failIfBlocked(input) ?? stepFromStaging(input);
    case 'staged':
      return failIfBlocked(input) ?? stepFromStaged(input);
    case 'gating':
      return failIfBlocked(input) ?? stepFromGating(input);
    case 'activating':
      return failIfBlocked(input) ?? stepFromActivating(input);
    case 'active':
      return stepFromActive(input);
    case 'failed':
      return stepFromFailed(input);
    case 'rolled-back':
      return stepFromRolledBack(input);
    case 'quarantined':
      return releaseCandidate(input) ?? done('the version is quarantined');
    case 'retired':
      return done('the channels point to another version');
  }
}

function stepBeforeSeen({ rollout, fleet }: StepInput): Step {
  if (fleet.isQuarantined) return done('the version is quarantined');
  const { manifestFailure } = fleet;
  if (manifestFailure?.fault === 'fleet') {
    return { kind: 'wait', reason: manifestFailure.reason, isBlocked: true };
  }
  return (
    waitForPin(fleet) ??
    waitForCandidateChannel(fleet) ??
    enter('seen', `version ${rollout.version} is published`)
  );
}

function stepFromSeen(input: StepInput): Step {
  const { rollout, fleet } = input;
  if (fleet.isQuarantined) return fail('version', 'the version is quarantined');
  const wait = stepForUnreadableManifest(input) ?? waitForPin(fleet);
  if (wait !== undefined) return wait;
  if (fleet.candidate === rollout.version) {
    return enter('staging', 'hosts fetch and load the version');
  }
  return waitForCandidateChannel(fleet) ?? { kind: 'stage' };
}

/** A damaged manifest stays damaged; reading it again only rules out a repository error. */
function stepForUnreadableManifest({ fleet, policy, elapsed }: StepInput): Step | undefined {
  if (fleet.manifestFailure === undefined) return undefined;
  const { fault, reason } = fleet.manifestFailure;
  const retryMs =
    fault === 'version' ? Math.min(policy.stagingMs, MANIFEST_RETRY_MAX_MS) : policy.stagingMs;
  if (elapsed.inStateMs >= retryMs) return fail(fault, reason);
  return { kind: 'wait', reason, isBlocked: true };
}

/** Only an operator removes a pin. */
function waitForPin({ channels }: FleetView): Step | undefined {
  const view = channels.find(({ isPinned }) => isPinned);
  if (view === undefined) return undefined;
  const reason = `channel ${view.channel} is pinned to ${view.pointer} by ${view.changedBy}`;
  return { kind: 'wait', reason, isBlocked: true };
}

/** A bundle has one rollout at a time. */
function waitForCandidateChannel({ candidateConflict: reason }: FleetView): Step | undefined {
  return reason === undefined ? undefined : { kind: 'wait', reason, isBlocked: true };
}

/** Conditions that end a rollout in any state from `staging` to `activating`. */
function failIfBlocked(input: StepInput): Step | undefined {
  const { rollout, fleet } = input;
  if (fleet.isQuarantined) return fail('version', 'the version was quarantined');
  if (fleet.candidate === rollout.version) return stepForUnreadableManifest(input);
  return fail('fleet', `version ${fleet.candidate ?? 'none'} replaced it as the candidate`);
}

function stepFromStaging({ fleet, policy, elapsed }: StepInput): Step {
  const shortfalls = describeShortfalls(fleet, policy, ({ holds }) => holds);
  const summary = `${formatLoadedCount(fleet)} have loaded the version`;
  if (shortfalls.length === 0) return enter('staged', summary);
  const reason = `${summary}; ${shortfalls.join('; ')}`;
  const layers = listLayersDamagedEverywhere(fleet);
  const { sourceCheck } = fleet;
  if (!layers.every((layer) => sourceCheck?.layers.includes(layer))) {
    return { kind: 'verify', layers };
  }
  if (layers.length > 0 && sourceCheck?.damage !== undefined) {
    return fail('version', `its source is damaged: ${sourceCheck.damage}`);
  }
  if (elapsed.inStateMs < policy.stagingMs) return { kind: 'wait', reason };
  return fail('fleet', `not staged within ${policy.stagingMs} ms: ${reason}`);
}

/**
 * Damaged layers of shards that no host can fetch intact. Where one host can, the fault is with the
 * other hosts.
 */
function listLayersDamagedEverywhere({ shards }: FleetView): string[] {
  const damagedShards = shards.filter(
    (replicas) => replicas.length > 0 && replicas.every(({ damaged }) => damaged.length > 0),
  );
  return [...new Set(damagedShards.flat().flatMap(({ damaged }) => damaged))].sort();
}

function stepFromStaged({ fleet, policy }: StepInput): Step {
  return policy.gate
    ? { ...enter('gating', 'replay golden rows'), from: getChannelSeqs(fleet) }
    : { ...enter('activating', 'the policy has no gate'), from: getChannelSeqs(fleet) };
}

function stepFromGating({ rollout, fleet, policy, elapsed }: StepInput): Step {
  const { gate } = fleet;
  // The gate compares with the version that was active when it began.
  const moved = findMovedChannel(fleet, rollout.gatedFrom);
  if (moved !== undefined) return failMoved(moved);
  if (gate?.verdict === 'pass') {
    return { ...enter('activating', gate.summary), from: getChannelSeqs(fleet) };
  }
  if (gate?.verdict === 'fail') return fail('version', gate.summary);
  const isLate = elapsed.inStateMs >= policy.gatingMs;
  if (gate?.verdict === 'error' && (gate.isFinal || isLate)) {
    return fail('fleet', `the gate could not run: ${gate.summary}`);
  }
  // The controller that entered the state runs the gate. Another one takes over after a while.
  if (gate === undefined && !rollout.isOurs && elapsed.inStateMs < policy.gatingMs / 2) {
    return { kind: 'wait', reason: `${rollout.holder} runs the gate` };
  }
  return gate === undefined ? { kind: 'gate' } : { kind: 'gate', lastError: gate.summary };
}

function stepFromActivating(input: StepInput): Step {
  const { rollout, fleet, policy, elapsed } = input;
  const { from = {} } = rollout;
  const { channels, healthFailure } = fleet;
  for (const [i, view] of channels.entries()) {
    const hasMoved = view.pointer === rollout.version;
    if (!hasMoved) return moveOrFail(input, view, from[view.channel] ?? 0);
    if (healthFailure !== undefined) return fail(healthFailure.fault, healthFailure.reason);
    const next = channels[i + 1];
    const holdMs = policy.channels[i]?.holdMs ?? 0;
    const isNextWaiting = next !== undefined && next.pointer !== rollout.version;
    if (isNextWaiting && elapsed.sinceMoveMs < holdMs) {
      return { kind: 'wait', reason: `watched on ${view.channel} for ${holdMs} ms` };
    }
  }
  const shortfalls = describeShortfalls(fleet, policy, ({ isActive }) => isActive);
  if (shortfalls.length === 0) return enter('active', 'active on every shard');
  const behind = shortfalls.join('; ');
  if (elapsed.sinceMoveMs < policy.activatingMs) {
    return { kind: 'wait', reason: `waiting until it is active: ${behind}` };
  }
  // Every shard has loaded it, so every lookup of the version is answered: no reason to roll back.
  return enter(
    'active',
    `all channels point to it; not active within ${policy.activatingMs} ms: ${behind}`,
  );
}

/** Never replaces another author's entry, and never moves to a version that is not loaded. */
function moveOrFail({ fleet, policy, elapsed }: StepInput, view: ChannelView, from: number): Step {
  const { channel, seq } = view;
  if (view.isPinned || seq !== from) return failMoved(view);
  const shortfalls = describeShortfalls(fleet, policy, ({ holds }) => holds);
  if (shortfalls.length === 0) return { kind: 'move', channel, expected: seq };
  const reason = `no longer loaded: ${shortfalls.join('; ')}`;
  if (elapsed.inStateMs < policy.activatingMs) return { kind: 'wait', reason };
  return fail('fleet', reason);
}

/** A channel with an entry that it did not have then; undefined seqs: of an older controller. */
function findMovedChannel(
  { channels }: FleetView,
  seqs: Readonly<Record<string, number>> | undefined,
): ChannelView | undefined {
  return channels.find(({ channel, seq }) => seqs !== undefined && seq !== (seqs[channel] ?? 0));
}

function failMoved({ channel, pointer, changedBy, isPinned }: ChannelView): Step {
  const reason = isPinned
    ? `channel ${channel} is pinned to ${pointer} by ${changedBy}`
    : `channel ${channel} was moved to ${pointer} meanwhile by ${changedBy}`;
  return fail('fleet', reason);
}

function stepFromActive({ rollout, fleet, policy, elapsed }: StepInput): Step {
  const { version } = rollout;
  if (fleet.isQuarantined) return fail('version', 'the version was rolled back');
  const last = fleet.channels.at(-1);
  if (last !== undefined && last.pointer !== version) {
    const { channel, pointer, changedBy } = last;
    return enter('retired', `channel ${channel} points to ${pointer}: ${changedBy}`);
  }
  if (elapsed.inStateMs >= policy.watchMs) return done('the version is active');
  const { healthFailure } = fleet;
  if (healthFailure !== undefined) return fail(healthFailure.fault, healthFailure.reason);
  return { kind: 'wait', reason: `active, watched for ${policy.watchMs} ms` };
}

/**
 * The last channel, which has the most users, is rolled back first. A rollout that moved no channel
 * rolls none back unless the version is bad: an operator may have activated it since.
 */
function stepFromFailed(input: StepInput): Step {
  const { rollout, fleet } = input;
  const quarantines = rollout.fault === 'version';
  const rollsBack = quarantines || rollout.from !== undefined;
  const view = fleet.channels.findLast(({ pointer }) => rollsBack && pointer === rollout.version);
  if (view !== undefined) return moveBack(input, view, quarantines);
  if (quarantines && !fleet.isQuarantined) return { kind: 'quarantine' };
  if (rollout.from !== undefined) {
    return enter('rolled-back', 'no channel points to the version any more');
  }
  if (quarantines) return enter('quarantined', 'found bad before any channel pointed to it');
  return releaseCandidate(input) ?? done('failed');
}

function moveBack({ rollout, fleet }: StepInput, view: ChannelView, quarantines: boolean): Step {
  const { channel, pointer, isPinned, changedBy } = view;
  if (isPinned) {
    const reason = `channel ${channel} is pinned to ${pointer} by ${changedBy}; unpin it`;
    return { kind: 'wait', reason, isBlocked: true };
  }
  return findRollbackTarget(view, fleet, rollout.version) === undefined
    ? done(`channel ${channel} has no other version to roll back to`)
    : { kind: 'back', channel, quarantines };
}

function stepFromRolledBack(input: StepInput): Step {
  const { rollout, fleet } = input;
  if (rollout.fault !== 'version') {
    // A controller that had not read the abort yet may have moved a channel after the others.
    const late = fleet.channels.findLast(
      ({ pointer, isMovedByRollout }) => isMovedByRollout && pointer === rollout.version,
    );
    if (late !== undefined) return moveBack(input, late, false);
    return releaseCandidate(input) ?? done('rolled back');
  }
  if (!fleet.isQuarantined) return { kind: 'quarantine' };
  return enter('quarantined', 'controllers never roll it out again');
}

/** The channel's own previous version; without one, the version of the last channel. */
export function findRollbackTarget(
  view: ChannelView,
  { channels }: Pick<FleetView, 'channels'>,
  version: string,
): string | undefined {
  const last = channels.at(-1)?.pointer;
  return view.previous ?? (last === version ? undefined : last);
}

function releaseCandidate({ rollout, fleet }: StepInput): Step | undefined {
  if (fleet.candidate !== rollout.version) return undefined;
  const { pointer: to, isQuarantined } = fleet.channels.at(-1) ?? {};
  if (to === undefined || to === rollout.version || isQuarantined) return undefined;
  return { kind: 'release', to };
}

function enter(state: RolloutState, reason: string): Extract<Step, { kind: 'enter' }> {
  return { kind: 'enter', state, reason };
}

function fail(fault: Fault, reason: string): Step {
  return { kind: 'enter', state: 'failed', reason, fault };
}

function done(reason: string): Step {
  return { kind: 'done', reason };
}

function getChannelSeqs({ channels }: FleetView): Record<string, number> {
  return Object.fromEntries(channels.map(({ channel, seq }) => [channel, seq]));
}

/** For each shard with too few replicas: the counts, and the problems of the missing ones. */
function describeShortfalls(
  { shards }: FleetView,
  policy: RolloutPolicy,
  isReady: (replica: ReplicaView) => boolean,
): string[] {
  return shards.flatMap((replicas, shard) => {
    const { length } = replicas;
    const required = policy.replicas === 'all' ? length : Math.min(policy.replicas, length);
    const count = replicas.filter(isReady).length;
    if (count >= Math.max(1, required)) return [];
    const missing = replicas
      .filter((replica) => !isReady(replica))
      .map(({ address, trouble }) => `${address}${trouble && `: ${trouble}`}`);
    return [`shard ${shard}: ${count} of ${required} (${missing.join(', ')})`];
  });
}

function formatLoadedCount({ shards }: FleetView): string {
  const replicas = shards.flat();
  return `${replicas.filter(({ holds }) => holds).length} of ${replicas.length} replicas`;
}
