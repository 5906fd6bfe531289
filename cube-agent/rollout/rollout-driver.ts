/**
 * Takes one version through a fleet: inspect, ask nextStep, take that step, repeat. The state of
 * the rollout is in the repository, so a driver may be killed at any point, and several drivers may
 * work on the same rollout at the same time.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { CANDIDATE_CHANNEL, type RolloutState } from '../../lib/core/rollout.ts';
import type { Clock } from '../../lib/platform/clock.ts';
import { type FaultPoint, faultPoint } from '../../lib/platform/fault-point.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';
import type { RolloutEntry, RolloutLog } from '../../lib/repository/rollout-log.ts';
import { findRollbackTarget, nextStep, type Step } from './next-step.ts';
import type {
  ChannelView,
  Fault,
  FleetView,
  GateOutcome,
  HealthFailure,
  ReplicaView,
  RolloutPolicy,
  RolloutView,
  SourceCheck,
} from './rollout-view.ts';
import { checkManifest, findSourceDamage } from './source-check.ts';
import type { HealthReadings } from './version-health.ts';

/** The fleet and the gate, as a rollout uses them. */
export interface RolloutFleet {
  /** By shard: the replicas that are to load the version. */
  replicas(version: string): Promise<readonly (readonly ReplicaView[])[]>;
  /**
   * Compares the staged version with the active one.
   * @param active undefined: no version is active
   * @param by author of the report; default: the controller
   */
  gate(version: string, active: string | undefined, by?: string): Promise<GateOutcome>;
  /**
   * Checks the predictions of a version against those of `baseline`.
   * @returns undefined when they are healthy, or too few are known
   */
  checkHealth(version: string, baseline: string | undefined): Promise<HealthFailure | undefined>;
  /** The measurements of the last `checkHealth`, by version. */
  readonly readings?: ReadonlyMap<string, HealthReadings>;
  /** Tells subscribers that a channel has moved. */
  notifyChannelMoved(): Promise<void>;
}

export interface RolloutDriverOptions {
  readonly repository: Repository;
  readonly bundle: string;
  readonly version: string;
  readonly policy: RolloutPolicy;
  readonly fleet: RolloutFleet;
  /** Author of the log entries. */
  readonly holder: string;
  readonly clock: Clock;
  readonly logger: Logger;
}

/** The result of one inspection, and the step that follows from it. */
export interface RolloutProgress {
  readonly state: RolloutState | undefined;
  readonly fleet: FleetView;
  readonly step: Step;
}

interface Inspection {
  readonly entry: RolloutEntry | undefined;
  readonly rollout: RolloutView;
  readonly fleet: FleetView;
  readonly candidateSeq: number;
}

type States = ReadonlySet<RolloutState | undefined>;
/** States in which replicas are observed. */
const STATES_BEFORE_ACTIVE: States = new Set([
  'staging',
  'staged',
  'gating',
  'activating',
] as const);
/** States in which live predictions are observed. */
const SERVING_STATES: States = new Set(['activating', 'active'] as const);

export class RolloutDriver {
  readonly #options: RolloutDriverOptions;
  readonly #log: RolloutLog;
  /** The last verdict, and the entry `gating` that it was made for. */
  #gate: { readonly seq: number; readonly outcome: GateOutcome } | undefined;
  #isInLongStep = false;
  #sourceCheck: SourceCheck | undefined;
  /** The entry whose age was computed last, with its time on the monotonic clock. */
  #timed: { readonly name: string; readonly writtenMs: number } | undefined;
  #seenSeq = -1;
  #seenMs = 0;
  #seenChannels = '';
  #movedMs = 0;

  constructor(options: RolloutDriverOptions) {
    this.#options = options;
    this.#log = options.repository.rolloutLog(options.bundle, options.version);
  }

  get version(): string {
    return this.#options.version;
  }

  /** The step is one that reads whole layers or replays requests, and may take many minutes. */
  get isInLongStep(): boolean {
    return this.#isInLongStep;
  }

