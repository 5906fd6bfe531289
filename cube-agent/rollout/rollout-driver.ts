/**
 * Takes one version through a fleet: looks, asks nextStep, takes that one step, again. It remembers nothing that matters: what a
 * rollout has come to is in the repository, so a driver may be killed anywhere and another goes on, at the same time too.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { CANDIDATE_CHANNEL, type RolloutState } from '../../lib/core/rollout.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { type FaultPoint, faultPoint } from '../../lib/platform/fault-point.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';
import type { RolloutEntry, RolloutLog } from '../../lib/repository/rollout-log.ts';
import { nextStep, placeToGo, type Step } from './next-step.ts';
import type {
  ChannelView,
  Fault,
  FleetView,
  GateOutcome,
  ReplicaView,
  RolloutPolicy,
  RolloutView,
  Sickness,
  SourceFinding,
} from './rollout-view.ts';
import { manifestFault, sourceDamage } from './source-check.ts';

/** What a rollout sees and moves beside the repository. */
export interface RolloutFleet {
  /** Shard by shard those that are to hold the version. */
  replicas(version: string): Promise<readonly (readonly ReplicaView[])[]>;
  /** Compares the staged version with the one that is active; undefined: none is. */
  gate(version: string, active: string | undefined): Promise<GateOutcome>;
  /** What is wrong with the answers that a version gives; undefined: nothing, or nobody knows. */
  sickness(version: string, before: string | undefined): Promise<Sickness | undefined>;
  /** A channel has moved: whoever follows it had better look now. */
  moved(): Promise<void>;
}

export interface RolloutDriverOptions {
  readonly repository: Repository;
  readonly bundle: string;
  readonly version: string;
  readonly policy: RolloutPolicy;
  readonly fleet: RolloutFleet;
  /** Kept in every entry. */
  readonly holder: string;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** What one look saw and what came of it. */
export interface Progress {
  readonly state: RolloutState | undefined;
  readonly fleet: FleetView;
  readonly step: Step;
}

interface Look {
  readonly entry: RolloutEntry | undefined;
  readonly rollout: RolloutView;
  readonly fleet: FleetView;
  readonly candidateSeq: number;
}

/** States in which servers and gate matter. */
const BEFORE_ACTIVE: ReadonlySet<RolloutState | undefined> = new Set<RolloutState | undefined>([
  ...(['staging', 'staged', 'gating', 'activating'] as const),
]);
const SERVING: ReadonlySet<RolloutState | undefined> = new Set<RolloutState | undefined>([
  ...(['activating', 'active'] as const),
]);

export class RolloutDriver {
  readonly #options: RolloutDriverOptions;
  readonly #log: RolloutLog;
  #gate: GateOutcome | undefined;
  #source: SourceFinding | undefined;
  /** The entry whose age was asked last, and when it was written by the monotonic clock. */
  #timed: { readonly name: string; readonly writtenMs: number } | undefined;
  #seenSeq = -1;
  #seenMs = 0;
  #seenChannels = '';
  #movedMs = 0;

  constructor(options: RolloutDriverOptions) {
    this.#options = options;
    this.#log = options.repository.rollout(options.bundle, options.version);
  }

  get version(): string {
    return this.#options.version;
  }

