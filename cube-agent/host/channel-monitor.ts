/**
 * The channels of one bundle as last read from the repository. Until the repository answers, the
 * state that an earlier agent saved on this host is used.
 */
import { CubeError } from '../../lib/core/errors.ts';
import { CANDIDATE_CHANNEL } from '../../lib/core/rollout.ts';
import type { Logger } from '../../lib/platform/logs.ts';
import type { ChannelState, Repository } from '../../lib/repository/repository.ts';
import { describeOperation, type Operation } from '../fleet/problem.ts';
import type { HostData, PastVersion, SavedState } from './host-data.ts';
import { type DesiredVersions, listDesiredVersions, orderByMemoryPriority } from './plan.ts';
import type { ProblemTracker } from './problem-tracker.ts';

/** Earlier versions that are remembered for each channel. */
const PAST_MAX = 50;

export interface ChannelMonitorOptions {
  readonly repository: () => Repository;
  readonly bundle: string;
  /**
   * Subscribed channels. The first one decides the active version of the servers. The candidate
   * channel is always read too.
   */
  readonly channels: readonly string[];
  readonly data: HostData;
  readonly problems: ProblemTracker;
  readonly logger: Logger;
}

/** Pointer undefined: the channel was read and points to no version. */
export interface ChannelSnapshot {
  readonly pointer: string | undefined;
  readonly previous: string | undefined;
  /** Distinct versions, newest pointer first, each with the time of its first pointer. */
  readonly past: readonly PastVersion[];
}

export class ChannelMonitor {
  readonly #options: ChannelMonitorOptions;
  /** The subscribed channels and the candidate channel. */
  readonly channelNames: readonly string[];
  readonly #snapshots = new Map<string, ChannelSnapshot>();
  readonly #quarantined = new Set<string>();

  constructor(options: ChannelMonitorOptions) {
    this.#options = options;
    this.channelNames = [...new Set([...options.channels, CANDIDATE_CHANNEL])];
    for (const channel of this.channelNames) {
      const saved = options.data.readSavedState(channel);
      if (saved === undefined) continue;
      // A saved candidate channel without a pointer is reliable. Another channel without one must
      // be read before files may be removed.
      if (saved.pointer === undefined && channel !== CANDIDATE_CHANNEL) continue;
      this.#snapshots.set(channel, saved);
      for (const version of saved.quarantined) this.#quarantined.add(version);
    }
  }

  get bundle(): string {
    return this.#options.bundle;
  }

  get snapshots(): ReadonlyMap<string, ChannelSnapshot> {
    return this.#snapshots;
  }

  /** Every channel is known. */
  get isComplete(): boolean {
    return this.#snapshots.size === this.channelNames.length;
  }

  /** Undefined while no known channel points to a version. */
  get desired(): DesiredVersions | undefined {
    const [first = '', ...rest] = this.#options.channels;
    const decisive = this.#snapshots.get(first);
    const others = rest.map((channel) => this.#snapshots.get(channel));
    const loadOnly = [
      ...others.map((other) => other?.pointer),
      this.candidate,
      ...others.map((other) => other?.previous),
    ].filter((version) => version !== undefined);
    if (decisive?.pointer === undefined && loadOnly.length === 0) return undefined;
    const past = this.#options.channels.flatMap((name) => this.#snapshots.get(name)?.past ?? []);
    return {
      pointer: decisive?.pointer,
      previous: decisive?.previous,
      loadOnly,
      quarantined: this.#quarantined,
      history: past.sort((a, b) => b.at.localeCompare(a.at)).map(({ version }) => version),
    };
  }

  /** The version that a rollout stages. Earlier candidates are not desired any more. */
  get candidate(): string | undefined {
    return this.#snapshots.get(CANDIDATE_CHANNEL)?.pointer;
  }

  /** Most important first. */
  get desiredVersions(): string[] {
    const { desired } = this;
    return desired === undefined ? [] : listDesiredVersions(desired);
  }

  /** The same versions in the order in which they stay when memory is short. */
  get versionsByMemoryPriority(): string[] {
    const { desired } = this;
    return desired === undefined ? [] : orderByMemoryPriority(desired);
  }

  /** A channel that cannot be read keeps its last known state and does not block the others. */
  async refresh(): Promise<void> {
    const { bundle, repository, problems } = this.#options;
    const states: ChannelState[] = [];
    for (const channel of this.channelNames) {
      const operation: Operation = { action: 'read-channel', channel };
      try {
        const state = await repository().readChannel(bundle, channel);
        this.#update(channel, state, operation);
        for (const version of state.quarantined) this.#quarantined.add(version);
        states.push(state);
      } catch (error) {
        const { code, message } = CubeError.from(error);
        if (!problems.record(operation, error)) continue;
        const text = `cannot ${describeOperation(operation)}`;
        this.#options.logger.warn({ code, error: message, ...operation }, text);
      }
    }
    this.#forgetLifted(states);
  }

  /**
   * A repository that can list reports all quarantines with each channel. Another one reports those
   * down to the first version that may serve, so only what a channel points to is known to be free.
   */
  #forgetLifted(states: readonly ChannelState[]): void {
    const reported = new Set(states.flatMap(({ quarantined }) => [...quarantined]));
    const pointers = new Set(states.map(({ pointer }) => pointer?.version));
    const isComplete =
      this.#options.repository().canList && states.length === this.channelNames.length;
    for (const version of this.#quarantined) {
      if (reported.has(version) || !(isComplete || pointers.has(version))) continue;
      this.#quarantined.delete(version);
      this.#options.logger.info({ version }, 'the quarantine was lifted');
    }
  }

  toSavedState(channel: string): Omit<SavedState, 'problems'> {
    const { pointer, previous, past = [] } = this.#snapshots.get(channel) ?? {};
    return { pointer, previous, past, quarantined: [...this.#quarantined] };
  }

  #update(
    channel: string,
    { pointer, previous, history }: ChannelState,
    operation: Operation,
  ): void {
    const { bundle, repository, problems, logger } = this.#options;
    const known = this.#snapshots.get(channel);
    if (pointer === undefined && known?.pointer !== undefined) {
      throw new CubeError(
        'NOT_FOUND',
        `channel ${channel} of ${bundle} is missing in ${repository().location}: it pointed to ` +
          `${known.pointer}, which stays active; restore the repository, or activate a version`,
      );
    }
    if (problems.resolve(operation)) logger.info({ channel }, 'the repository answers again');
    if (pointer !== undefined && pointer.version !== known?.pointer) {
      const { version, seq, by, reason } = pointer;
      const change = { channel, version, previous: previous?.version, seq, by, reason };
      logger.info(change, 'channel points to a new version');
    }
    this.#snapshots.set(channel, {
      pointer: pointer?.version,
      previous: previous?.version,
      past: listPastVersions(history),
    });
  }
}

function listPastVersions(history: ChannelState['history']): PastVersion[] {
  const firstAt = new Map<string, string>();
  for (const { version, at } of history) {
    if (!firstAt.has(version)) firstAt.set(version, at);
  }
  const newestFirst = new Set(history.map(({ version }) => version).reverse());
  return [...newestFirst]
    .slice(0, PAST_MAX)
    .map((version) => ({ version, at: firstAt.get(version) ?? '' }));
}