  /**
   * Reads the state and decides the next step without taking it.
   * @throws CubeError CORRUPT, DENIED or IO when the repository cannot be read
   */
  async inspect(): Promise<RolloutProgress> {
    const inspection = await this.#inspect();
    const { rollout, fleet } = inspection;
    return { state: rollout.state, fleet, step: this.#decide(inspection) };
  }

  /** Takes one step. A driver that another one has overtaken changes nothing. */
  async advance(): Promise<RolloutProgress> {
    const inspection = await this.#inspect();
    const step = this.#decide(inspection);
    const progress = { state: inspection.rollout.state, fleet: inspection.fleet, step };
    if (step.kind === 'wait' || step.kind === 'done') return progress;
    this.#isInLongStep = step.kind === 'gate' || step.kind === 'verify';
    try {
      await this.#take(step, inspection);
    } catch (error) {
      const { code, message } = CubeError.from(error);
      // The version to release to was deleted. The next rollout can use the candidate channel
      // anyway.
      if (step.kind === 'release' && code === 'NOT_FOUND') {
        return { ...progress, step: { kind: 'done', reason: message } };
      }
      if (code !== 'CONFLICT') throw error;
      const text = 'another controller was faster';
      this.#options.logger.info({ version: this.version, reason: message }, text);
    } finally {
      this.#isInLongStep = false;
    }
    return progress;
  }

  /**
   * Ends the rollout early and rolls its channels back. The version is not quarantined.
   * @throws CubeError CONFLICT when no rollout is in progress
   */
  async abort(reason: string): Promise<void> {
    const { bundle } = this.#options;
    const { entry, rollout } = await this.#inspect();
    if (
      entry === undefined ||
      !(rollout.state === 'seen' || STATES_BEFORE_ACTIVE.has(rollout.state))
    ) {
      const state = rollout.state ?? 'not started';
      throw new CubeError(
        'CONFLICT',
        `the rollout of ${bundle} ${this.version} is ${state}: there is nothing to abort`,
      );
    }
    await this.#enter(entry.seq, 'failed', reason, { fault: 'fleet' });
  }

  /**
   * Starts the rollout again after a failure of the fleet, or after the channels have moved on.
   * @param reason for the log; default: that it is a retry
   * @returns false, with nothing changed, when the rollout has not ended
   * @throws CubeError CONFLICT when the version is quarantined
   */
  async restart(reason?: string): Promise<boolean> {
    const { entry, rollout, candidateSeq, fleet } = await this.#inspect();
    const { state } = rollout;
    if (fleet.isQuarantined) {
      throw new CubeError(
        'CONFLICT',
        `version ${this.version} of ${this.#options.bundle} is quarantined; publish a new one`,
      );
    }
    if (entry === undefined) return false;
    const isOver = (state === 'failed' || state === 'rolled-back') && rollout.fault !== 'version';
    if (isOver && this.#decide({ entry, rollout, fleet, candidateSeq }).kind === 'done') {
      await this.#enter(entry.seq, 'seen', reason ?? 'retried');
      return true;
    }
    if (state !== 'retired') return false;
    if (fleet.candidateConflict !== undefined)
      throw new CubeError('CONFLICT', fleet.candidateConflict);
    await this.#point(candidateSeq, this.version, 'staged again');
    await this.#enter(entry.seq, 'staging', reason ?? 'rolled out again');
    return true;
  }

  async #inspect(): Promise<Inspection> {
    const { repository, bundle, policy, version, holder, fleet } = this.#options;
    const history = await this.#log.readHistory();
    const entry = history.at(-1);
    const state = entry?.state;
    const names = [...policy.channels.map(({ channel }) => channel), CANDIDATE_CHANNEL];
    const states = await Promise.all(names.map((name) => repository.readChannel(bundle, name)));
    const candidate = states.pop()?.pointer;
    const channels = states.map((channel, i) => toChannelView(names[i] ?? '', channel));
    const quarantined = new Set(states.flatMap((channel) => [...channel.quarantined]));
    const isEarly = state === undefined || state === 'seen' || STATES_BEFORE_ACTIVE.has(state);
    const manifestFailure = isEarly ? await checkManifest(repository, bundle, version) : undefined;
    const needsReplicas = STATES_BEFORE_ACTIVE.has(state) && manifestFailure === undefined;
    const shards = needsReplicas ? await fleet.replicas(version) : [];
    const isServed = channels.some(({ pointer }) => pointer === version);
    const isCandidateFree = candidate === undefined || candidate.version === version;
    return {
      entry,
      rollout: {
        version,
        state,
        holder: entry?.holder ?? '',
        isOurs: entry?.holder === holder,
        fault: readFault(entry),
        from: readStartSeqs(history, 'activating'),
        gatedFrom: readStartSeqs(history, 'gating'),
      },
      candidateSeq: candidate?.seq ?? 0,
      fleet: {
        isQuarantined: quarantined.has(version),
        manifestFailure,
        candidate: candidate?.version,
        candidateConflict: isCandidateFree
          ? undefined
          : await this.#findConflict(candidate.version, channels, quarantined),
        channels,
        shards,
        sourceCheck: this.#sourceCheck,
        gate: this.#gate?.seq === entry?.seq ? this.#gate?.outcome : undefined,
        healthFailure:
          SERVING_STATES.has(state) && isServed
            ? await fleet.checkHealth(version, findPreviousVersion(channels, version))
            : undefined,
      },
    };
  }