  /**
   * Looks without touching anything. @returns what is to be done next
   * @throws CubeError CORRUPT, DENIED or IO when the repository does not say
   */
  async look(): Promise<Progress> {
    const look = await this.#look();
    return { state: look.rollout.state, fleet: look.fleet, step: this.#decide(look) };
  }

  /** One step. Whoever was slower than another does nothing, and sees on the next look what the other did. */
  async advance(): Promise<Progress> {
    const look = await this.#look();
    const step = this.#decide(look);
    const progress = { state: look.rollout.state, fleet: look.fleet, step };
    if (step.kind === 'wait' || step.kind === 'done') return progress;
    try {
      await this.#take(step, look);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      // The channel's version is gone from the repository: the next rollout takes the candidate's place all the same.
      if (step.kind === 'release' && code === 'NOT_FOUND') {
        return { ...progress, step: { kind: 'done', why: message } };
      }
      if (code !== 'CONFLICT') throw error;
      this.#options.logger.info({ version: this.version, why: message }, 'somebody was first');
    }
    return progress;
  }

  /**
   * Ends it before it is done: what it moved goes back. The version stays in good standing.
   * @throws CubeError CONFLICT when there is nothing to end
   */
  async abort(reason: string): Promise<void> {
    const { bundle } = this.#options;
    const { entry, rollout } = await this.#look();
    if (entry === undefined || !(rollout.state === 'seen' || BEFORE_ACTIVE.has(rollout.state))) {
      const is = rollout.state ?? 'not begun';
      throw new CubeError(
        'CONFLICT',
        `the rollout of ${bundle} ${this.version} is ${is}: there is nothing to abort`,
      );
    }
    await this.#enter(entry.seq, 'failed', reason, { fault: 'fleet' });
  }

  /**
   * Begins it anew where it came to an end for the fleet's sake, or where the channels have left the version in good standing.
   * @throws CubeError CONFLICT for a version that was found bad
   */
  async restart(): Promise<void> {
    const { entry, rollout, candidateSeq, fleet } = await this.#look();
    const { state } = rollout;
    if (fleet.isQuarantined) {
      throw new CubeError(
        'CONFLICT',
        `version ${this.version} of ${this.#options.bundle} is quarantined; publish a new one`,
      );
    }
    if (entry === undefined) return;
    const isOver = (state === 'failed' || state === 'rolled-back') && rollout.fault !== 'version';
    if (isOver && this.#decide({ entry, rollout, fleet, candidateSeq }).kind === 'done') {
      await this.#enter(entry.seq, 'seen', 'tried again');
    }
    if (state !== 'retired') return;
    if (fleet.candidateBusy !== undefined) throw new CubeError('CONFLICT', fleet.candidateBusy);
    await this.#point(candidateSeq, this.version, 'staged again');
    await this.#enter(entry.seq, 'staging', 'wanted again');
  }

  async #look(): Promise<Look> {
    const { repository, bundle, policy, version, holder, fleet } = this.#options;
    const history = await this.#log.history();
    const entry = history.at(-1);
    const state = entry?.state;
    const names = [...policy.channels.map(({ channel }) => channel), CANDIDATE_CHANNEL];
    const states = await Promise.all(names.map((name) => repository.channel(bundle, name)));
    const candidate = states.pop()!.pointer;
    const channels = states.map((channel, i) => channelView(names[i]!, channel));
    const bad = new Set(states.flatMap(({ quarantined }) => [...quarantined]));
    const isEarly = state === undefined || state === 'seen' || BEFORE_ACTIVE.has(state);
    const unreadable = isEarly ? await manifestFault(repository, bundle, version) : undefined;
    const areMatter = BEFORE_ACTIVE.has(state) && unreadable === undefined;
    const shards = areMatter ? await fleet.replicas(version) : [];
    const isServed = channels.some(({ pointer }) => pointer === version);
    const isTakable = candidate === undefined || candidate.version === version;
    return {
      entry,
      rollout: {
        ...{ version, state, holder: entry?.holder ?? '', isOurs: entry?.holder === holder },
        fault: faultOf(entry),
        from: fromOf(history),
      },
      candidateSeq: candidate?.seq ?? 0,
      fleet: {
        isQuarantined: bad.has(version),
        unreadable,
        candidate: candidate?.version,
        candidateBusy: isTakable ? undefined : await this.#busy(candidate.version, channels, bad),
        channels,
        shards,
        source: this.#source,
        gate: state === 'gating' ? this.#gate : undefined,
        sickness:
          SERVING.has(state) && isServed
            ? await fleet.sickness(version, versionBefore(channels, version))
            : undefined,
      },
    };
  }

