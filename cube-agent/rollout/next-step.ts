/**
 * What a rollout does next: a pure function of its log's newest entry, of what is seen of the fleet, of the policy and of the time
 * that has gone by. A step is planned only when what it needs is seen to hold, so it may be taken twice, by two controllers, or
 * by one that was just started; whoever writes an entry second is told so and looks again.
 *
 * Safety does not depend on the times: they only end waiting. A channel moves to a version that enough replicas of every shard
 * hold, and only from the entry at which the rollout found it; never over a pin, never to a quarantined version.
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

export interface Elapsed {
  /** Since the newest entry of the log was seen. */
  readonly inStateMs: number;
  /** Since a channel of the policy was last seen to move. */
  readonly sinceMoveMs: number;
}

export type Step =
  | { readonly kind: 'wait'; readonly why: string; readonly isBlocked?: boolean }
  | { readonly kind: 'done'; readonly why: string }
  | {
      readonly kind: 'enter';
      readonly state: RolloutState;
      readonly reason: string;
      readonly fault?: Fault;
      readonly from?: Readonly<Record<string, number>>;
    }
  /** Points the candidate channel to the version. */
  | { readonly kind: 'stage' }
  /** Points it to what the fleet has anyway, so that the version is held for it no more. */
  | { readonly kind: 'release'; readonly to: string }
  /** Reads layers where they lie: whether it is the version that is damaged. */
  | { readonly kind: 'verify'; readonly layers: readonly string[] }
  /** `again`: why the last run came to nothing. */
  | { readonly kind: 'gate'; readonly again?: string }
  | { readonly kind: 'move'; readonly channel: string; readonly expected: number }
  /** Back from the version; `condemn`: and quarantines it. */
  | { readonly kind: 'back'; readonly channel: string; readonly condemn: boolean }
  | { readonly kind: 'quarantine' };

/** Whether to look again only in a while: nothing is to be done now, or what was done came to nothing. */
export function isPause(step: Step): boolean {
  return step.kind === 'wait' || (step.kind === 'gate' && step.again !== undefined);
}

export interface Situation {
  readonly rollout: RolloutView;
  readonly fleet: FleetView;
  readonly policy: RolloutPolicy;
  readonly elapsed: Elapsed;
}

/** A store that is unwell for a moment condemns nothing. */
const MANIFEST_PATIENCE_MS = 60_000;

export function nextStep(situation: Situation): Step {
  const { rollout } = situation;
  switch (rollout.state) {
    case undefined:
      return beforeSeen(situation);
    case 'seen':
      return afterSeen(situation);
    case 'staging':
      return obstacle(situation) ?? afterStaging(situation);
    case 'staged':
      return obstacle(situation) ?? afterStaged(situation);
    case 'gating':
      return obstacle(situation) ?? afterGating(situation);
    case 'activating':
      return obstacle(situation) ?? afterActivating(situation);
    case 'active':
      return afterActive(situation);
    case 'failed':
      return afterFailed(situation);
    case 'rolled-back':
      return afterRolledBack(situation);
    case 'quarantined':
      return release(situation) ?? done('the version is quarantined');
    case 'retired':
      return done('the channels have moved on');
  }
}

function beforeSeen({ rollout, fleet }: Situation): Step {
  if (fleet.isQuarantined) return done('the version is quarantined');
  const { unreadable } = fleet;
  if (unreadable?.fault === 'fleet') return { kind: 'wait', why: unreadable.why, isBlocked: true };
  return pinned(fleet) ?? busy(fleet) ?? enter('seen', `version ${rollout.version} is published`);
}

function afterSeen(situation: Situation): Step {
  const { rollout, fleet } = situation;
  if (fleet.isQuarantined) return fail('version', 'the version is quarantined');
  const waits = unreadable(situation) ?? pinned(fleet);
  if (waits !== undefined) return waits;
  if (fleet.candidate === rollout.version)
    return enter('staging', 'the fleet fetches and loads it');
  return busy(fleet) ?? { kind: 'stage' };
}

/** Its manifest lies in one place: who reads it a second time reads the same, unless the store was unwell. */
function unreadable({ fleet, policy, elapsed }: Situation): Step | undefined {
  if (fleet.unreadable === undefined) return undefined;
  const { fault, why } = fleet.unreadable;
  const patienceMs =
    fault === 'version' ? Math.min(policy.stagingMs, MANIFEST_PATIENCE_MS) : policy.stagingMs;
  if (elapsed.inStateMs >= patienceMs) return fail(fault, why);
  return { kind: 'wait', why, isBlocked: true };
}