  /** @returns text when the rollout that uses the candidate channel is not over yet */
  async #findConflict(
    version: string,
    channels: readonly ChannelView[],
    quarantined: ReadonlySet<string>,
  ): Promise<string | undefined> {
    const { repository, bundle, policy } = this.#options;
    const entry = (await repository.rolloutLog(bundle, version).readHistory()).at(-1);
    if (entry === undefined) return undefined;
    const { state, holder } = entry;
    const pointing = channels.filter(({ pointer }) => pointer === version);
    const isPointedTo = pointing.length > 0;
    // A failed first version has no rollback target: only the rollout of a better version ends it.
    // The last channel is rolled back first; while it cannot be, no other channel is.
    const last = pointing.at(-1);
    const hasTarget =
      last !== undefined && findRollbackTarget(last, { channels }, version) !== undefined;
    if (state === 'failed' && isPointedTo && !hasTarget) return undefined;
    // A rollout without a watch blocks nobody, and one with a shorter watch need not wait longer.
    const watchMs = Math.min(readWatchMs(entry) ?? policy.watchMs, policy.watchMs);
    const isWatched = this.#getAgeMs(version, entry) < watchMs;
    const isInProgress =
      state === 'seen' ||
      STATES_BEFORE_ACTIVE.has(state) ||
      (state === 'active' && isPointedTo && isWatched) ||
      (state === 'failed' && isPointedTo) ||
      (readFault(entry) === 'version' && !quarantined.has(version));
    if (!isInProgress) return undefined;
    const until = state === 'active' ? formatWatchEnd(entry, watchMs) : '';
    return `the rollout of ${version} is ${state}${until}, by ${holder}`;
  }

  /**
   * Age of an entry: its age by wall clock when it was first seen here, plus the monotonic time
   * since then. A clock that jumps changes nothing; a clock behind the writer's gives age 0 at
   * first.
   */
  #getAgeMs(version: string, { seq, at }: RolloutEntry): number {
    const { clock } = this.#options;
    const name = `${version} ${seq}`;
    const nowMs = clock.nowMs();
    if (this.#timed?.name !== name) {
      const wallMs = Date.parse(clock.isoTime()) - Date.parse(at);
      this.#timed = { name, writtenMs: nowMs - Math.max(0, wallMs || 0) };
    }
    return nowMs - this.#timed.writtenMs;
  }

  #decide({ entry, rollout, fleet }: Inspection): Step {
    const { policy, clock } = this.#options;
    const nowMs = clock.nowMs();
    if (this.#seenSeq !== (entry?.seq ?? 0)) {
      // Time in a state counts from when this process first saw the entry; only for `active` from
      // when it was written, so that a restart does not watch an old version again.
      this.#seenMs = nowMs - (entry?.state === 'active' ? this.#getAgeMs(this.version, entry) : 0);
      this.#seenSeq = entry?.seq ?? 0;
      if (entry?.state !== 'staging') this.#sourceCheck = undefined;
    }
    const seqs = JSON.stringify(fleet.channels.map(({ seq }) => seq));
    if (this.#seenChannels !== seqs) {
      this.#seenChannels = seqs;
      this.#movedMs = nowMs;
    }
    const elapsed = { inStateMs: nowMs - this.#seenMs, sinceMoveMs: nowMs - this.#movedMs };
    return nextStep({ rollout, fleet, policy, elapsed });
  }

  async #take(step: Step, { entry, rollout, fleet, candidateSeq }: Inspection): Promise<void> {
    const { repository, bundle, version, policy, holder: by } = this.#options;
    const mover = { by, reason: entry?.reason ?? 'rollout' };
    switch (step.kind) {
      case 'enter': {
        const { state, reason, fault = rollout.fault, from } = step;
        const watchMs = state === 'active' ? policy.watchMs : undefined;
        await this.#enter(entry?.seq ?? 0, state, reason, { fault, from, watchMs });
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
        const damage = await findSourceDamage(repository, { bundle, version }, layers);
        this.#sourceCheck = { layers, damage };
        return;
      }
      case 'gate': {
        const outcome = await this.#options.fleet.gate(version, fleet.channels.at(-1)?.pointer);
        this.#gate = { seq: entry?.seq ?? 0, outcome };
        return;
      }
      case 'move': {
        const { channel, expected } = step;
        // An inspection takes seconds when a host hangs: the rollout may have been aborted.
        await this.#requireNewest(entry);
        const reason = formatMoveReason(version);
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

  /** @throws CubeError CONFLICT when the log has a newer entry */
  async #requireNewest(entry: RolloutEntry | undefined): Promise<void> {
    const newest = (await this.#log.readHistory()).at(-1);
    if (newest === undefined || newest.seq === entry?.seq) return;
    const { state, holder, reason } = newest;
    throw new CubeError('CONFLICT', `the rollout is ${state} by ${holder}: ${reason}`);
  }

  async #enter(
    seq: number,
    state: RolloutState,
    reason: string,
    detail: {
      fault?: Fault | undefined;
      from?: Readonly<Record<string, number>> | undefined;
      /** With state `active`. */
      watchMs?: number | undefined;
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
    { channel, quarantines }: Extract<Step, { kind: 'back' }>,
    fleet: FleetView,
    reason: string,
  ): Promise<void> {
    const { repository, bundle, version, holder: by } = this.#options;
    const view = fleet.channels.find((candidate) => candidate.channel === channel);
    const target = view && findRollbackTarget(view, fleet, version);
    if (view === undefined || target === undefined) {
      throw new CubeError('INTERNAL', `channel ${channel} of ${bundle} has no rollback target`);
    }
    if (quarantines && view.previous !== undefined) {
      await repository.rollback(bundle, channel, by, reason, version);
    } else {
      const request = { version: target, by, reason, expected: view.seq };
      await repository.activate(bundle, channel, request);
    }
    await this.#moved('rollout.back', channel);
  }

  async #moved(point: FaultPoint, channel: string): Promise<void> {
    const { bundle, fleet, logger } = this.#options;
    logger.info({ bundle, version: this.version, channel }, 'channel moved');
    faultPoint(point);
    await fleet.notifyChannelMoved();
  }
}