  /** Whether the rollout that holds the candidate channel is not over yet. */
  async #busy(
    version: string,
    channels: readonly ChannelView[],
    quarantined: ReadonlySet<string>,
  ): Promise<string | undefined> {
    const { repository, bundle, policy } = this.#options;
    const entry = (await repository.rollout(bundle, version).history()).at(-1);
    if (entry === undefined) return undefined;
    const { state, holder } = entry;
    const pointing = channels.filter(({ pointer }) => pointer === version);
    const isPointedTo = pointing.length > 0;
    // The first version ever may fail where nothing is to go back to: then only a better one ends it. The channel with the most
    // users goes back first, so as long as that one cannot, no other does.
    const first = pointing.at(-1);
    const hasWayBack = first !== undefined && placeToGo(first, { channels }, version) !== undefined;
    if (state === 'failed' && isPointedTo && !hasWayBack) return undefined;
    const isWatched = this.#sinceMs(version, entry) < policy.watchMs;
    const isUnderWay =
      state === 'seen' ||
      BEFORE_ACTIVE.has(state) ||
      (state === 'active' && isPointedTo && isWatched) ||
      (state === 'failed' && isPointedTo) ||
      (faultOf(entry) === 'version' && !quarantined.has(version));
    return isUnderWay ? `the rollout of ${version} is ${state}, by ${holder}` : undefined;
  }

  /**
   * Since an entry was written: what the clocks on the wall said when it was first seen here, and what has gone by since then.
   * So a clock that jumps changes nothing, and one that is behind the writer's makes nobody wait longer than anew.
   */
  #sinceMs(version: string, { seq, at }: RolloutEntry): number {
    const { clock } = this.#options;
    const name = `${version} ${seq}`;
    const nowMs = clock.nowMs();
    if (this.#timed?.name !== name) {
      const wallMs = Date.parse(clock.isoTime()) - Date.parse(at);
      this.#timed = { name, writtenMs: nowMs - Math.max(0, wallMs || 0) };
    }
    return nowMs - this.#timed.writtenMs;
  }

  #decide({ entry, rollout, fleet }: Look): Step {
    const { policy, clock } = this.#options;
    const nowMs = clock.nowMs();
    if (this.#seenSeq !== (entry?.seq ?? 0)) {
      // Only the watch goes on where another began it: what has been active for a week is not watched again.
      this.#seenMs = nowMs - (entry?.state === 'active' ? this.#sinceMs(this.version, entry) : 0);
      this.#seenSeq = entry?.seq ?? 0;
      if (entry?.state !== 'gating') this.#gate = undefined;
      if (entry?.state !== 'staging') this.#source = undefined;
    }
    const seqs = JSON.stringify(fleet.channels.map(({ seq }) => seq));
    if (this.#seenChannels !== seqs) {
      this.#seenChannels = seqs;
      this.#movedMs = nowMs;
    }
    const elapsed = { inStateMs: nowMs - this.#seenMs, sinceMoveMs: nowMs - this.#movedMs };
    return nextStep({ rollout, fleet, policy, elapsed });
  }

  async #take(step: Step, { entry, rollout, fleet, candidateSeq }: Look): Promise<void> {
    const { repository, bundle, version, holder: by } = this.#options;
    const mover = { by, reason: entry?.reason ?? 'rollout' };
    switch (step.kind) {
      case 'enter': {
        const { state, reason, fault = rollout.fault, from } = step;
        await this.#enter(entry?.seq ?? 0, state, reason, { fault, from });
        return;
      }
      case 'stage':
        await this.#point(candidateSeq, version, 'staged');
        return;
      case 'release':
        await this.#point(candidateSeq, step.to, `the rollout of ${version} is over`);
        return;
      case 'verify': {
        const { layers } = step;
        const damage = await sourceDamage(repository, { bundle, version }, layers);
        this.#source = { layers, damage };
        return;
      }
      case 'gate':
        this.#gate = await this.#options.fleet.gate(version, fleet.channels.at(-1)?.pointer);
        return;
      case 'move': {
        const { channel, expected } = step;
        const reason = `rollout of ${version}`;
        await repository.activate(bundle, channel, { version, by, reason, expected });
        await this.#moved('rollout.moved', channel);
        return;
      }
      case 'back':
        await this.#back(step, fleet, mover.reason);
        return;
      case 'quarantine':
        await repository.quarantine(bundle, version, mover);
        return;
    }
  }

  async #enter(
    seq: number,
    state: RolloutState,
    reason: string,
    detail: {
      fault?: Fault | undefined;
      from?: Readonly<Record<string, number>> | undefined;
    } = {},
  ): Promise<void> {
    const { holder, bundle, logger } = this.#options;
    await this.#log.append(seq, { state, holder, reason, detail });
    logger.info({ bundle, version: this.version, reason }, state);
    faultPoint(`rollout.${state}`);
  }

  async #point(expected: number, version: string, reason: string): Promise<void> {
    const { repository, bundle, holder: by } = this.#options;
    await repository.activate(bundle, CANDIDATE_CHANNEL, { version, by, reason, expected });
    await this.#moved('rollout.pointed', CANDIDATE_CHANNEL);
  }

  async #back(
    { channel, condemn }: Extract<Step, { kind: 'back' }>,
    fleet: FleetView,
    reason: string,
  ): Promise<void> {
    const { repository, bundle, version, holder: by } = this.#options;
    const view = fleet.channels.find((candidate) => candidate.channel === channel)!;
    if (condemn && view.previous !== undefined) {
      await repository.rollback(bundle, channel, by, reason, version);
    } else {
      const place = placeToGo(view, fleet, version)!;
      const wish = { version: place, by, reason, expected: view.seq };
      await repository.activate(bundle, channel, wish);
    }
    await this.#moved('rollout.back', channel);
  }

  async #moved(point: FaultPoint, channel: string): Promise<void> {
    const { bundle, fleet, logger } = this.#options;
    logger.info({ bundle, version: this.version, channel }, 'channel moved');
    faultPoint(point);
    await fleet.moved();
  }
}