/** For people to end: automation does not touch a pin. */
function pinned({ channels }: FleetView): Step | undefined {
  const view = channels.find(({ isPinned }) => isPinned);
  if (view === undefined) return undefined;
  const why = `channel ${view.channel} is pinned to ${view.pointer} by ${view.said}`;
  return { kind: 'wait', why, isBlocked: true };
}

/** A bundle has one rollout at a time. */
function busy({ candidateBusy: why }: FleetView): Step | undefined {
  return why === undefined ? undefined : { kind: 'wait', why, isBlocked: true };
}

/** What ends a rollout in whatever state before it is active. */
function obstacle(situation: Situation): Step | undefined {
  const { rollout, fleet } = situation;
  if (fleet.isQuarantined) return fail('version', 'the version was quarantined');
  if (fleet.candidate === rollout.version) return unreadable(situation);
  return fail('fleet', `version ${fleet.candidate ?? 'none'} took its place as the candidate`);
}

function afterStaging({ fleet, policy, elapsed }: Situation): Step {
  const missing = lacking(fleet, policy, ({ holds }) => holds);
  if (missing.length === 0) return enter('staged', `${heldText(fleet)} hold it`);
  const why = `${heldText(fleet)} hold it; ${missing.join('; ')}`;
  const layers = damagedForAll(fleet);
  const { source } = fleet;
  if (!layers.every((layer) => source?.layers.includes(layer))) return { kind: 'verify', layers };
  if (layers.length > 0 && source?.damage !== undefined) {
    return fail('version', `its source is damaged: ${source.damage}`);
  }
  if (elapsed.inStateMs < policy.stagingMs) return { kind: 'wait', why };
  return fail('fleet', `not staged within ${policy.stagingMs} ms: ${why}`);
}

/** Of a shard of which no host can fetch the version whole: where one can, it is the others that have a fault. */
function damagedForAll({ shards }: FleetView): string[] {
  const bad = shards.filter(
    (replicas) => replicas.length > 0 && replicas.every(({ damaged }) => damaged.length > 0),
  );
  return [...new Set(bad.flat().flatMap(({ damaged }) => damaged))].sort();
}

function afterStaged({ fleet, policy }: Situation): Step {
  return policy.gate
    ? enter('gating', 'golden requests are replayed')
    : { ...enter('activating', 'no gate is asked for'), from: seqsOf(fleet) };
}

function afterGating({ rollout, fleet, policy, elapsed }: Situation): Step {
  const { gate } = fleet;
  if (gate?.verdict === 'pass')
    return { ...enter('activating', gate.summary), from: seqsOf(fleet) };
  if (gate?.verdict === 'fail') return fail('version', gate.summary);
  const isLate = elapsed.inStateMs >= policy.gatingMs;
  if (gate?.verdict === 'error' && (gate.isFinal || isLate)) {
    return fail('fleet', `the gate could not run: ${gate.summary}`);
  }
  // Who entered the state runs the gate; another only when that one seems to be gone.
  if (gate === undefined && !rollout.isOurs && elapsed.inStateMs < policy.gatingMs / 2) {
    return { kind: 'wait', why: `${rollout.holder} runs the gate` };
  }
  return gate === undefined ? { kind: 'gate' } : { kind: 'gate', again: gate.summary };
}

function afterActivating(situation: Situation): Step {
  const { rollout, fleet, policy, elapsed } = situation;
  const { from = {} } = rollout;
  for (const [i, view] of fleet.channels.entries()) {
    const hasMoved = view.pointer === rollout.version;
    if (hasMoved && fleet.sickness !== undefined)
      return fail(fleet.sickness.fault, fleet.sickness.why);
    if (!hasMoved) return moveOrFail(situation, view, from[view.channel] ?? 0);
    const isNextWaiting = fleet.channels[i + 1] !== undefined;
    const isNextMoved = fleet.channels[i + 1]?.pointer === rollout.version;
    const holdMs = policy.channels[i]?.holdMs ?? 0;
    if (isNextWaiting && !isNextMoved && elapsed.sinceMoveMs < holdMs) {
      return { kind: 'wait', why: `watched on ${view.channel} for ${holdMs} ms` };
    }
  }
  const missing = lacking(fleet, policy, ({ isActive }) => isActive);
  if (missing.length === 0) return enter('active', 'every shard answers with it');
  const why = `waiting until it is active: ${missing.join('; ')}`;
  if (elapsed.sinceMoveMs < policy.activatingMs) return { kind: 'wait', why };
  // It is held everywhere, so every lookup that names it is answered: who lags behind is no reason to go back.
  return enter(
    'active',
    `every channel points to it; not active within ${policy.activatingMs} ms: ${missing.join('; ')}`,
  );
}