function toChannelView(
  channel: string,
  { pointer, previous, quarantined }: ChannelState,
): ChannelView {
  return {
    channel,
    seq: pointer?.seq ?? 0,
    pointer: pointer?.version,
    isQuarantined: pointer !== undefined && quarantined.has(pointer.version),
    changedBy: pointer === undefined ? '' : `${pointer.by} ("${pointer.reason}")`,
    isPinned: pointer?.pinned ?? false,
    isMovedByRollout: pointer !== undefined && pointer.reason === formatMoveReason(pointer.version),
    previous: previous?.version,
  };
}

/** The reason of the channel entries that rollouts write, by which they are recognized. */
function formatMoveReason(version: string): string {
  return `rollout of ${version}`;
}

/** The version of most users before this one: of the last channel, before or until it moves. */
function findPreviousVersion(
  channels: readonly ChannelView[],
  version: string,
): string | undefined {
  const last = channels.at(-1);
  return last?.pointer === version ? last.previous : last?.pointer;
}

/**
 * A failure without a recorded fault counts as a fault of the fleet: no version is quarantined by
 * default.
 */
function readFault(entry: RolloutEntry | undefined): Fault | undefined {
  if (entry === undefined) return undefined;
  const { fault } = (entry.detail ?? {}) as { fault?: unknown };
  if (fault === 'version' || entry.state === 'quarantined') return 'version';
  return ['failed', 'rolled-back'].includes(entry.state) ? 'fleet' : undefined;
}

/**
 * Entries of this attempt only: those before its `seen` or `staging` belong to earlier attempts.
 * @param started the state at whose beginning the channels were read
 */
function readStartSeqs(
  history: readonly RolloutEntry[],
  started: RolloutState,
): Readonly<Record<string, number>> | undefined {
  const start = history.findLastIndex(({ state }) => state === 'seen' || state === 'staging');
  const entry = history.slice(Math.max(0, start)).find(({ state }) => state === started);
  const { from } = (entry?.detail ?? {}) as { from?: unknown };
  if (typeof from !== 'object' || from === null) return undefined;
  return Object.fromEntries(
    Object.entries(from).filter((pair): pair is [string, number] => Number.isInteger(pair[1])),
  );
}

/** @returns how long the rollout of an active version watches it; undefined in older logs */
function readWatchMs({ detail }: RolloutEntry): number | undefined {
  const { watchMs } = (detail ?? {}) as { watchMs?: unknown };
  return typeof watchMs === 'number' ? watchMs : undefined;
}

/** By the clock of the machine that wrote the entry; empty if its time is unreadable. */
function formatWatchEnd({ at }: RolloutEntry, watchMs: number): string {
  const end = new Date(Date.parse(at) + watchMs);
  return Number.isNaN(end.getTime()) ? '' : ` and watched until ${end.toISOString()}`;
}