function channelView(
  channel: string,
  { pointer, previous, quarantined }: ChannelState,
): ChannelView {
  return {
    channel,
    seq: pointer?.seq ?? 0,
    pointer: pointer?.version,
    isBad: pointer !== undefined && quarantined.has(pointer.version),
    said: pointer === undefined ? '' : `${pointer.by} ("${pointer.reason}")`,
    isPinned: pointer?.pinned ?? false,
    previous: previous?.version,
  };
}

/** What most users have, or had until the last channel moved: while only the first ones have, that is its pointer. */
function versionBefore(channels: readonly ChannelView[], version: string): string | undefined {
  const last = channels.at(-1);
  return last?.pointer === version ? last.previous : last?.pointer;
}

/** An entry that says it failed, but not why, is taken as the fleet's fault: nothing is condemned on a guess. */
function faultOf(entry: RolloutEntry | undefined): Fault | undefined {
  if (entry === undefined) return undefined;
  const { fault } = (entry.detail ?? {}) as { fault?: unknown };
  if (fault === 'version' || entry.state === 'quarantined') return 'version';
  return ['failed', 'rolled-back'].includes(entry.state) ? 'fleet' : undefined;
}

/** Of this try: entries before the newest beginning belong to earlier ones. */
function fromOf(history: readonly RolloutEntry[]): Readonly<Record<string, number>> | undefined {
  const start = history.findLastIndex(({ state }) => state === 'seen' || state === 'staging');
  const entry = history.slice(Math.max(0, start)).find(({ state }) => state === 'activating');
  const { from } = (entry?.detail ?? {}) as { from?: unknown };
  if (typeof from !== 'object' || from === null) return undefined;
  return Object.fromEntries(
    Object.entries(from).filter((pair): pair is [string, number] => Number.isInteger(pair[1])),
  );
}