/** Never over an entry that somebody else wrote, and never to what is not held. */
function moveOrFail({ fleet, policy, elapsed }: Situation, view: ChannelView, from: number): Step {
  const { channel, seq, pointer, said, isPinned } = view;
  if (isPinned) return fail('fleet', `channel ${channel} is pinned to ${pointer} by ${said}`);
  if (seq !== from) {
    return fail('fleet', `channel ${channel} was moved to ${pointer} meanwhile, by ${said}`);
  }
  const missing = lacking(fleet, policy, ({ holds }) => holds);
  if (missing.length === 0) return { kind: 'move', channel, expected: seq };
  const why = `not held any more: ${missing.join('; ')}`;
  if (elapsed.inStateMs < policy.activatingMs) return { kind: 'wait', why };
  return fail('fleet', why);
}

function afterActive({ rollout, fleet, policy, elapsed }: Situation): Step {
  const { version } = rollout;
  if (fleet.isQuarantined) return fail('version', 'the version was rolled back');
  const last = fleet.channels.at(-1);
  if (last !== undefined && last.pointer !== version) {
    return enter('retired', `channel ${last.channel} points to ${last.pointer}: ${last.said}`);
  }
  if (elapsed.inStateMs >= policy.watchMs) return done('the version is active');
  if (fleet.sickness !== undefined) return fail(fleet.sickness.fault, fleet.sickness.why);
  return { kind: 'wait', why: `active, watched for ${policy.watchMs} ms` };
}

/** The channel with the most users goes back first. */
function afterFailed(situation: Situation): Step {
  const { rollout, fleet } = situation;
  const condemn = rollout.fault === 'version';
  for (const view of [...fleet.channels].reverse()) {
    if (view.pointer !== rollout.version) continue;
    if (view.isPinned) {
      const why = `channel ${view.channel} is pinned to ${view.pointer} by ${view.said}; unpin it`;
      return { kind: 'wait', why, isBlocked: true };
    }
    if (placeToGo(view, fleet, rollout.version) !== undefined) {
      return { kind: 'back', channel: view.channel, condemn };
    }
    return done(`channel ${view.channel} has no other version to go back to`);
  }
  if (condemn && !fleet.isQuarantined) return { kind: 'quarantine' };
  if (rollout.from !== undefined) return enter('rolled-back', 'no channel points to it any more');
  if (condemn) return enter('quarantined', 'found bad before any channel pointed to it');
  return release(situation) ?? done('it failed, and may be tried again');
}

function afterRolledBack(situation: Situation): Step {
  const { rollout, fleet } = situation;
  if (rollout.fault !== 'version') {
    return release(situation) ?? done('rolled back; it may be tried again');
  }
  if (!fleet.isQuarantined) return { kind: 'quarantine' };
  return enter('quarantined', 'no automation returns to it');
}

/** The channel's own previous version; where it has none, what the deciding channel has. */
export function placeToGo(
  view: ChannelView,
  { channels }: Pick<FleetView, 'channels'>,
  version: string,
): string | undefined {
  const last = channels.at(-1)?.pointer;
  return view.previous ?? (last === version ? undefined : last);
}

function release({ rollout, fleet }: Situation): Step | undefined {
  if (fleet.candidate !== rollout.version) return undefined;
  const { pointer: to, isBad } = fleet.channels.at(-1) ?? {};
  if (to === undefined || to === rollout.version || isBad) return undefined;
  return { kind: 'release', to };
}

function enter(state: RolloutState, reason: string): Extract<Step, { kind: 'enter' }> {
  return { kind: 'enter', state, reason };
}

function fail(fault: Fault, reason: string): Step {
  return { kind: 'enter', state: 'failed', reason, fault };
}

function done(why: string): Step {
  return { kind: 'done', why };
}

function seqsOf({ channels }: FleetView): Record<string, number> {
  return Object.fromEntries(channels.map(({ channel, seq }) => [channel, seq]));
}

/** Shard by shard what is too little, with the reasons of those that are behind. */
function lacking(
  { shards }: FleetView,
  { replicas: wanted }: RolloutPolicy,
  has: (replica: ReplicaView) => boolean,
): string[] {
  return shards.flatMap((replicas, shard) => {
    const need = wanted === 'all' ? replicas.length : Math.min(wanted, replicas.length);
    const count = replicas.filter(has).length;
    if (count >= Math.max(1, need)) return [];
    const behind = replicas.filter((replica) => !has(replica));
    const reasons = behind.map(({ address, trouble }) => `${address}${trouble && `: ${trouble}`}`);
    return [`shard ${shard}: ${count} of ${need} (${reasons.join(', ')})`];
  });
}

function heldText({ shards }: FleetView): string {
  const replicas = shards.flat();
  return `${replicas.filter(({ holds }) => holds).length} of ${replicas.length} replicas`;
}
